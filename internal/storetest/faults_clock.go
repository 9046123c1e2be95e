package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Faults that show at certain instants, and by certain clocks.

// On the very instant a budget is whole again, and around it, a limiter let 1000 of
// 1000 requests pass a limit of 2 (caddy-ratelimit: the slot that expires on the
// instant of the decision was given to every request of that instant).
func testBoundaryTick(t *testing.T, s Store) {
	each(t, Variants(2, minute), func(t *testing.T, q algorithms.Quota) {
		limit := Limit(t, "z", q)
		fill := func(key string) algorithms.Decision {
			r := ask("z", key, 1, limit)
			for n := 0; takeAt(t, s, start+7, r); n++ {
				if n == 2 {
					t.Fatal("more than 2 passed at once")
				}
			}
			return r[0].Outcome.Decisions[0]
		}
		count := func(key string, at algorithms.Micros) (passed int64) {
			for r := ask("z", key, 1, limit); takeAt(t, s, at, r); passed++ {
				if passed == 50 {
					t.Fatalf("everything passes at %d µs", at-start)
				}
			}
			return passed
		}
		for _, off := range []algorithms.Micros{-1, 0, 1} {
			// The instant at which one request fits again.
			key := fmt.Sprint("retry", off)
			at := start + 7 + fill(key).RetryAfter + off
			peek := ask("z", key, 0, limit)
			takeAt(t, s, at, peek)
			remaining := peek[0].Outcome.Decisions[0].Remaining
			if passed := count(key, at); passed != remaining || (passed == 0) != (off < 0) {
				t.Errorf("%+d µs from retry-after %d of %d remaining passed", off, passed, remaining)
			}
			// The instant from which on the budget is as good as untouched: every
			// decision is that of a key never seen.
			key = fmt.Sprint("reset", off)
			at = start + 7 + fill(key).ResetAfter + off
			if q.Initial != nil && off >= 0 { // those never seen begin with less
				if passed := count(key, at); passed != 2 {
					t.Errorf("%+d µs from reset-after %d of 2 passed", off, passed)
				}
				continue
			}
			old, fresh, same := ask("z", key, 1, limit), ask("z", key+" fresh", 1, limit), true
			for range 4 {
				takeAt(t, s, at, old)
				takeAt(t, s, at, fresh)
				same = same && old[0].Outcome.Decisions[0] == fresh[0].Outcome.Decisions[0]
			}
			if off >= 0 && !same {
				t.Errorf("%+d µs from reset-after the old window is carried on: %+v, untouched %+v", off, old[0].Outcome.Decisions, fresh[0].Outcome.Decisions)
			} else if off < 0 && same && q.MinInterval == 0 { // there all is 0 for longer than that
				t.Errorf("%+d µs from reset-after the budget is untouched already", off)
			}
		}
	})
}

// A limiter that read the clock a second time to refuse let 1908 requests pass
// where 1500 was the most (caddy-ratelimit, 1 event per 2 ms, 8 goroutines).
func testTwoReadings(t *testing.T, s Store) {
	each(t, Quotas(1, 2000), func(t *testing.T, q algorithms.Quota) {
		limit, began := Limit(t, "z", q), time.Now()
		passed := make(chan struct{}, 1_000_000)
		flood(t, 8, 1, func() error {
			for r := ask("z", "k", 1, limit); time.Since(began) < 40*time.Millisecond; {
				ok, err := s.Take(context.Background(), r)
				if err != nil {
					return err
				}
				if ok {
					passed <- struct{}{}
				}
			}
			return nil
		})
		if span := time.Since(began).Microseconds(); int64(len(passed)) > promise(q, span) {
			t.Errorf("%d passed within %d µs, the promise is %d", len(passed), span, promise(q, span))
		}
	})
}

// skewed are the readings of two nodes, one ahead and one behind, that take turns
// over a minute of true time.
func skewed(skew algorithms.Micros, reading func(true, shown algorithms.Micros)) {
	for i := range algorithms.Micros(1200) {
		at := start + i*second/20
		if i%2 == 0 {
			reading(at, at+skew)
		} else {
			reading(at, at-skew)
		}
	}
}

// Two nodes whose clocks differ by 200 ms got 214 and 400 of 400 requests through a
// limit of 14 (Traefik, which writes the older instant back, and APISIX limit-req,
// which drains by the absolute difference): each turn minted what 200 ms are worth.
func testClockSkew(t *testing.T, s Store) {
	const skew = 100_000
	each(t, Variants(1200, minute), func(t *testing.T, q algorithms.Quota) {
		cost := int64(2) // 40 events a second are asked for, and 20 granted
		if a, _ := algorithms.Lookup(q.Algorithm); a.Burst {
			q.Events, q.Window, q.Burst = 1, second/20, 60
		}
		if q.Algorithm == "smooth" { // there one request is let pass whatever it costs
			cost, q.Window = 1, second/5
			if q.WarmUp > 0 {
				q.Burst = 0
			}
		}
		limit := Limit(t, "z", q)
		r := ask("z", "k", cost, limit)
		var passed []algorithms.Micros
		skewed(skew, func(at, shown algorithms.Micros) {
			if takeAt(t, s, shown, r) {
				passed = append(passed, slices.Repeat([]algorithms.Micros{at}, int(cost))...)
			}
		})
		holdsPromise(t, q, passed, 2*skew)

		// The same requests by the clock ahead alone.
		state, ahead := new(algorithms.State), 0
		skewed(skew, func(at, _ algorithms.Micros) {
			check := []algorithms.Check{{Limit: limit.Limit, State: state}}
			if algorithms.Take([]algorithms.Request{{Cost: cost, Checks: check}}, at+skew) {
				ahead += int(cost)
			}
		})
		if len(passed) > ahead {
			t.Errorf("%d passed, and by the clock that is ahead all the time only %d", len(passed), ahead)
		}
		if len(passed) < ahead/3 { // the node behind may be refused each time
			t.Errorf("%d passed, and by the clock that is ahead all the time %d: skew freezes the budget", len(passed), ahead)
		}
	})
}

// A clock that is behind by up to a second, even repeatedly, mints nothing and puts nothing
// off.
func testClockBehind(t *testing.T, s Store) {
	const hour = 60 * minute
	each(t, Variants(3, minute), func(t *testing.T, q algorithms.Quota) {
		r := ask("z", "k", 1, Limit(t, "z", q))
		drain(t, s, start+hour, r)
		retry := r[0].Outcome.Decisions[0].RetryAfter
		for i := range algorithms.Micros(5) {
			for _, back := range []algorithms.Micros{1, second / 2, second} {
				if takeAt(t, s, start+hour-back, r) {
					t.Fatalf("allowed after the clock was set back by %d µs", back)
				}
				if d := r[0].Outcome.Decisions[0]; d.RetryAfter != retry+back || d.Remaining != 0 {
					t.Errorf("set back by %d µs for time %d: %+v, want it to come back at the same instant", back, i, d)
				}
			}
		}
		if takeAt(t, s, start+hour+retry-1, r) || !takeAt(t, s, start+hour+retry, r) {
			t.Error("the clock, back where it was, does not allow from the instant first told")
		}
	})
}

// A clock that was set back by 10 minutes locked everybody out for as long. Limits gcra and
// smooth did so even with budget left. Now a step back mints nothing, the rest of a budget
// can be taken at once, and no wait grows.
func testClockSetBack(t *testing.T, s Store) {
	const at = start + 60*minute
	each(t, Variants(3, minute), func(t *testing.T, q algorithms.Quota) {
		limit := Limit(t, "z", q)
		for _, back := range []algorithms.Micros{second + 1, minute, 10 * minute, 60 * minute} {
			r, peek := ask("z", fmt.Sprint("left", back), 1, limit), ask("z", fmt.Sprint("left", back), 0, limit)
			takeAt(t, s, at, r)
			takeAt(t, s, at, peek)
			left := peek[0].Outcome.Decisions[0]
			if takeAt(t, s, at-back, peek); peek[0].Outcome.Decisions[0].Remaining != left.Remaining {
				t.Errorf("set back by %d µs: a peek says %+v, before %+v", back, peek[0].Outcome.Decisions[0], left)
			}
			for i := range left.Remaining {
				if !takeAt(t, s, at-back, r) {
					t.Errorf("set back by %d µs: denied %+v, though %d of %d remained", back, r[0].Outcome.Decisions[0], left.Remaining-i, left.Remaining)
				}
			}

			r = ask("z", fmt.Sprint("used", back), 1, limit)
			drain(t, s, at, r)
			told, bucket := r[0].Outcome.Decisions[0], algorithms.Micros(0)
			if q.Buckets > 0 { // the newest event counts for up to one longer, and at this instant it doesn't
				bucket = q.Window/q.Buckets - 1
			}
			if takeAt(t, s, at-back, r) {
				t.Errorf("allowed after the clock was set back by %d µs", back)
			}
			d := r[0].Outcome.Decisions[0]
			if d.RetryAfter > told.RetryAfter+bucket || d.ResetAfter > told.ResetAfter+bucket {
				t.Errorf("set back by %d µs: %+v, before %+v", back, d, told)
			}
			if takeAt(t, s, at-back+d.RetryAfter-1, r) || !takeAt(t, s, at-back+d.RetryAfter, r) {
				t.Errorf("set back by %d µs: does not allow from the instant told on, %d µs later", back, d.RetryAfter)
			}
		}
	})
}

// A charge from before the clock was set back isn't given back any more, except by a log,
// because the state has changed.
func testRefundClockSetBack(t *testing.T, s Store) {
	const at, back = start + 60*minute, 10 * minute
	each(t, Variants(3, minute), func(t *testing.T, q algorithms.Quota) {
		limit := Limit(t, "z", q)
		for _, saved := range []bool{false, true} {
			r, peek := ask("z", fmt.Sprint(saved), 1, limit), ask("z", fmt.Sprint(saved), 0, limit)
			if takeAt(t, s, at, r); r[0].Outcome.Decisions[0].Charged == 0 { // with initial nothing is there yet
				continue
			}
			if saved {
				takeAt(t, s, at-back, ask("z", "true", 4, limit))
			}
			takeAt(t, s, at-back, peek)
			before := peek[0].Outcome.Decisions[0]
			refundAt(t, s, at-back, r, 1)
			takeAt(t, s, at-back, peek)
			if after := peek[0].Outcome.Decisions[0]; q.Algorithm == "sliding_log" && after.Remaining != 3 || q.Algorithm != "sliding_log" && after != before {
				t.Errorf("saved %v: the refund took %+v to %+v", saved, before, after)
			}
		}
	})
}

// A ban lasts no longer than it was to last if the clock is set back.
func testBanClockSetBack(t *testing.T, s Store) {
	const at, back = start + 60*minute, 10 * minute
	one := Limit(t, "z", algorithms.Quota{Algorithm: "token_bucket", Events: 1, Window: second})
	ban := Ban(t, "z", algorithms.Ban{After: 1, Window: minute, Duration: minute, Most: 4 * minute})
	r := askBanned("z", "k", 1, one, ban)
	for _, want := range []bool{true, false, false} {
		if takeAt(t, s, at, r) != want {
			t.Fatalf("%+v, want allowed %v", r[0].Outcome.Decisions, want)
		}
	}
	for _, after := range []algorithms.Micros{0, 1, minute - 1} {
		if takeAt(t, s, at-back+after, r) || r[0].Outcome.Ban.EndsAfter != minute-after {
			t.Errorf("%d µs after the clock was set back: %+v, want a ban for %d µs", after, r[0].Outcome.Ban, minute-after)
		}
	}
	if !takeAt(t, s, at-back+minute, r) {
		t.Errorf("denied a minute after the clock was set back: %+v", r[0].Outcome.Decisions)
	}
	if takeAt(t, s, at-back+minute, r) || r[0].Outcome.Ban.EndsAfter != 2*minute {
		t.Errorf("%+v, want a second ban, of 2 minutes", r[0].Outcome.Ban)
	}
}

// The same holds for a ban by hand, even a long one.
func testBanByHandClockSetBack(t *testing.T, s Store) {
	const at, back = start + 60*minute, 10 * minute
	one := Limit(t, "z", algorithms.Quota{Algorithm: "token_bucket", Events: 1, Window: second})
	ban := Ban(t, "z", algorithms.Ban{After: 1, Window: minute, Duration: minute, Most: 4 * minute})
	changeAt(t, s, at, store.Change{Zone: "z", Key: "k", Ban: []*store.Ban{ban}, BanFor: 60 * minute})
	r := askBanned("z", "k", 1, one, ban)
	for _, after := range []algorithms.Micros{0, minute, 60*minute - 1} {
		if takeAt(t, s, at-back+after, r) || r[0].Outcome.Ban.EndsAfter != 60*minute-after {
			t.Errorf("%d µs after the clock was set back: %+v, want a ban for %d µs", after, r[0].Outcome.Ban, 60*minute-after)
		}
	}
	if !takeAt(t, s, at-back+60*minute, r) {
		t.Errorf("denied an hour after the clock was set back: %+v", r[0].Outcome.Decisions)
	}
}

// A step of the clock neither frees slots nor takes them.
func testSlotsClockSetBack(t *testing.T, s Store) {
	const at, back = start + 60*minute, 10 * minute
	take := func(now algorithms.Micros, want bool) []store.Request {
		t.Helper()
		r := askSlots("z", "k", 3)
		if takeAt(t, s, now, r) != want {
			t.Errorf("%d µs after the clock was set back: %+v, want allowed %v", now-(at-back), r[0].Outcome.Slots, want)
		}
		return r
	}
	one, two, three := take(at, true), take(at+second, true), take(at+2*second, true)
	take(at-back, false)
	leaveAt(t, s, at-back, one)
	one = take(at-back, true)
	take(at-back, false)
	leaveAt(t, s, at-back+second, two)
	leaveAt(t, s, at-back+second, one)
	leaveAt(t, s, at-back+second, three)
	for n := range int64(3) {
		if r := take(at-back+2*second, true); r[0].Outcome.Slots.InFlight != n+1 {
			t.Errorf("%+v, want %d in flight", r[0].Outcome.Slots, n+1)
		}
	}
	take(at-back+2*second, false)
}

// However requests are timed, no span holds more than the algorithm promises.
func testPromise(t *testing.T, s Store) {
	each(t, Variants(4, minute), func(t *testing.T, q algorithms.Quota) {
		for seed := range uint64(3) {
			rng := rand.New(rand.NewPCG(seed, 4))
			r := ask("z", fmt.Sprint(seed), 1, Limit(t, "z", q))
			var passed []algorithms.Micros
			now := algorithms.Micros(start + rng.Int64N(minute))
			for n := 0; len(passed) < 40; n++ {
				if n == 1000 {
					t.Fatalf("seed %d: only %d of 1000 passed", seed, len(passed))
				}
				if takeAt(t, s, now, r) {
					passed = append(passed, now)
					continue
				}
				now += r[0].Outcome.Decisions[0].RetryAfter // greedy, or whenever it likes
				now += []algorithms.Micros{0, 0, 1, rng.Int64N(minute), rng.Int64N(3 * minute)}[rng.IntN(5)]
			}
			if holdsPromise(t, q, passed, 0); t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
	})
}
