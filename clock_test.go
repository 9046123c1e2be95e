package ratelimit

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore/redistest"
)

// The clock of Redis steps ahead and back while requests come: budgets refill by what
// it has gone past the latest time it ever showed, and by no more; they stand still
// until it is there again, and Retry-After says so. What a budget still holds can be
// taken meanwhile, but for gcra's. Nothing fails.
func TestClockOfRedisSteps(t *testing.T) {
	server, clock := redistest.StartClock(t)
	const limit = 100
	algorithms := []string{"fixed_window", "sliding_log", "token_bucket", "leaky_bucket", "gcra"}
	config := ""
	for _, name := range algorithms {
		config += fmt.Sprintf("zone %s {\n match path /%[1]s\n %[1]s %d 1h\n}\n", name, limit)
	}
	config = site(config + fmt.Sprintf("redis %s {\n timeout 30s\n}\non_store_error deny", server.Addr))
	caddys := []*caddyProcess{startCaddy(t, config), startCaddy(t, config)}
	var loads []*load
	for _, name := range algorithms {
		loads = append(loads, startLoad(t, 2, "/"+name, caddys...))
	}
	for _, l := range loads { // the first step comes while there is room
		waitFor(t, "some are admitted", func() bool { return l.soFar().statuses[200] >= limit/4 })
	}
	steps := []struct {
		ahead    time.Duration
		admitted int           // in all, when no more are
		retry    time.Duration // at most, then
	}{
		{-2 * time.Hour, limit, 3 * time.Hour},
		{0, limit, time.Hour},
		{-time.Minute, limit, time.Hour + time.Minute},
		{time.Hour + time.Minute, 2 * limit, time.Hour},
		{time.Minute, 2 * limit, 2 * time.Hour},
		{time.Hour + time.Minute, 2 * limit, time.Hour},
		{1000 * time.Hour, 3 * limit, time.Hour},
	}
	backward, shown := 0, time.Duration(0)
	for i, step := range steps {
		clock.Set(t, step.ahead)
		if step.ahead < shown {
			backward++
		}
		shown = step.ahead
		time.Sleep(1100 * time.Millisecond) // until what was refused before is forgotten
		for n, name := range algorithms {
			admitted := func() int { return loads[n].soFar().statuses[200] }
			want := step.admitted
			if name == "gcra" && i == 0 { // it keeps one instant alone, and refuses until that is near
				want = admitted()
			}
			waitFor(t, fmt.Sprintf("%s has admitted %d, at step %d", name, want, i), func() bool { return admitted() >= want })
			for range 3 {
				for _, c := range caddys {
					r := c.get(t, "/"+name)
					var retry int
					_, err := fmt.Sscan(r.field("Retry-After"), &retry)
					if r.StatusCode != 429 || err != nil || time.Duration(retry)*time.Second > step.retry+time.Second {
						t.Errorf("step %d, %s: status %d, Retry-After %q, want 429 and at most %v", i, name, r.StatusCode, r.field("Retry-After"), step.retry)
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
		waitForMetric(t, c, fmt.Sprintf("caddy_rate_limit_clock_steps_total %d", backward))
		if n := strings.Count(c.logged(), "the clock of Redis stepped back"); n != backward {
			t.Errorf("%d steps back logged, want %d", n, backward)
		}
	}
}
