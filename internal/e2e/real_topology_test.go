//go:build real

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// Each of two Caddys goes on with the new primary when Sentinels have made one. No request waits
// for longer than the timeout.
//
// Simulated: TestFaults.
func TestRealRedisBySentinel(t *testing.T) {
	const password = "SECRET"
	trio := redistest.StartTrio(t, password)
	config := caddytest.Site(fmt.Sprintf(`zone api {
		fixed_window 100000 100h
	}
	redis %s {
		master_name %s
		sentinel_password {env.SENTINEL_PASSWORD}
		timeout 2s
	}
	on_store_error deny`, strings.Join(trio.Addrs(), " "), redistest.Master))
	caddys := []*caddytest.Caddy{caddytest.StartProcess(t, config, "SENTINEL_PASSWORD="+password), caddytest.StartProcess(t, config, "SENTINEL_PASSWORD="+password)}
	remaining := func(c *caddytest.Caddy) (n int) {
		t.Helper()
		began := time.Now()
		r := c.Get(t, "/")
		if waited := time.Since(began); waited > 2*time.Second+slack {
			t.Errorf("a request waited for %v", waited)
		}
		if r.StatusCode != 200 {
			return 0
		}
		if _, err := fmt.Sscanf(r.Field("RateLimit"), `"api";r=%d;`, &n); err != nil {
			t.Fatal(err, r.Field("RateLimit"))
		}
		return n
	}
	for i, c := range append(caddys, caddys...) {
		if n := remaining(c); n != 99999-i {
			t.Errorf("request %d: %d remaining, want %d", i+1, n, 99999-i)
		}
	}
	old, next := trio.Roles(t)
	began := time.Now()
	old.Kill(t)
	left := caddytest.EventuallySees(t, "both have more than 0 remaining", func() [2]int {
		return [2]int{remaining(caddys[0]), remaining(caddys[1])}
	}, func(left [2]int) bool { return left[0] > 0 && left[1] > 0 })
	one, other := left[0], left[1]
	if other != one-1 {
		t.Errorf("%d and %d remaining: the two don't share a budget", one, other)
	}
	t.Logf("both recovered after %v", time.Since(began).Round(time.Millisecond))
	if keys := next.Client.Keys(t.Context(), "caddy_rl:*api*").Val(); len(keys) != 1 {
		t.Errorf("keys on the new primary: %q", keys)
	}
	for _, c := range caddys {
		c.WaitForLog(t, "Redis works again")
		if strings.Contains(c.Logged(), password) {
			t.Error("the password of the Sentinels is in the log")
		}
	}
}
