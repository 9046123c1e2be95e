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

// The clock of Redis steps ahead and back while requests come: budgets refill by what it goes
// ahead, and go on from the new time where it goes back. The remaining events can be taken
// meanwhile, and no wait is longer than a budget takes to refill. Nothing fails.
//
// Simulated: TestFaults.
func TestRealClockOfRedisSteps(t *testing.T) {
	server, clock := redistest.StartClock(t)
	const limit, day = 100, 24 * time.Hour
	algorithms := []string{"fixed_window", "sliding_log", "leaky_bucket", "token_bucket", "gcra"}
	config := ""
	for _, name := range algorithms {
		config += fmt.Sprintf("zone %s {\n match path /%[1]s\n %[1]s %d 1d\n}\n", name, limit)
	}
	config = caddytest.Site(config + fmt.Sprintf("redis %s {\n timeout 30s\n}\non_store_error deny", server.Addr))
	caddys := []*caddytest.Caddy{caddytest.StartProcess(t, config), caddytest.StartProcess(t, config)}
	var loads []*load
	for _, name := range algorithms {
		loads = append(loads, startLoad(t, 2, "/"+name, caddys...))
	}
	for _, l := range loads { // the first step comes while there is room
		caddytest.EventuallySees(t, "some are admitted", l.soFar, func(y tally) bool { return y.statuses[200] >= limit/4 })
	}
	steps := []struct {
		ahead    time.Duration
		admitted int // in all, when no more are
		evenly   int // the same of those that refill evenly, by one in a quarter of an hour
	}{
		{-2 * time.Hour, limit, limit},
		{0, limit, limit + 8},
		{-10 * time.Minute, limit, limit + 8},
		{day + time.Minute, 2 * limit, 2*limit + 8},
		{time.Minute, 2 * limit, 2*limit + 8},
		{day + time.Minute, 3 * limit, 3*limit + 8},
		{1000 * time.Hour, 4 * limit, 4*limit + 8},
	}
	backward, shown := 0, time.Duration(0)
	for i, step := range steps {
		clock.Set(t, step.ahead)
		if step.ahead < shown {
			backward++
		}
		shown = step.ahead
		time.Sleep(1100 * time.Millisecond) // until what was denied before is forgotten
		for n, name := range algorithms {
			admitted := func() int { return loads[n].soFar().statuses[200] }
			want := step.admitted
			if name == "token_bucket" || name == "gcra" {
				want = step.evenly
			}
			caddytest.EventuallySees(t, fmt.Sprintf("%s has admitted %d, at step %d", name, want, i), admitted, func(n int) bool { return n >= want })
			for range 3 {
				for _, c := range caddys {
					r := c.Get(t, "/"+name)
					var retry int
					_, err := fmt.Sscan(r.Field("Retry-After"), &retry)
					if r.StatusCode != 429 || err != nil || time.Duration(retry)*time.Second > day+time.Second {
						t.Errorf("step %d, %s: status %d, Retry-After %q, want 429 and at most a day", i, name, r.StatusCode, r.Field("Retry-After"))
					}
				}
			}
			if got := admitted(); got != want {
				t.Errorf("step %d, to %v, %s: %d admitted in all, want %d", i, step.ahead, name, got, want)
			}
		}
	}
	for _, l := range loads {
		l.stop()
		l.only(t, 200, 429)
	}
	for _, c := range caddys {
		caddytest.WaitForMetric(t, c, fmt.Sprintf("caddy_rate_limit_clock_steps_total %d", backward))
		if n := strings.Count(c.Logged(), "the clock of Redis stepped back"); n != backward {
			t.Errorf("%d steps back logged, want %d", n, backward)
		}
	}
}
