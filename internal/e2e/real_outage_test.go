//go:build real

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// A Redis that is killed and starts again with its data continues with the same budgets, because each
// answered charge was on disk.
//
// Simulated: TestFaults.
func TestRealRedisRestartsWithData(t *testing.T) {
	const limit = 400
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	config := caddytest.Site(fmt.Sprintf("zone api {\n gcra %d 1000d\n fixed_window %[1]d 1000d\n sliding_log %[1]d 1000d\n}\nredis %s {\n timeout 30s\n}\non_store_error deny", limit, server.Addr))
	caddys := []*caddytest.Caddy{caddytest.Start(t, config), caddytest.Start(t, config)}
	requests := startLoad(t, 8, "/", caddys...)
	caddytest.EventuallySees(t, "some pass", requests.soFar, func(y tally) bool { return y.statuses[200] > limit/4 })
	server.Kill(t)
	caddytest.EventuallySees(t, "requests fail", requests.soFar, func(y tally) bool { return y.statuses[503] > 50 })
	server.Restart(t)
	began := time.Now()
	for _, c := range caddys {
		c.WaitForLog(t, "Redis works again")
	}
	back := time.Since(began)
	requests.stop()
	requests.only(t, 200, 429, 503)
	after := caddytest.Flood(t, limit+50, 8, "/", caddys...)
	admitted := requests.statuses[200] + after[200]
	if inFlight := 8; admitted > limit || admitted < limit-inFlight || after[429] < 50 {
		t.Errorf("%d admitted, want %d, or up to %d fewer; the last %v", admitted, limit, inFlight, after)
	}
	t.Logf("slowest %v, works again after %v, charged and not told %d", requests.slowest.Round(time.Millisecond), back.Round(time.Millisecond), limit-admitted)
}

// While Redis loads its data it isn't asked, and then it decides by them.
//
// Simulated: TestFaults.
func TestRealRedisThatLoads(t *testing.T) {
	server := redistest.Start(t, "--key-load-delay", "500", "--loading-process-events-interval-bytes", "1024")
	c := caddytest.Start(t, caddytest.Site(fmt.Sprintf("zone api {\n gcra 100 1000d\n}\nredis %s {\n timeout 30s\n}\non_store_error deny", server.Addr)))
	if before := caddytest.Flood(t, 40, 8, "/", c); before[200] != 40 {
		t.Errorf("before: %v", before)
	}
	for _, command := range [][]any{{"EVAL", "for i = 1, 2000 do redis.call('SET', i, i) end return 1", 0}, {"SAVE"}} {
		errtest.None(t, server.Client.Do(t.Context(), command...).Err())
	}
	server.Kill(t)
	requests := startLoad(t, 8, "/", c)
	c.WaitForLog(t, "Redis is failing, and Caddy won't ask it until it recovers")
	server.Restart(t)
	began := time.Now()
	if err := server.Client.Get(t.Context(), "1").Err(); err == nil || !strings.HasPrefix(err.Error(), "LOADING") {
		t.Fatalf("it has loaded already: %v", err)
	}
	c.WaitForLog(t, "Redis works again")
	took := time.Since(began)
	requests.stop()
	requests.only(t, 200, 429, 503)
	after := caddytest.Flood(t, 150, 8, "/", c)
	if admitted := requests.statuses[200] + after[200]; admitted != 60 || after[429] < 90 {
		t.Errorf("%d admitted afterwards, want the 60 that were left", admitted)
	}
	t.Logf("slowest %v, decides again after %v of loading", requests.slowest.Round(time.Millisecond), took.Round(time.Millisecond))
}
