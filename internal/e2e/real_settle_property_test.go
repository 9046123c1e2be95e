//go:build real

package e2e

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/relay"
)

// Requests and responses can end in any way, and Redis fails meanwhile. The charge is at least the sum of the responses,
// without the costs above the reservations. It is at most the sum that all sent requests can have asked for.
//
// Simulated: TestFaults.
func TestRealSettleAddsUpInOutages(t *testing.T) {
	s := newSettling(t)
	s.fails = true
	link := caddytest.StartLink(t, redistest.Start(t).Addr)
	upstream := faulty(t)
	site := func(timeout string) string {
		return s.config("redis "+link.Addr+" {\n timeout "+timeout+"\n}\non_store_error deny", upstream)
	}
	c := caddytest.Start(t, site("300ms"))
	var end atomic.Bool
	var cuts sync.WaitGroup
	cuts.Go(func() {
		random := rand.New(rand.NewPCG(s.seed, 2))
		for !end.Load() {
			time.Sleep(time.Duration(20+random.IntN(80)) * time.Millisecond) // Redis works for a while
			var faults [2]relay.Fault
			faults[random.IntN(2)] = relay.Fault{Delay: time.Duration(random.IntN(10)) * time.Millisecond, Reset: true}
			link.Set(faults[0], faults[1])
			time.Sleep(time.Duration(random.IntN(30)) * time.Millisecond) // it fails for a while
			link.Set(relay.Fault{}, relay.Fault{})
		}
	})
	sums := s.play(t, c)
	end.Store(true)
	cuts.Wait()
	caddytest.WaitForMetric(t, c, "caddy_rate_limit_store_state 0")
	if len(caddytest.Metrics(t, c, "caddy_rate_limit_store_errors_total")) == 0 {
		t.Error("nothing failed")
	}
	c.Reload(t, site("30s")) // a slow machine fails no check
	s.check(t, c, sums)
}
