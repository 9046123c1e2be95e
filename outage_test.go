package ratelimit

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore/redistest"
)

// What becomes of requests while Redis can't be reached is as on_store_error says.
func TestOnStoreError(t *testing.T) {
	address := "127.0.0.1:" + redistest.FreePort(t)
	config := func(zone, option string) string {
		return site(fmt.Sprintf("zone %s {\n token_bucket 1 1h 5\n}\nredis redis://user:SECRET@%s\n%s", zone, address, option))
	}
	c := startCaddy(t, config("first", ""))
	c.waitForLog(t, "Redis does not answer")
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
			c.reload(t, config(test.zone, test.option))
			var statuses []string
			for range 7 {
				r := c.get(t, "/")
				statuses = append(statuses, fmt.Sprint(r.StatusCode))
				limited := r.StatusCode == 429 || strings.Contains(test.statuses, "429")
				if (r.field("RateLimit") != "") != limited {
					t.Errorf("status %d with RateLimit %q", r.StatusCode, r.field("RateLimit"))
				}
				if r.StatusCode == 503 {
					r.want(t, 503, "Retry-After", "1")
				}
			}
			if got := strings.Join(statuses, " "); got != test.statuses {
				t.Errorf("statuses %s, want %s", got, test.statuses)
			}
		})
	}
	c.get(t, "/ready").want(t, 200) // outside of the zone
	c.waitForLog(t, "Redis fails, and is not asked until it works again")
	waitForMetric(t, c, "caddy_rate_limit_store_state 1")
	if log := c.logged(); strings.Contains(log, "SECRET") {
		t.Error("the password is in the log")
	}
}

// A Redis that hangs makes the first few requests wait, and no others; what it comes
// to later, when nobody waits for it, charges nothing. When it works again, it
// decides again.
func TestRedisHangs(t *testing.T) {
	server := redistest.Start(t)
	const timeout = 2 * time.Second
	c := startCaddy(t, site(fmt.Sprintf("zone api {\n token_bucket 1 1000h 100\n}\nredis %s {\n timeout %v\n}\n", server.Addr, timeout)))
	c.get(t, "/").want(t, 200, "RateLimit", `"api";r=99;t=3600000`)
	server.Freeze(t)
	if statuses := flood(t, 150, 16, "/", c); statuses[200] != 100 || statuses[429] != 50 {
		t.Errorf("while Redis hangs: %v, want a budget of this process to decide", statuses)
	}
	c.waitForLog(t, "Redis fails, and is not asked until it works again")
	began := time.Now()
	for range 50 {
		c.get(t, "/").want(t, 429)
	}
	if took := time.Since(began); took > timeout {
		t.Errorf("50 requests took %v: some waited for Redis", took)
	}
	time.Sleep(timeout) // for what was sent and will be come to now
	server.Thaw(t)
	c.waitForLog(t, "Redis works again")
	waitForMetric(t, c, "caddy_rate_limit_store_state 0")
	if r := c.get(t, "/"); r.StatusCode != 200 || !strings.HasPrefix(r.field("RateLimit"), `"api";r=98;`) {
		t.Errorf("afterwards: %d %s, want nothing charged meanwhile", r.StatusCode, r.field("RateLimit"))
	}
}

// A Redis that is killed and starts again without its data begins afresh.
func TestRedisRestarts(t *testing.T) {
	server := redistest.Start(t)
	c := startCaddy(t, site(fmt.Sprintf("zone api {\n key {header.Key}\n gcra 1 1h 2\n}\nredis %s\non_store_error deny", server.Addr)))
	c.get(t, "/").want(t, 200)
	c.get(t, "/").want(t, 200)
	c.get(t, "/").want(t, 429)
	server.Kill(t)
	for range 10 {
		c.get(t, "/", "Key", "another").want(t, 503) // what was refused may be remembered
	}
	server.Restart(t)
	c.waitForLog(t, "Redis works again")
	for deadline := time.Now().Add(10 * time.Second); c.get(t, "/").StatusCode != 200; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not begin afresh")
		}
	}
}

// A user who may not do something that the scripts do is found out before any
// request is half charged.
func TestRedisWithoutPermission(t *testing.T) {
	server := redistest.Start(t)
	server.Client.ACLSetUser(t.Context(), "limiter", "on", ">secret", "~*", "+@all", "-rpush")
	c := startCaddy(t, site(fmt.Sprintf("zone api {\n gcra 1 1h 1\n sliding_log 2 1h\n}\nredis %s {\n username limiter\n password secret\n}", server.Addr)))
	c.waitForLog(t, "does not do all that it is asked for")
}

func TestRedisThatEvicts(t *testing.T) {
	server := redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	c := startCaddy(t, site(fmt.Sprintf("zone api {\n gcra 1 1h 1\n}\nredis %s", server.Addr)))
	c.waitForLog(t, "set maxmemory-policy noeviction")
}
