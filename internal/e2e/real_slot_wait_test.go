//go:build real

package e2e

import (
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// Redis fails while requests wait: on_store_error decides.
//
// Simulated: TestSlotLineWhileRedisFails.
func TestRealWaitForSlotInOutage(t *testing.T) {
	for _, test := range []struct {
		mode string
		want int
	}{{"local", 200}, {"allow", 200}, {"deny", 503}} {
		t.Run(test.mode, func(t *testing.T) {
			t.Parallel()
			g := startGate(t)
			server := redistest.Start(t)
			c := caddytest.Start(t, gated(g, "zone api {\n concurrency 1\n delay 1h\n}\non_store_error "+test.mode+"\nredis "+server.Addr+" {\n timeout 5s\n}\n"))
			held := c.Hold(t.Context(), "/hold")
			g.wait(t, 1)
			var waiting []<-chan int
			for i := range 2 {
				waiting = append(waiting, c.Hold(t.Context(), "/"))
				c.WaitForWaiters(t, i+1)
			}
			server.Kill(t)
			if test.mode == "local" { // which counts the request in flight
				c.WaitForLog(t, "Redis fails")
				c.WaitForWaiters(t, 2)
				g.pass <- struct{}{}
				<-held
			}
			for _, done := range waiting {
				if status := <-done; status != test.want {
					t.Errorf("status %d, want %d", status, test.want)
				}
			}
			if test.mode != "local" {
				g.pass <- struct{}{}
				<-held
			}
		})
	}
}
