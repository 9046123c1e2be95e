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

// Several instances share one limit in a cluster, also over zones whose keys are on different
// nodes. While one node is gone, the keys of others are counted as before.
//
// Simulated: TestFaults.
func TestRealRedisCluster(t *testing.T) {
	cluster := redistest.StartCluster(t, "--cluster-require-full-coverage", "no", "--cluster-replica-no-failover", "yes")
	config := caddytest.Site(fmt.Sprintf(`zone client {
		key client-{header.Client}
		token_bucket 1 1h 50
	}
	zone path {
		key path-{path}
		fixed_window 60 1h
	}
	redis %s {
		cluster
		timeout 5s
	}
	on_store_error deny`, strings.Join(cluster.Addrs()[:2], " ")))
	one, other := caddytest.Start(t, config), caddytest.Start(t, config)
	if statuses := caddytest.Flood(t, 150, 16, "/a", one, other); statuses[200] != 50 || statuses[429] != 100 {
		t.Errorf("statuses %v, want 50 times 200", statuses)
	}

	dying := cluster.Nodes[0]
	name := func(prefix string, gone bool) string {
		for n := 0; ; n++ {
			if name := fmt.Sprint(prefix, n); gone == (cluster.Owner(t, cluster.Nodes[0], cluster.Slot(t, name)) == dying) {
				return name
			}
		}
	}
	client := strings.TrimPrefix(name("client-", false), "client-")
	lost, kept := strings.TrimPrefix(name("path-/", true), "path-"), strings.TrimPrefix(name("path-/", false), "path-")
	one.Get(t, lost, "Client", client).Want(t, 200, "RateLimit", `"client";r=49;t=3600, "path";r=59;t=3600`)
	dying.Kill(t)
	for range 10 {
		one.Get(t, lost, "Client", client).Want(t, 503)
	}
	one.WaitForLog(t, "Redis fails")
	caddytest.WaitForMetric(t, one, "caddy_rate_limit_store_state 1")
	one.Get(t, kept, "Client", client).Want(t, 200, "RateLimit", `"client";r=48;t=3600, "path";r=59;t=3600`)
	other.Get(t, kept, "Client", client).Want(t, 200, "RateLimit", `"client";r=47;t=3600, "path";r=58;t=3600`)
	dying.Restart(t)
	one.WaitForLog(t, "Redis works again")
	one.Get(t, lost, "Client", client).Want(t, 200)
}
