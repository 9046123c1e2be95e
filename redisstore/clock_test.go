package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// The deadline in the time of Redis is not later than the local deadline.
func TestNotAfter(t *testing.T) {
	InBubble(t, func(t *testing.T) {
		s := newStore(Options{}, nil, Hooks{})
		const shown algorithms.Micros = 1_790_000_000_000_000
		s.lastReading = clockReading{redis: shown, local: time.Now()}
		for _, left := range []time.Duration{-time.Second, 0, 100 * time.Millisecond, time.Hour} {
			_, last, err := s.instants(t.Context(), &batch{deadline: s.lastReading.local.Add(left)})
			if want := shown + left.Microseconds(); err != nil || last != want {
				t.Errorf("with %v left it is %+d µs, want %+d; error %v", left, last-shown, want-shown, err)
			}
		}
	})
}

// A queued call is not sent after it has waited for too long, or after its caller has left. It gets
// its error.
func TestExpiredCalls(t *testing.T) {
	InBubble(t, func(t *testing.T) {
		s := newStore(Options{Batch: 2}, nil, Hooks{})
		s.queue.lastReply = time.Now()
		gone, leave := context.WithCancel(t.Context())
		leave()
		asked := func(ctx context.Context, waited time.Duration) *pendingCall {
			c := s.newTakeCall(ctx, 0, []store.ZoneRequest{{Key: "k"}})
			c.queued = time.Now().Add(-waited)
			return c
		}
		late := asked(t.Context(), MaxQueued+time.Millisecond)
		left := asked(gone, 0)
		first, second, third := asked(t.Context(), MaxQueued/2), asked(t.Context(), 0), asked(t.Context(), 0)
		s.queue.calls = []*pendingCall{late, first, left, asked(t.Context(), time.Hour), second, third, asked(t.Context(), time.Minute)}
		for i, want := range [][]*pendingCall{{first, second}, {third}, nil} {
			b := s.nextBatchLocked()
			if b == nil {
				b = newBatch()
			}
			if !slices.Equal(b.calls, want) {
				t.Errorf("%d: %d calls are sent, want %d others", i+1, len(b.calls), len(want))
			}
		}
		if q := &s.queue; len(q.calls) != 0 || len(q.inFlight) != 2 {
			t.Errorf("%d calls are queued, and %d messages in flight", len(q.calls), len(q.inFlight))
		}
		for c, want := range map[*pendingCall]error{late: errBusy, left: context.Canceled} {
			select {
			case <-c.done:
				if !errors.Is(c.err, want) || c.allowed {
					t.Errorf("allowed %v, error %v, want %v", c.allowed, c.err, want)
				}
			default:
				t.Errorf("a call did not end, want %v", want)
			}
		}
		s.options.Timeout = 2 * MaxQueued
		if s.dropExpiredLocked(asked(t.Context(), MaxQueued+time.Millisecond), time.Now()) {
			t.Error("a call ended, although the timeout is longer")
		}
	})
}

// A reply sent before the clock stepped back, which arrives after a reply sent behind the step, is
// no second step.
func TestStaleReplyAfterClockStep(t *testing.T) {
	InBubble(t, func(t *testing.T) {
		steps := 0
		s := newStore(Options{}, nil, Hooks{ClockStepped: func(time.Duration) { steps++ }})
		const before, after algorithms.Micros = 1_790_000_000_000_000, 1_789_000_000_000_000
		later := func() time.Time {
			time.Sleep(time.Millisecond) // simulated
			return time.Now()
		}
		sent := later()
		s.observeClock(before, later())
		s.observeClock(after, later())
		s.observeClock(before+1000, sent)
		s.observeClock(after+2000, later())
		if steps != 1 {
			t.Errorf("%d steps were reported, want 1", steps)
		}
		if s.lastReading.redis != after+2000 {
			t.Errorf("the clock shows %+d µs, want 2000", s.lastReading.redis-after)
		}
	})
}

// The error of a late call depends on the last event since it was queued: a failure is its error, and a reply
// means that Redis is busy. If nothing has happened, this process stood still, and the call is sent.
func TestLateError(t *testing.T) {
	for seed := range seedtest.Cases(t, uint64(200)) {
		random := rand.New(rand.NewPCG(seed, 4))
		synctest.Test(t, func(t *testing.T) {
			s := MustNew(t, Options{Address: "h:1"})
			steps, queuedAt := 1+random.IntN(6), random.IntN(4)
			c, want := s.newTakeCall(t.Context(), 0, []store.ZoneRequest{{Zone: "z", Key: "k"}}), error(nil)
			if seed%2 == 0 {
				c = givesBack("k")
				c.done = make(chan struct{}, 1)
			}
			for i := range steps {
				if time.Sleep(time.Millisecond); i <= queuedAt { // in virtual time
					c.queued, want = time.Now(), nil
					time.Sleep(time.Millisecond) // in virtual time
				}
				switch random.IntN(3) {
				case 0:
					want = errBusy
					s.settleBatch(&batch{replied: true, messages: []*message{{}}})
				case 1:
					want = errors.New(fmt.Sprint("failure ", i))
					s.settleBatch(&batch{messages: []*message{{err: want}}})
				}
			}
			if ended := s.dropExpiredLocked(c, time.Now().Add(time.Hour)); ended != (want != nil) || c.err != want {
				t.Fatalf("seed %d: ended %v with %v, want %v", seed, ended, c.err, want)
			}
		})
	}
}
