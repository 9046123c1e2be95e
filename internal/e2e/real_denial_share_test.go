//go:build real

package e2e

import (
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// The log says which zone denies a share of its requests.
//
// Simulated: TestWatchShares, TestShareCounts.
func TestRealShareMessages(t *testing.T) {
	c := caddytest.Start(t, caddytest.Site("zone api {\n fixed_window 1 1000h\n match not path /shadow\n}\nzone tried {\n fixed_window 1 1000h\n match path /shadow\n shadow\n}\n"))
	for range 20 {
		c.Get(t, "/")
		c.Get(t, "/shadow").Want(t, 200)
	}
	c.WaitForLog(t, `"msg":"a zone denies a share of its requests: caddy rate-limit top names the keys","zone":"api","denied":`)
	c.WaitForLog(t, `"msg":"a zone in shadow mode would deny a share of its requests","zone":"tried","denied":`)
}
