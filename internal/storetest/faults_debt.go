package storetest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Indebted makes a budget owe as much as possible, at an instant; 0 stands for the store's clock. It does
// so by charges in advance, or else by charged denials in mode Uniform. It returns the time until one
// event fits.
func Indebted(t *testing.T, s Store, now algorithms.Micros, key string, l store.Limit, inAdvance bool) algorithms.Micros {
	t.Helper()
	r := newRequest("z", key, 1, l)
	if inAdvance {
		r[0].MaxWait = 5 * l.Window
	} else {
		r[0].Mode = algorithms.Uniform
	}
	for range 40 {
		takeAt(t, s, now, r)
	}
	r[0].Mode, r[0].MaxWait = algorithms.Binary, 0
	if takeAt(t, s, now, r) {
		t.Fatal("allowed in spite of its debt")
	}
	return r[0].Outcome.Decisions[0].RetryAfter
}

// Debts returns the arguments inAdvance for which [Indebted] works with a limit.
func Debts(t testing.TB, q algorithms.Quota) (inAdvance []bool) {
	if Limit(t, "z", q).CheckDelay(5*q.Window) == nil {
		inAdvance = append(inAdvance, true)
	}
	if len(modesOf(q)) > 1 {
		inAdvance = append(inAdvance, false)
	}
	return inAdvance
}

// A debt is remembered until it is paid. Traefik's state expired after 2 s at any debt, so 150 requests
// passed where 57 was the limit. The limiter throttled cut expiries to whole seconds.
func testExpiryShorterThanDebt(t *testing.T, s Store) {
	forEach(t, Variants(2, minute+234_567), func(t *testing.T, q algorithms.Quota) {
		limit := Limit(t, "z", q)
		for _, inAdvance := range Debts(t, q) {
			key := fmt.Sprint(inAdvance)
			retry := Indebted(t, s, start, key, limit, inAdvance)
			if inAdvance && retry < 5*q.Window {
				t.Errorf("charges of 5 windows are waited for %d µs", retry)
			}
			r := newRequest("z", key, 1, limit)
			for _, at := range []algorithms.Micros{1, retry / 4, retry / 2, retry * 3 / 4, retry - second, retry - 1} {
				if takeAt(t, s, start+at, r) {
					t.Fatalf("in advance %v: the debt is forgotten after %d of %d µs", inAdvance, at, retry)
				}
				if d := r[0].Outcome.Decisions[0]; at+d.RetryAfter != retry || d.ResetAfter < d.RetryAfter {
					t.Errorf("in advance %v: after %d of %d µs: %+v", inAdvance, at, retry, d)
				}
			}
			if !takeAt(t, s, start+retry, r) {
				t.Errorf("in advance %v: the debt is not paid after %d µs", inAdvance, retry)
			}
		}
	})
}

// The slowest limits that can be counted are remembered. In Traefik the expiry of very slow limits
// overflowed.
func testExpiryOverflows(t *testing.T, s Store) {
	const year = 365 * 24 * 60 * minute
	for _, a := range algorithms.All() {
		if a.Calendar { // which has no slower period than a year
			continue
		}
		t.Run(a.Name, func(t *testing.T) {
			q := algorithms.Quota{Algorithm: a.Name, Events: 1, Window: 70 * year}
			limit := Limit(t, "z", q)
			r := newRequest("z", "k", 1, limit)
			takeUntilDenied(t, s, start, r)
			if retry := r[0].Outcome.Decisions[0].RetryAfter; retry < 50*year {
				t.Errorf("1 in 70 years comes back after %d µs", retry)
			}
			for _, at := range []algorithms.Micros{0, 1, second, year, 15 * year} {
				if takeAt(t, s, start+at, r) {
					t.Errorf("1 in 70 years passes again after %d µs", at)
				}
			}
		})
	}
}

// A denied cost makes no debt. An event that passes by mode Force makes no debt. Upstash subtracted denied
// costs, which left a budget of 10 at -30, and denied requests of cost 1 for long.
func testDeniedCosts(t *testing.T, s Store) {
	forEach(t, Variants(10, minute), func(t *testing.T, q algorithms.Quota) {
		limit, full := Limit(t, "z", q), Limit(t, "full", algorithms.Quota{Algorithm: "gcra", Events: 1, Window: 60 * minute})
		takeAt(t, s, start, newRequest("full", "k", 1, full))
		for _, mode := range modesOf(q) {
			if mode == algorithms.Uniform {
				continue // which charges denied costs
			}
			now, key := algorithms.Micros(start), mode.String()
			for _, filled := range []int64{3, 10} {
				r := newRequest("z", key, 1, limit)
				for range filled {
					takeAt(t, s, now, r)
				}
				state := func() algorithms.Decision { // as a peek sees it
					peek := newRequest("z", key, 0, limit)
					takeAt(t, s, now, peek)
					return peek[0].Outcome.Decisions[0]
				}
				before := state()
				r[0].Mode = mode
				for range 5 {
					for _, cost := range []int64{8, 11, 1<<31 - 1} {
						r[0].Cost = cost
						with := append(slices.Clone(r), newRequest("full", "k", 1, full)...) // whose limit is used up
						if takeAt(t, s, now, with) {
							t.Fatalf("%v: allowed although another zone denies", mode)
						}
						if before.Remaining == 0 && mode != algorithms.Force && takeAt(t, s, now, r) {
							t.Fatalf("%v: cost %d is allowed with nothing remaining", mode, cost)
						}
						if mode == algorithms.Force && before.Remaining == 0 && !takeAt(t, s, now, r) {
							t.Fatalf("%v: denied", mode)
						}
						if mode == algorithms.Binary && q.Algorithm != "smooth" && takeAt(t, s, now, r) {
							t.Fatalf("%v: cost %d is allowed with %d remaining", mode, cost, before.Remaining)
						}
					}
				}
				after := state()
				if limit.Algorithm().Calendar && mode == algorithms.Force { // it counts all of it
					before.Receipt, before.Used, after.Receipt, after.Used = algorithms.Receipt{}, 0, algorithms.Receipt{}, 0
				}
				if after != before {
					t.Errorf("%v: denied costs made %+v of %+v", mode, after, before)
				}
			}
		}
	})
}
