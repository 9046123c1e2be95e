package storetest

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// faults has a test for each fault that other rate limiters were found to have. The test fails on a store
// or an algorithm that has the fault.
var faults = []test{
	{"fault: boundary tick", testBoundaryTick},
	{"fault: the clock is read twice", testClockReadTwice},
	{"fault: clock skew mints tokens", testClockSkew},
	{"fault: a clock slightly behind", testClockBehind},
	{"fault: clock set back", testClockSetBack},
	{"fault: clock set back before a refund", testRefundClockSetBack},
	{"fault: clock set back during a ban", testBanClockSetBack},
	changeTest("fault: clock set back during a ban by hand", testBanByHandClockSetBack),
	{"fault: clock set back with slots taken", testSlotsClockSetBack},
	{"fault: more than promised", testPromise},
	{"fault: hammering extends the window", testHammering},
	{"fault: a denied client is locked out", testLockOut},
	{"fault: expiry shorter than debt", testExpiryShorterThanDebt},
	{"fault: expiry overflows", testExpiryOverflows},
	{"fault: denied costs create debt", testDeniedCosts},
	{"fault: a cost slips past the last event", testCostOvershoots},
	{"fault: loosest zone first", testLoosestFirst},
	{"fault: a retry-after for a cost that never fits", testNeverFits},
	{"fault: retry-after that is denied again", testRetryAfter},
	{"fault: similar names share a budget", testSimilarNames},
}

// maxPassed returns the largest number of events that may pass in a span, by requests of cost 1. The
// comments of the algorithms say why.
func maxPassed(q algorithms.Quota, span algorithms.Micros) int64 {
	if q.Algorithm == "calendar" {
		q.Algorithm, q.Window = "fixed_window", 22*60*minute // a short day
	}
	burst, refill := cmp.Or(q.Burst, q.Events), span*q.Events/q.Window
	switch {
	case q.Algorithm == "sliding_log":
		return q.Events * (span/q.Window + 1)
	case q.Algorithm == "fixed_window", q.Algorithm == "sliding_window":
		return q.Events * (span/q.Window + 2)
	case q.Algorithm == "leaky_bucket":
		return burst + (span+q.Window-1)/q.Window*q.Events
	case q.WarmUp > 0: // the last request of a span comes on top
		return refill + 1
	case q.Algorithm == "smooth":
		return burst + refill + 1
	}
	return burst + refill
}

// checkPromise checks the number of events in every span between two instants at which events passed.
func checkPromise(t *testing.T, q algorithms.Quota, passed []algorithms.Micros, slack algorithms.Micros) {
	t.Helper()
	for i, first := range passed {
		for n, last := range passed[i:] {
			if allowed := maxPassed(q, last-first+slack); int64(n+1) > allowed {
				t.Fatalf("%d events passed within %d µs, the promise is %d", n+1, last-first, allowed)
			}
		}
	}
}

// A request passes only if its whole cost fits. APISIX's sliding windows only ask whether one event is
// left, and so allow more than the limit.
func testCostOvershoots(t *testing.T, s Store) {
	forEach(t, Variants(10, minute), func(t *testing.T, q algorithms.Quota) {
		if q.Algorithm == "smooth" {
			return // where the next request waits for the cost of this one
		}
		limit := Limit(t, "z", q)
		for _, mode := range modesOf(q) {
			r, now := newRequest("z", mode.String(), 9, limit), algorithms.Micros(start+minute)
			takeAt(t, s, start, r) // so that there are 10, initially or by now
			takeAt(t, s, now+minute, r)
			now += 2*minute + q.MinInterval
			r[0].Mode = mode
			peek := newRequest("z", mode.String(), 0, limit)
			takeAt(t, s, now, peek)
			left := peek[0].Outcome.Decisions[0].Remaining
			r[0].Cost = left + 1
			allowed := takeAt(t, s, now, r)
			d := r[0].Outcome.Decisions[0]
			if want := mode == algorithms.Nary || mode == algorithms.Force; allowed != want {
				t.Errorf("%v: cost %d with %d remaining: allowed %v", mode, left+1, left, allowed)
			}
			inFull := mode == algorithms.Force && q.Period != ""
			if allowed && d.Charged != left && !inFull {
				t.Errorf("%v: charged %d with %d remaining", mode, d.Charged, left)
			}
		}
	})
}

// A denial charges nothing, in any order of the limits. Caddy-ratelimit, Kong and APISIX charge each limit
// before they ask the next one. So a request that is denied in the end uses up the loose limits.
func testLoosestFirst(t *testing.T, s Store) {
	type one struct {
		zone   string
		events int64
	}
	orders := [][]one{
		{{"loose", 10}, {"middle", 5}, {"tight", 2}},
		{{"loose", 10}, {"tight", 2}, {"middle", 5}},
		{{"middle", 5}, {"loose", 10}, {"tight", 2}},
		{{"middle", 5}, {"tight", 2}, {"loose", 10}},
		{{"tight", 2}, {"loose", 10}, {"middle", 5}},
		{{"tight", 2}, {"middle", 5}, {"loose", 10}},
	}
	forEach(t, Quotas(10, minute), func(t *testing.T, q algorithms.Quota) {
		for n, order := range orders {
			for _, oneZone := range []bool{false, true} {
				for _, mode := range modesOf(q) {
					if mode == algorithms.Uniform || mode == algorithms.Force && oneZone {
						continue
					}
					key := fmt.Sprint(n, oneZone, mode)
					var r []store.ZoneRequest
					for _, o := range order {
						limited := q
						limited.Events = o.events
						if q.Algorithm == "smooth" {
							limited.Burst = o.events - 1
						}
						if limit := Limit(t, o.zone, limited); oneZone && len(r) > 0 {
							r[0].Limits = append(r[0].Limits, limit)
						} else {
							r = append(r, newRequest(o.zone, key, 1, limit)...)
						}
						if last := &r[len(r)-1]; o.zone != "tight" || oneZone {
							last.Mode = mode
						}
					}
					for i := range 6 {
						if allowed := takeAt(t, s, start, r); allowed != (i < 2) {
							t.Fatalf("%v: request %d: allowed %v", order, i+1, allowed)
						}
					}
					decided := 0
					for _, request := range r {
						for _, d := range request.Outcome.Decisions {
							if want := order[decided].events - 2; d.Remaining != want || d.Charged != 0 {
								t.Errorf("%v %v: %s has %d remaining, want %d", order, mode, order[decided].zone, d.Remaining, want)
							}
							decided++
						}
					}
				}
			}
		}
	})
}

// Zones and keys whose names look alike when joined have separate budgets. Envoy's ratelimit joined names
// without a separator, so two clients could share a budget.
func testSimilarNames(t *testing.T, s Store) {
	q := algorithms.Quota{Algorithm: "gcra", Events: 1, Window: minute}
	var all []store.ZoneRequest
	for _, names := range [][2]string{
		{"a", "b_c"}, {"a_b", "c"}, {"a", "b:c"}, {"a:b", "c"}, {"a", ":b"}, {"a:", "b"}, {"", "ab"}, {"ab", ""}, {"b_c", "a"},
	} {
		all = append(all, newRequest(names[0], names[1], 1, Limit(t, names[0], q))...)
	}
	for _, r := range all {
		if !takeAt(t, s, start, []store.ZoneRequest{r}) {
			t.Errorf("zone %q key %q was denied because of another", r.Zone, r.Key)
		}
	}
}

// At any timing of requests, no span has more events than the algorithm promises.
func testPromise(t *testing.T, s Store) {
	forEach(t, Variants(4, minute), func(t *testing.T, q algorithms.Quota) {
		for seed := range uint64(3) {
			rng := rand.New(rand.NewPCG(seed, 4))
			r := newRequest("z", fmt.Sprint(seed), 1, Limit(t, "z", q))
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
				now += r[0].Outcome.Decisions[0].RetryAfter // at once, or some time later
				now += []algorithms.Micros{0, 0, 1, rng.Int64N(minute), rng.Int64N(3 * minute)}[rng.IntN(5)]
			}
			if checkPromise(t, q, passed, 0); t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
	})
}
