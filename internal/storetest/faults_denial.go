package storetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Denied requests postpone nothing: a client that keeps asking passes at the end of the first RetryAfter.
// Kong and APISIX count denied requests, and so extend the wait.
func testHammering(t *testing.T, s Store) {
	forEach(t, Variants(2, minute), func(t *testing.T, q algorithms.Quota) {
		for _, mode := range modesOf(q) {
			if mode == algorithms.Uniform || mode == algorithms.Force {
				continue // which charge denials, or deny nothing
			}
			r := newRequest("z", mode.String(), 1, Limit(t, "z", q))
			r[0].Mode = mode
			takeUntilDenied(t, s, start+5, r)
			retry := r[0].Outcome.Decisions[0].RetryAfter
			at := start + 5 + retry
			for now := algorithms.Micros(start + 5); now < at; now += max(second, retry/100) {
				if takeAt(t, s, now, r) || now+r[0].Outcome.Decisions[0].RetryAfter != at {
					t.Fatalf("%v: asking again after %d µs changed the retry-after: %+v", mode, now-start, r[0].Outcome.Decisions)
				}
			}
			if takeAt(t, s, at-1, r) || !takeAt(t, s, at, r) {
				t.Errorf("%v: asking again put it off", mode)
			}
		}
	})
}

// In mode Uniform, denied requests are charged. A client stays out while it keeps asking, and for at most
// two bursts or windows after it stops.
func testLockOut(t *testing.T, s Store) {
	forEach(t, Variants(2, minute), func(t *testing.T, q algorithms.Quota) {
		if len(modesOf(q)) == 1 || q.Period != "" { // locked out until its day ends
			return
		}
		r := newRequest("z", "k", 1, Limit(t, "z", q))
		r[0].Mode = algorithms.Uniform
		now := algorithms.Micros(start)
		for range 100 {
			takeAt(t, s, now, r)
			now += second / 10
		}
		for _, cost := range []int64{1, 2, 3, 1<<31 - 1} {
			r[0].Cost = cost
			if takeAt(t, s, now, r) {
				t.Errorf("cost %d is allowed to a client that keeps asking", cost)
			}
		}
		r[0].Cost = 1
		takeAt(t, s, now, r)
		if d := r[0].Outcome.Decisions[0]; d.RetryAfter > 2*minute || d.ResetAfter > 3*minute {
			t.Fatalf("%+v: locked out for more than two windows", d)
		} else if now += d.RetryAfter; !takeAt(t, s, now, r) {
			t.Error("denied although it waited for RetryAfter")
		}
	})
}

// A cost that never fits has no RetryAfter, even if other limits have one and even if the request may be
// held. Redis_rate returned a time.
func testNeverFits(t *testing.T, s Store) {
	forEach(t, Variants(5, minute), func(t *testing.T, q algorithms.Quota) {
		if q.Algorithm == "smooth" {
			return // which allows any cost
		}
		limit, wide := Limit(t, "z", q), Limit(t, "z", algorithms.Quota{Algorithm: "gcra", Events: 1000, Window: minute})
		newRequest := func(mode algorithms.Mode, used bool) []store.ZoneRequest {
			r := newRequest("z", fmt.Sprint(mode, used), 6, wide, limit)
			if used {
				r[0].Cost = 5
				takeAt(t, s, start, r)
				r[0].Cost = 6
			}
			r[0].Mode = mode
			return r
		}
		for _, used := range []bool{false, true} {
			for _, mode := range []algorithms.Mode{algorithms.Binary, algorithms.Uniform} {
				r := newRequest(mode, used)
				if takeAt(t, s, start, r) || r[0].Outcome.Decisions[1].RetryAfter != algorithms.Forever {
					t.Errorf("%v: cost 6 of 5: %+v", mode, r[0].Outcome.Decisions[1])
				}
				if wait := r[0].Outcome.Decisions[0].RetryAfter; wait != 0 {
					t.Errorf("%v: the limit that had room is waited for %d µs", mode, wait)
				}
			}
			if limit.CheckDelay(60*minute) == nil {
				r := newRequest(algorithms.Binary, used)
				r[0].Limits = r[0].Limits[1:]
				r[0].MaxWait = 60 * minute
				if takeAt(t, s, start, r) || r[0].Outcome.Decisions[0].RetryAfter != algorithms.Forever || r[0].Outcome.Decisions[0].Wait != 0 {
					t.Errorf("held: cost 6 of 5: %+v", r[0].Outcome.Decisions[0])
				}
			}
		}
	})
}

// The same request passes at the end of RetryAfter, over all its limits and zones, and not 1 µs before.
// RisingStack denied all of 1168 requests that came back at the instant it had told them.
func testRetryAfter(t *testing.T, s Store) {
	quotas := Variants(3, minute)
	for seed := range seedtest.Cases(t, uint64(30)) {
		rng := rand.New(rand.NewPCG(seed, 5))
		var r []store.ZoneRequest
		for z := range 1 + rng.IntN(2) {
			zone := fmt.Sprint("z", z)
			q := store.ZoneRequest{Zone: zone, Key: fmt.Sprint(seed), Cost: 1 + rng.Int64N(2)}
			for _, i := range rng.Perm(len(quotas))[:1+rng.IntN(3)] {
				q.Limits = append(q.Limits, Limit(t, zone, quotas[i]))
			}
			modes := []algorithms.Mode{algorithms.Binary, algorithms.Nary, algorithms.Uniform, algorithms.Force}
			q.Mode = modes[rng.IntN(len(modes))]
			var wait algorithms.Micros
			if rng.IntN(2) == 0 {
				wait = 1 + rng.Int64N(minute)
			}
			for _, l := range q.Limits {
				if l.Algorithm().BinaryOnly {
					q.Mode = algorithms.Binary
				}
				if l.CheckDelay(wait) != nil {
					wait = 0
				}
			}
			if q.Mode == algorithms.Binary {
				q.MaxWait = wait
			}
			r = append(r, q)
		}
		now := algorithms.Micros(start + rng.Int64N(minute))
		for denials, n := 0, 0; denials < 5 && n < 100; n++ {
			if takeAt(t, s, now, r) {
				now += rng.Int64N(minute / 8)
				continue
			}
			denials++
			retry := algorithms.Micros(0)
			for _, q := range r {
				for _, d := range q.Outcome.Decisions {
					retry = max(retry, d.RetryAfter)
				}
			}
			first := formatDecisions(r)
			if uniform := slices.ContainsFunc(r, func(q store.ZoneRequest) bool { return q.Mode == algorithms.Uniform }); !uniform {
				if takeAt(t, s, now+retry-1, r) {
					t.Fatalf("seed %d: allowed 1 µs before the retry-after of %d µs:%s", seed, retry, first)
				}
			}
			if now += retry; !takeAt(t, s, now, r) {
				t.Fatalf("seed %d: denied again at the retry-after of %d µs:%s\nnow%s", seed, retry, first, formatDecisions(r))
			}
		}
	}
}

func formatDecisions(r []store.ZoneRequest) string {
	var b strings.Builder
	for _, q := range r {
		for i, d := range q.Outcome.Decisions {
			fmt.Fprintf(&b, "\n  %s %v max wait %d cost %d, %v: %+v", q.Zone, q.Mode, q.MaxWait, q.Cost, q.Limits[i].Limit, d)
		}
	}
	return b.String()
}
