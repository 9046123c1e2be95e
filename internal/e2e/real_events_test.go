//go:build real

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// A node of a cluster has its own events.
//
// Simulated: TestFaults, TestEventsOfTheStore.
func TestRealEventsOfANode(t *testing.T) {
	cluster := redistest.StartCluster(t, "--cluster-require-full-coverage", "no", "--cluster-replica-no-failover", "yes")
	c := caddytest.Start(t, onEvents(caddytest.Site(fmt.Sprintf("zone api {\n key {path}\n gcra 1000 1h\n}\nredis %s {\n cluster\n timeout 2s\n}", strings.Join(cluster.Addrs(), " "))), "test_record"))
	ask := func() {
		for n := range 30 {
			c.Get(t, fmt.Sprint("/", n))
		}
	}
	ask()
	dying := cluster.Nodes[1]
	dying.Kill(t)
	caddytest.Eventually(t, "the node fails", func() bool {
		ask()
		return strings.Contains(c.Logged(), `"Redis fails, and is not asked`)
	})
	waitForEvent(t, c, caddytest.EventDown, map[string]any{"address": dying.Addr})
	dying.Restart(t)
	waitForEvent(t, c, caddytest.EventUp, map[string]any{"address": dying.Addr})
	for _, e := range eventsOf(t, c) {
		if e.Data["address"] != dying.Addr {
			t.Errorf("the event %s is about %v", e.Name, e.Data["address"])
		}
	}
}
