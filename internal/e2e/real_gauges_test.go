//go:build real

package e2e

import (
	"fmt"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// A request that has taken its slot in Redis counts until it ends, also if Redis fails meanwhile.
//
// Simulated: TestGaugesOfRequests, TestFailoverKnowsItsOwnSlots.
func TestRealGaugesInOutage(t *testing.T) {
	server, g := redistest.Start(t), startGate(t)
	c := caddytest.Start(t, gated(g, fmt.Sprintf("zone api {\n concurrency 3\n}\nredis %s {\n timeout 2s\n}\n", server.Addr)))
	one := c.Hold(t.Context(), "/hold")
	g.wait(t, 1)
	server.Kill(t)
	caddytest.EventuallySees(t, "Redis fails", func() adminapi.Redis {
		c.Get(t, "/")
		return c.Status(t).Redis[0]
	}, func(r adminapi.Redis) bool { return r.State == "down" })
	two := c.Hold(t.Context(), "/hold")
	g.wait(t, 2)
	caddytest.WaitForMetric(t, c, `caddy_rate_limit_in_flight{zone="api"} 2`)
	g.pass <- struct{}{}
	g.pass <- struct{}{}
	<-one
	<-two
	caddytest.WaitForMetric(t, c, `caddy_rate_limit_in_flight{zone="api"} 0`)
}
