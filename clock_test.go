package ratelimit

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// The clock of Redis steps ahead and back while requests come: budgets refill by what it goes
// ahead, and go on from the new time where it goes back. The remaining events can be taken
// meanwhile, and no wait is longer than a budget takes to refill. Nothing fails.
func TestClockOfRedisSteps(t *testing.T) {
	long(t)
	t.Parallel()
	server, clock := redistest.StartClock(t)
	const limit, day = 100, 24 * time.Hour
	algorithms := []string{"fixed_window", "sliding_log", "leaky_bucket", "token_bucket", "gcra"}
	config := ""
	for _, name := range algorithms {
		config += fmt.Sprintf("zone %s {\n match path /%[1]s\n %[1]s %d 1d\n}\n", name, limit)
	}
	config = site(config + fmt.Sprintf("redis %s {\n timeout 30s\n}\non_store_error deny", server.Addr))
	caddys := []*caddyProcess{startCaddy(t, config), startCaddy(t, config)}
	var loads []*load
	for _, name := range algorithms {
		loads = append(loads, startLoad(t, 2, "/"+name, caddys...))
	}
	for _, l := range loads { // the first step comes while there is room
		eventually(t, "some are admitted", func() bool { return l.soFar().statuses[200] >= limit/4 })
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
			eventually(t, fmt.Sprintf("%s has admitted %d, at step %d", name, want, i), func() bool { return admitted() >= want })
			for range 3 {
				for _, c := range caddys {
					r := c.get(t, "/"+name)
					var retry int
					_, err := fmt.Sscan(r.field("Retry-After"), &retry)
					if r.StatusCode != 429 || err != nil || time.Duration(retry)*time.Second > day+time.Second {
						t.Errorf("step %d, %s: status %d, Retry-After %q, want 429 and at most a day", i, name, r.StatusCode, r.field("Retry-After"))
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

// withWallClockSetBack returns an instant as time.Now returns it after the clock of the machine was set back.
// The time package has no function for this, so the seconds of the wall clock are changed in place.
func withWallClockSetBack(t *testing.T, instant time.Time, by time.Duration) time.Time {
	t.Helper()
	changed := instant
	*(*uint64)(unsafe.Pointer(&changed)) -= uint64(by/time.Second) << 30
	if changed.Sub(instant) != 0 || changed.UnixNano() != instant.Add(-by).UnixNano() {
		t.Fatalf("%v was changed to %v: time.Time has another layout", instant, changed)
	}
	return changed
}

// A throttle lets the first message through, and then one in each interval, also after the clock of the
// machine was set back or ahead.
func TestThrottle(t *testing.T) {
	const interval = 10 * time.Second
	start, limit := time.Now(), new(throttle)
	for _, event := range []struct {
		at      time.Duration // since the start
		setBack time.Duration // of the clock of the machine
		want    int64
	}{
		{0, 0, 1},
		{1, 0, 0},
		{interval - 1, 0, 0},
		{interval, 0, 3},
		{interval, 0, 0},
		{2*interval - 1, -time.Hour, 0},
		{2 * interval, time.Hour, 3},
		{3*interval - 1, 0, 0},
		{3 * interval, 0, 2},
	} {
		instant := withWallClockSetBack(t, start.Add(event.at), event.setBack)
		if n := limit.dueAt(instant, interval); n != event.want {
			t.Errorf("after %v, with the clock set back by %v: %d events, want %d", event.at, event.setBack, n, event.want)
		}
	}
}
