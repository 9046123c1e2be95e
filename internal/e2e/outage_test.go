package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// While Redis can't be reached, on_store_error decides on requests.
func TestOnStoreError(t *testing.T) {
	t.Parallel()
	address := "127.0.0.1:" + redistest.FreePort(t)
	config := func(zone, option string) string {
		return caddytest.Site(fmt.Sprintf("zone %s {\n token_bucket 1 1h 5\n}\nredis redis://user:SECRET@%s\n%s", zone, address, option))
	}
	c := caddytest.Start(t, config("first", ""))
	c.WaitForLog(t, "Redis failed its first check: until it passes one, on_store_error decides")
	for _, test := range []struct {
		zone, option string
		statuses     string // of seven requests
	}{
		{"default", "", "200 200 200 200 200 429 429"},
		{"local", "on_store_error local", "200 200 200 200 200 429 429"},
		{"half", "on_store_error local 1/2", "200 200 429 429 429 429 429"},
		{"allow", "on_store_error allow", "200 200 200 200 200 200 200"},
		{"deny", "on_store_error deny", "503 503 503 503 503 503 503"},
	} {
		t.Run(test.zone, func(t *testing.T) {
			c.Reload(t, config(test.zone, test.option))
			var statuses []string
			for range 7 {
				r := c.Get(t, "/")
				statuses = append(statuses, fmt.Sprint(r.StatusCode))
				limited := r.StatusCode == 429 || strings.Contains(test.statuses, "429")
				if (r.Field("RateLimit") != "") != limited {
					t.Errorf("status %d with RateLimit %q", r.StatusCode, r.Field("RateLimit"))
				}
				if r.StatusCode == 503 {
					r.Want(t, 503, "Retry-After", "1")
				}
			}
			if got := strings.Join(statuses, " "); got != test.statuses {
				t.Errorf("statuses %s, want %s", got, test.statuses)
			}
		})
	}
	c.Get(t, "/ready").Want(t, 200) // outside of the zone
	c.WaitForLog(t, "Redis is failing, and Caddy won't ask it until it recovers")
	caddytest.WaitForMetric(t, c, "caddy_rate_limit_store_state 1")
	if log := c.Logged(); strings.Contains(log, "SECRET") {
		t.Error("the password is in the log")
	}
}

// A user with a wrong password, or without a permission that the scripts need, is found before any request is half charged.
// Until Redis accepts the user, on_store_error decides. The log says why once per failed check, and nothing shows
// the password.
func TestRedisWithoutPermission(t *testing.T) {
	t.Parallel()
	for reason, test := range map[string]struct{ denies, accepts []string }{
		"WRONGPASS": {[]string{">right"}, []string{">" + caddytest.Secret}},
		"run ACL LOG as an administrator: the user needs ~caddy_rl:* and": {[]string{">" + caddytest.Secret, "-setrange"}, []string{"+setrange"}},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			user := func(rules ...string) {
				t.Helper()
				errtest.None(t, server.Client.ACLSetUser(t.Context(), "limiter", rules...).Err())
			}
			user(append([]string{"on", "~*", "+@all"}, test.denies...)...)
			c := caddytest.Start(t, caddytest.Site(fmt.Sprintf("zone api {\n gcra 5 1000h\n sliding_log 5 1000h\n}\nredis %s {\n username limiter\n password {env.TEST_SECRET}\n timeout 30s\n}\non_store_error deny", server.Addr)))
			const start, outage = "Redis failed its first check: until it passes one, on_store_error decides", "Redis is failing, and Caddy won't ask it until it recovers"
			c.WaitForLog(t, start)
			c.WaitForLog(t, outage)
			caddytest.WaitForMetric(t, c, "caddy_rate_limit_store_state 1")
			if statuses := caddytest.Flood(t, 100, 8, "/", c); statuses[503] != 100 {
				t.Errorf("statuses %v", statuses)
			}
			for text, want := range map[string]int{start: 1, outage: 1, reason: 2} {
				if n := c.Times(t, text); n != want {
					t.Errorf("the log says %q %d times, want %d", text, n, want)
				}
			}
			if keys := server.Client.Keys(t.Context(), "*:api:*").Val(); len(keys) > 0 {
				t.Errorf("charged: %q", keys)
			}
			shown, err := c.Do("GET", "http://"+c.Admin+"/config/", "")
			if err != nil || strings.Contains(shown.Text, caddytest.Secret) || !strings.Contains(shown.Text, `"password":"{env.TEST_SECRET}"`) {
				t.Errorf("%v, the admin API shows %s", err, shown.Text)
			}
			user(test.accepts...)
			c.WaitForLog(t, "Redis works again")
			if statuses := caddytest.Flood(t, 10, 2, "/", c); statuses[200] != 5 || statuses[429] != 5 {
				t.Errorf("afterwards: %v", statuses)
			}
			if strings.Contains(c.Logged(), caddytest.Secret) {
				t.Error("the password is in the log")
			}
		})
	}
}

func TestRedisThatEvicts(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	c := caddytest.Start(t, caddytest.Site(fmt.Sprintf("zone api {\n gcra 1 1h 1\n}\nredis %s", server.Addr)))
	c.WaitForLog(t, "set maxmemory-policy noeviction")
}

// The log says what becomes of requests while Redis fails, and afterwards how long that was
// and what became of how many.
func TestOutageIsLogged(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	handler := "rate_limit /%s {\n zone %[1]s {\n  gcra 100 1h\n }\n redis %s {\n  timeout 30s\n }\n on_store_error %[1]s\n}\n"
	// The messages of this module are in a separate log, so the default log leaves them out.
	config := "{\n\tadmin {$ADMIN}\n\tlog ours {\n\t\toutput stdout\n\t\tinclude http.handlers.rate_limit\n\t}\n}\n{$SITE}\n"
	for _, mode := range []string{"local", "allow", "deny"} {
		config += fmt.Sprintf(handler, mode, server.Addr)
	}
	c := caddytest.Start(t, config+"respond ok\n")
	server.Kill(t)
	caddytest.Flood(t, 20, 4, "/local", c)
	c.WaitForLog(t, `"Redis is failing, and Caddy won't ask it until it recovers: meanwhile on_store_error decides`)
	for path, n := range map[string]int{"/local": 3, "/allow": 4, "/deny": 5} {
		caddytest.Flood(t, n, 1, path, c)
	}
	c.Reload(t, strings.Replace(fmt.Sprintf("{\n\tadmin {$ADMIN}\n}\n{$SITE}\n"+handler, "deny", server.Addr), "zone", "# another\n zone", 1)+"respond ok\n")
	c.WaitForLog(t, `"Redis failed its first check: until it passes one, on_store_error decides`)
	server.Restart(t)
	c.WaitForLog(t, "Redis works again")
	line := regexp.MustCompile(`\{"level.*"msg":"Redis works again".*`).FindString(c.Logged())
	var said struct {
		Level, Address string
		Outage         float64
		Local          int `json:"requests_decided_locally"`
		Allowed        int `json:"requests_passed_unlimited"`
		Denied         int `json:"requests_answered_503"`
	}
	errtest.None(t, json.Unmarshal([]byte(line), &said))
	if said.Level != "warn" || said.Address != server.Addr || said.Outage <= 0 || said.Local < 3 || said.Local > 20+3 || said.Allowed != 4 || said.Denied != 5 {
		t.Errorf("%+v", said)
	}
}

// A charge that can't be given back is reported, and nothing else happens.
func TestDelayRefundFails(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := caddytest.Start(t, caddytest.Site(fmt.Sprintf("zone api {\n gcra 1 1h 1\n delay 10h\n}\nredis %s {\n timeout 30s\n}", server.Addr)))
	c.Get(t, "/").Want(t, 200)
	held, leave := context.WithCancel(context.Background())
	done := c.Hold(held, "/")
	caddytest.WaitForMetric(t, c, `caddy_rate_limit_requests_total{outcome="delayed",zone="api"} 1`)
	server.Client.ShutdownNoSave(context.Background())
	leave()
	if status := <-done; status != 0 {
		t.Errorf("the request was answered with status %d", status)
	}
	c.WaitForLog(t, "correcting what a request was charged, giving back its slot, or claiming a share for notify")
}
