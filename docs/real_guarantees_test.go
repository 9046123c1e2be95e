//go:build real

package docs_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/relay"
)

// A ban in Redis doesn't apply while Redis fails, once the denial is no longer remembered. It
// applies again afterwards.
//
// Simulated: TestFailoverForgetsBan.
func TestRealBanInOutage(t *testing.T) {
	server := redistest.Start(t)
	link := caddytest.StartLink(t, server.Addr)
	c := caddytest.Start(t, caddytest.Site(fmt.Sprintf("zone api {\n fixed_window 2 1h\n ban 1h\n}\nredis %s", link.Addr)))
	for _, status := range []int{200, 200, 429, 429} {
		c.Get(t, "/").Want(t, status)
	}
	link.Set(relay.Fault{Reset: true}, relay.Fault{})
	caddytest.Eventually(t, "the local budget decides", func() bool { return c.Get(t, "/").StatusCode == 200 })
	caddytest.Eventually(t, "Redis is not asked", func() bool {
		c.Get(t, "/")
		return strings.Contains(c.Logged(), "Redis fails, and is not asked until it works again")
	})
	link.Set(relay.Fault{}, relay.Fault{})
	c.WaitForLog(t, "Redis works again")
	r := c.Get(t, "/")
	r.Want(t, 429)
	r.WantWait(t, 3600)
}
