package redisstore

import (
	"slices"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// A deadline in the time of Redis is no later than the deadline is: from when the time of
// Redis was seen, as much time passes there as here.
func TestLastInstant(t *testing.T) {
	s := newStore(Options{}, nil, nil)
	const shown algorithms.Micros = 1_790_000_000_000_000
	s.clock = clock{redis: shown, seen: time.Now()}
	for _, left := range []time.Duration{-time.Second, 0, 100 * time.Millisecond, time.Hour} {
		last, err := s.lastInstant(t.Context(), nil, 0, s.clock.seen.Add(left))
		if want := shown + left.Microseconds(); err != nil || last != want {
			t.Errorf("with %v left it is %+d µs, want %+d; error %v", left, last-shown, want-shown, err)
		}
	}
}

// A queued call isn't sent once its deadline has passed, though its caller may not have
// noticed yet.
func TestCallsPastTheirDeadline(t *testing.T) {
	s := newStore(Options{Batch: 2}, nil, nil)
	in := func(d time.Duration) *call { return &call{deadline: time.Now().Add(d)} }
	gone := in(time.Hour)
	gone.state.Store(left)
	first, second, third := in(time.Hour), in(time.Hour), in(time.Hour)
	s.batcher.queue = []*call{in(-time.Microsecond), first, gone, in(-time.Hour), second, third, in(-time.Second)}
	s.batcher.flying = 1
	for i, want := range [][]*call{{first, second}, {third}, nil} {
		if calls := s.nextCalls(); !slices.Equal(calls, want) {
			t.Errorf("%d: %d calls are sent, want %d others", i+1, len(calls), len(want))
		}
	}
	if b := &s.batcher; len(b.queue) != 0 || b.flying != 0 {
		t.Errorf("%d calls are queued, and %d under way", len(b.queue), b.flying)
	}
}

// A reply that was sent before the clock stepped back, and comes after one that was sent behind
// the step, is no second step.
func TestRepliesThatOvertakeAStep(t *testing.T) {
	steps := 0
	s := newStore(Options{}, nil, func(time.Duration) { steps++ })
	const before, after algorithms.Micros = 1_790_000_000_000_000, 1_789_000_000_000_000
	sent := time.Now()
	s.watch(before, sent)
	s.watch(after, time.Now())
	s.watch(before+1000, sent)
	s.watch(after+2000, time.Now())
	if steps != 1 {
		t.Errorf("%d steps are told of, want 1", steps)
	}
	if s.clock.redis != after+2000 {
		t.Errorf("the clock shows %+d µs, want 2000", s.clock.redis-after)
	}
}
