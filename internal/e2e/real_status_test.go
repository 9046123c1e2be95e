//go:build real

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// A cluster is partly down while some of its nodes fail, and down while all do. Each node has its own events.
//
// Simulated: TestStateOfCluster, TestEventsOfTheStore.
func TestRealStatusOfCluster(t *testing.T) {
	cluster := redistest.StartCluster(t, "--cluster-require-full-coverage", "no")
	cluster.KeepMasters(t)
	c := caddytest.StartProcess(t, onEvents(caddytest.Site(fmt.Sprintf("zone api {\n key {query.key}\n gcra 100 1h\n}\nredis %s {\n cluster\n timeout 5s\n}\n",
		strings.Join(cluster.Addrs(), " "))), "test_record"))
	wait := func(state string, failing int) {
		t.Helper()
		v := caddytest.EventuallySees(t, "the cluster is "+state, func() adminapi.Redis {
			for key := range 32 {
				c.Get(t, fmt.Sprint("/?key=", key))
			}
			return c.Status(t).Redis[0]
		}, func(v adminapi.Redis) bool { return v.State == state && v.FailingNodes == failing })
		if (v.Error == "") != (failing == 0) {
			t.Errorf("%s with the failure %q", state, v.Error)
		}
	}
	wait("up", 0)
	masters := slices.Clone(cluster.Nodes[:3])
	masters[0].Kill(t)
	wait("partly_down", 1)
	waitForEvent(t, c, caddytest.EventDown, map[string]any{"address": masters[0].Addr})
	if all := eventsOf(t, c); len(all) != 1 {
		t.Errorf("events %v, want one about the node that fails", all)
	}
	masters[1].Kill(t)
	masters[2].Kill(t)
	wait("down", 3)
}
