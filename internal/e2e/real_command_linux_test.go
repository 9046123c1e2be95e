//go:build real

package e2e

import (
	"syscall"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// A Caddy that hangs doesn't keep a command waiting for ever.
//
// Simulated: TestPatience.
func TestRealCommandHangingCaddy(t *testing.T) {
	c := caddytest.StartProcess(t, commandSite(""))
	if err := c.Process.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	c.RateLimit(t, "ban", "api", "k").Fails(t, 1, "no Caddy answers at "+c.Admin+" (no answer within 10s, so it is unknown whether a change is made)")
	if err := c.Process.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}
