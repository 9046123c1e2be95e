package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// Requests in flight keep their slots in Redis, and give them back there. Meanwhile other options
// of Redis were loaded, and Redis failed for a while.
func TestReloadInOutage(t *testing.T) {
	caddytest.Long(t)
	t.Parallel()
	g, server := startGate(t), redistest.Start(t)
	config := func(timeout string) string {
		return gated(g, fmt.Sprintf("zone api {\n cost 10\n token_bucket 1 1000h 100\n concurrency 1\n settle {\n match status 401\n }\n}\nredis %s {\n timeout %s\n}", server.Addr, timeout))
	}
	c := caddytest.Start(t, config("2s"))
	held := c.Hold(t.Context(), "/hold")
	g.wait(t, 1)
	server.Freeze(t)
	c.WaitForOutages(t, 1)
	c.Reload(t, config("3s"))
	c.WaitForOutages(t, 2)
	server.Thaw(t)
	// A refund is lost if Redis still counts as failing.
	caddytest.Eventually(t, "Redis works again for both", func() bool { return strings.Count(c.Logged(), `"Redis works again"`) == 2 })
	c.Until(t, 429) // Redis knows again of the request in flight
	g.pass <- struct{}{}
	if status := <-held; status != 200 {
		t.Errorf("the request in flight ended with %d", status)
	}
	look := func() adminapi.Budgets { return seenKey(t, c, "").Budgets[0] }
	caddytest.EventuallySees(t, "all is given back", look, func(b adminapi.Budgets) bool {
		return b.Limits[0].Remaining == 100 && b.Concurrency.InUse == 0
	})
	c.Reload(t, caddytest.Site("zone api {\n gcra 1 1h\n}"))
	connections := func() string { return server.Client.ClientList(t.Context()).Val() }
	caddytest.EventuallySees(t, "no connection but this one is open", connections, func(all string) bool { return strings.Count(all, "\n") == 1 })
}

// The additional cost of a response is charged where the request was charged. If Redis charged the
// request and has failed since, the local budgets are charged.
func TestSettleInOutage(t *testing.T) {
	caddytest.Long(t)
	t.Parallel()
	g, server := startGate(t), redistest.Start(t)
	c := caddytest.Start(t, gated(g, fmt.Sprintf("zone api {\n cost 10\n token_bucket 1 1000h 100\n fixed_window 200 1000h\n settle {\n cost 30\n }\n}\nredis %s {\n timeout 30s\n}", server.Addr)))
	local := func(bucket, window int) {
		t.Helper()
		want := fmt.Sprintf("[token_bucket 1 1000h 100: %d fixed_window 200 1000h: %d]", bucket, window)
		look := func() adminapi.Key { return seenKey(t, c, "") }
		caddytest.EventuallySees(t, "the local budgets are "+want, look, func(k adminapi.Key) bool {
			return k.Store == "local" && fmt.Sprint(limitsLeft(k)) == want
		})
	}
	outage := 0
	fail := func() {
		t.Helper()
		outage++
		server.Kill(t)
		caddytest.Eventually(t, "Redis fails", func() bool {
			c.Operate(t, 503, "DELETE", keyPath(""), "") // which decides on nothing
			return strings.Count(c.Logged(), `"Redis fails`) == outage
		})
	}
	fail()
	held := c.Hold(t.Context(), "/hold")
	g.wait(t, 1)
	local(90, 190)
	server.Restart(t)
	c.WaitForLog(t, "Redis works again")
	caddytest.EventuallySees(t, "Redis answers", func() string { return seenKey(t, c, "").Store }, func(name string) bool { return name == "" })
	g.pass <- struct{}{}
	<-held
	fail()
	local(70, 170)

	server.Restart(t)
	caddytest.EventuallySees(t, "Redis answers", func() string { return seenKey(t, c, "").Store }, func(name string) bool { return name == "" })
	wantRemaining(t, seenKey(t, c, ""), "token_bucket 1 1000h 100: 100", "fixed_window 200 1000h: 200")
	held = c.Hold(t.Context(), "/hold")
	g.wait(t, 1)
	wantRemaining(t, seenKey(t, c, ""), "token_bucket 1 1000h 100: 90", "fixed_window 200 1000h: 190")
	fail()
	g.pass <- struct{}{}
	<-held
	local(50, 150)
}

// The log says what becomes of requests while Redis fails, and afterwards how long that was
// and what became of how many.
func TestOutageIsLogged(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	handler := "rate_limit /%s {\n zone %[1]s {\n  gcra 100 1h\n }\n redis %s {\n  timeout 30s\n }\n on_store_error %[1]s\n}\n"
	config := "{\n\tadmin {$ADMIN}\n}\n{$SITE}\n"
	for _, mode := range []string{"local", "allow", "deny"} {
		config += fmt.Sprintf(handler, mode, server.Addr)
	}
	c := caddytest.Start(t, config+"respond ok\n")
	server.Kill(t)
	caddytest.Flood(t, 20, 4, "/local", c)
	c.WaitForLog(t, `"Redis fails, and is not asked until it works again: meanwhile requests are decided by local budgets, allowed or denied with 503, as on_store_error of their handler says"`)
	for path, n := range map[string]int{"/local": 3, "/allow": 4, "/deny": 5} {
		caddytest.Flood(t, n, 1, path, c)
	}
	c.Reload(t, strings.Replace(fmt.Sprintf("{\n\tadmin {$ADMIN}\n}\n{$SITE}\n"+handler, "deny", server.Addr), "zone", "# another\n zone", 1)+"respond ok\n")
	c.WaitForLog(t, `"Redis did not pass the check at the start: until it does, requests are denied with 503"`)
	server.Restart(t)
	c.WaitForLog(t, "Redis works again")
	_, line, _ := strings.Cut(c.Logged(), `"msg":"Redis works again"`)
	line, _, _ = strings.Cut(line, "\n")
	var said struct {
		Address string
		Outage  float64
		Local   int `json:"requests_decided_locally"`
		Allowed int `json:"requests_passed_unlimited"`
		Denied  int `json:"requests_answered_503"`
	}
	if err := json.Unmarshal([]byte(`{"msg":""`+line), &said); err != nil {
		t.Fatal(err)
	}
	if said.Address != server.Addr || said.Outage <= 0 || said.Local < 3 || said.Local > 20+3 || said.Allowed != 4 || said.Denied != 5 {
		t.Errorf("%+v", said)
	}
	server.Kill(t)
	caddytest.Flood(t, 8, 1, "/deny", c)
	c.WaitForLog(t, `"Redis fails, and is not asked until it works again: meanwhile requests are denied with 503"`)
}

// Outages are in the log that has the messages of this module, and not only in the default log, which
// leaves them out then.
func TestOutageInAnotherLog(t *testing.T) {
	t.Parallel()
	caddytest.Long(t)
	server := redistest.Start(t)
	config := caddytest.Site(fmt.Sprintf("zone api {\n gcra 100 1h\n}\nredis %s {\n timeout 30s\n}\non_store_error deny", server.Addr))
	config = strings.Replace(config, "admin {$ADMIN}", "admin {$ADMIN}\n\tlog ours {\n\t\toutput stdout\n\t\tinclude http.handlers.rate_limit\n\t}", 1)
	c := caddytest.Start(t, config)
	c.Get(t, "/").Want(t, 200)
	server.Kill(t)
	c.WaitForOutages(t, 1)
	server.Restart(t)
	c.WaitForLog(t, "Redis works again")
}
