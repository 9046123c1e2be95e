//go:build real

package limiter_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
)

// All combinations of options hold their promises while Redis is killed and starts again.
//
// Simulated: TestFaults, TestCombinations.
func TestRealCombinationsInOutages(t *testing.T) {
	server, before := redistest.Start(t), runtime.NumGoroutine()
	eachCombo(t, seedtest.Cases(t, uint64(9)), func(seed uint64) bool {
		mode := []string{"local", "allow", "deny"}[seed%3]
		options := fmt.Sprintf(`,"redis":{"address":[%q],"timeout":"300ms"},"on_store_error":%q`, server.Addr, mode)
		return runCombo(t, seed, options, func() {
			server.Kill(t)
			time.Sleep(10 * time.Millisecond) // the outage lasts, so that requests fall into it
			server.Restart(t)
		})
	})
	caddytest.Eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before })
}
