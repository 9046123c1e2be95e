package storetest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// A limit holds at the instant at which a budget is full again, and around it. Caddy-ratelimit let 1000 of
// 1000 requests pass a limit of 2. An event that expired at that instant was given to every request of
// the instant.
func testBoundaryTick(t *testing.T, s Store) {
	forEach(t, Variants(2, minute), func(t *testing.T, q algorithms.Quota) {
		limit := Limit(t, "z", q)
		fill := func(key string) algorithms.Decision {
			r := newRequest("z", key, 1, limit)
			for n := 0; takeAt(t, s, start+7, r); n++ {
				if n == 2 {
					t.Fatal("more than 2 passed at once")
				}
			}
			return r[0].Outcome.Decisions[0]
		}
		count := func(key string, at algorithms.Micros) (passed int64) {
			for r := newRequest("z", key, 1, limit); takeAt(t, s, at, r); passed++ {
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
			peek := newRequest("z", key, 0, limit)
			takeAt(t, s, at, peek)
			remaining := peek[0].Outcome.Decisions[0].Remaining
			if passed := count(key, at); passed != remaining || (passed == 0) != (off < 0) {
				t.Errorf("%+d µs from retry-after %d of %d remaining passed", off, passed, remaining)
			}
			// The instant from which on the budget is fully restored: every
			// decision is that of a key never seen.
			key = fmt.Sprint("reset", off)
			at = start + 7 + fill(key).ResetAfter + off
			if q.Initial != nil && off >= 0 { // those never seen begin with less
				if passed := count(key, at); passed != 2 {
					t.Errorf("%+d µs from reset-after %d of 2 passed", off, passed)
				}
				continue
			}
			old, fresh, same := newRequest("z", key, 1, limit), newRequest("z", key+" fresh", 1, limit), true
			for range 4 {
				takeAt(t, s, at, old)
				takeAt(t, s, at, fresh)
				same = same && old[0].Outcome.Decisions[0] == fresh[0].Outcome.Decisions[0]
			}
			if off >= 0 && !same {
				t.Errorf("%+d µs from reset-after the old window is carried on: %+v, untouched %+v",
					off, old[0].Outcome.Decisions, fresh[0].Outcome.Decisions)
			} else if off < 0 && same && q.MinInterval == 0 { // there all is 0 for longer than that
				t.Errorf("%+d µs from reset-after the budget is untouched already", off)
			}
		}
	})
}

// A decision reads the clock once. Caddy-ratelimit read it again for a denial, and let 1908 requests pass
// where 1500 was the limit (1 event per 2 ms, 8 goroutines).
func testClockReadTwice(t *testing.T, s Store) {
	forEach(t, Quotas(1, 2000), func(t *testing.T, q algorithms.Quota) {
		limit, began := Limit(t, "z", q), time.Now()
		passed := make(chan struct{}, 1_000_000)
		flood(t, 8, 1, func() error {
			// The bound below grows with the time that the flood takes.
			for r := newRequest("z", "k", 1, limit); time.Since(began) < 10*time.Millisecond; {
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
		if span := time.Since(began).Microseconds(); int64(len(passed)) > maxPassed(q, span) {
			t.Errorf("%d passed within %d µs, the promise is %d", len(passed), span, maxPassed(q, span))
		}
	})
}

// forSkewedClocks calls reading for two nodes in turn, one ahead and one behind, over 12 seconds of true
// time.
func forSkewedClocks(skew algorithms.Micros, reading func(true, shown algorithms.Micros)) {
	for i := range algorithms.Micros(240) {
		at := start + i*second/20
		if i%2 == 0 {
			reading(at, at+skew)
		} else {
			reading(at, at-skew)
		}
	}
}

// Two nodes whose clocks differ gain nothing by the difference. With 200 ms, 214 of 400 requests passed a
// limit of 14 in Traefik, which writes the older instant back. In APISIX limit-req, which drains by the
// absolute difference, all 400 passed.
func testClockSkew(t *testing.T, s Store) {
	const skew = 100_000
	forEach(t, Variants(240, minute/5), func(t *testing.T, q algorithms.Quota) {
		cost := int64(2) // 40 events a second are asked for, and 20 granted
		if a, _ := algorithms.Lookup(q.Algorithm); a.Burst {
			q.Events, q.Window, q.Burst = 1, second/20, 60
		}
		if q.Algorithm == "smooth" { // where one request passes at any cost
			cost, q.Window = 1, second/5
			if q.WarmUp > 0 {
				q.Burst = 0
			}
		}
		limit := Limit(t, "z", q)
		r := newRequest("z", "k", cost, limit)
		var passed []algorithms.Micros
		forSkewedClocks(skew, func(at, shown algorithms.Micros) {
			if takeAt(t, s, shown, r) {
				passed = append(passed, slices.Repeat([]algorithms.Micros{at}, int(cost))...)
			}
		})
		checkPromise(t, q, passed, 2*skew)

		// The same requests by the clock ahead alone.
		state, ahead := new(algorithms.State), 0
		forSkewedClocks(skew, func(at, _ algorithms.Micros) {
			check := []algorithms.Check{{Limit: limit.Limit, State: state}}
			if algorithms.Take([]algorithms.ZoneRequest{{Cost: cost, Checks: check}}, at+skew) {
				ahead += int(cost)
			}
		})
		if len(passed) > ahead {
			t.Errorf("%d passed, and by the clock that is ahead all the time only %d", len(passed), ahead)
		}
		if len(passed) < ahead/3 { // the node behind may be denied each time
			t.Errorf("%d passed, and by the clock that is ahead all the time %d: skew freezes the budget", len(passed), ahead)
		}
	})
}

// A clock that is behind by up to a second, even repeatedly, gives nothing back and postpones nothing.
func testClockBehind(t *testing.T, s Store) {
	const hour = 60 * minute
	forEach(t, Variants(3, minute), func(t *testing.T, q algorithms.Quota) {
		r := newRequest("z", "k", 1, Limit(t, "z", q))
		takeUntilDenied(t, s, start+hour, r)
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
			t.Error("the clock, back where it was, does not allow from the end of the first RetryAfter")
		}
	})
}

// A step back of the clock gives nothing back. The rest of a budget can be taken at once, and no wait grows.
// Without this rule, a step of 10 minutes would deny everybody for as long.
func testClockSetBack(t *testing.T, s Store) {
	const at = start + 60*minute
	forEach(t, Variants(3, minute), func(t *testing.T, q algorithms.Quota) {
		limit := Limit(t, "z", q)
		for _, back := range []algorithms.Micros{second + 1, minute, 10 * minute, 60 * minute} {
			r, peek := newRequest("z", fmt.Sprint("left", back), 1, limit), newRequest("z", fmt.Sprint("left", back), 0, limit)
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

			r = newRequest("z", fmt.Sprint("used", back), 1, limit)
			takeUntilDenied(t, s, at, r)
			first, bucket := r[0].Outcome.Decisions[0], algorithms.Micros(0)
			if q.Buckets > 0 { // the newest event counts for up to one longer, and at this instant it doesn't
				bucket = q.Window/q.Buckets - 1
			}
			if takeAt(t, s, at-back, r) {
				t.Errorf("allowed after the clock was set back by %d µs", back)
			}
			d := r[0].Outcome.Decisions[0]
			if q.Period != "" { // its end doesn't move
				bucket = back
			}
			if d.RetryAfter > first.RetryAfter+bucket || d.ResetAfter > first.ResetAfter+bucket {
				t.Errorf("set back by %d µs: %+v, before %+v", back, d, first)
			}
			if takeAt(t, s, at-back+d.RetryAfter-1, r) || !takeAt(t, s, at-back+d.RetryAfter, r) {
				t.Errorf("set back by %d µs: does not allow from the end of RetryAfter on, %d µs later", back, d.RetryAfter)
			}
		}
	})
}

// A charge from before the clock was set back isn't given back, because the state has changed. Only a log
// gives it back.
func testRefundClockSetBack(t *testing.T, s Store) {
	const at, back = start + 60*minute, 10 * minute
	forEach(t, Variants(3, minute), func(t *testing.T, q algorithms.Quota) {
		limit := Limit(t, "z", q)
		for _, saved := range []bool{false, true} {
			r, peek := newRequest("z", fmt.Sprint(saved), 1, limit), newRequest("z", fmt.Sprint(saved), 0, limit)
			if takeAt(t, s, at, r); r[0].Outcome.Decisions[0].Charged == 0 { // with initial nothing is there yet
				continue
			}
			if saved {
				takeAt(t, s, at-back, newRequest("z", "true", 4, limit))
			}
			takeAt(t, s, at-back, peek)
			before := peek[0].Outcome.Decisions[0]
			refundAt(t, s, at-back, r, 1)
			takeAt(t, s, at-back, peek)
			isLog, after := q.Algorithm == "sliding_log", peek[0].Outcome.Decisions[0]
			if isLog && after.Remaining != 3 || !isLog && after != before {
				t.Errorf("saved %v: the refund took %+v to %+v", saved, before, after)
			}
		}
	})
}

// A ban lasts no longer if the clock is set back.
func testBanClockSetBack(t *testing.T, s Store) {
	const at, back = start + 60*minute, 10 * minute
	one := Limit(t, "z", algorithms.Quota{Algorithm: "token_bucket", Events: 1, Window: second})
	ban := Ban(t, "z", algorithms.Ban{After: 1, Window: minute, Duration: minute, Max: 4 * minute})
	r := newBanRequest("z", "k", 1, one, ban)
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

// A ban by hand, too, lasts no longer if the clock is set back, even a long one.
func testBanByHandClockSetBack(t *testing.T, s Store) {
	const at, back = start + 60*minute, 10 * minute
	one := Limit(t, "z", algorithms.Quota{Algorithm: "token_bucket", Events: 1, Window: second})
	ban := Ban(t, "z", algorithms.Ban{After: 1, Window: minute, Duration: minute, Max: 4 * minute})
	changeAt(t, s, at, store.Change{Zone: "z", Key: "k", Ban: []*store.Ban{ban}, BanFor: 60 * minute})
	r := newBanRequest("z", "k", 1, one, ban)
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
	take := func(now algorithms.Micros, want bool) []store.ZoneRequest {
		t.Helper()
		r := newSlotsRequest("z", "k", 3)
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
