//go:build real

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// Requests in flight keep their slots in Redis, and give them back there. Meanwhile other options
// of Redis were loaded, and Redis failed for a while.
//
// Simulated: TestReloadWhileRedisHangs.
func TestRealReloadInOutage(t *testing.T) {
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
//
// Simulated: TestFailoverGivesBackWhereItCharged, TestFaults.
func TestRealSettleInOutage(t *testing.T) {
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
