package storetest

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// The windows of tests in invented time are long, for Redis forgets in true time.

// faults are those that other rate limiters were found to have, by name. Each test
// fails on a store or an algorithm that has the fault.
var faults = []test{
	{"fault: boundary tick", testBoundaryTick},
	{"fault: two readings of the clock", testTwoReadings},
	{"fault: clock skew mints tokens", testClockSkew},
	{"fault: a clock slightly behind", testClockBehind},
	{"fault: clock set back", testClockSetBack},
	{"fault: clock set back before a refund", testRefundClockSetBack},
	{"fault: clock set back during a ban", testBanClockSetBack},
	changes("fault: clock set back during a ban by hand", testBanByHandClockSetBack),
	{"fault: clock set back with slots taken", testSlotsClockSetBack},
	{"fault: more than promised", testPromise},
	{"fault: hammering extends the window", testHammering},
	{"fault: a refused client is locked out", testLockOut},
	{"fault: expiry shorter than debt", testExpiryShorterThanDebt},
	{"fault: expiry overflows", testExpiryOverflows},
	{"fault: refused weights create debt", testRefusedWeights},
	{"fault: a weight slips past the last event", testWeightOvershoots},
	{"fault: loosest zone first", testLoosestFirst},
	{"fault: a time to retry for what never passes", testNeverHasATime},
	{"fault: retry-after that is refused again", testRetryAfterIsKept},
	{"fault: names that run together", testNamesRunTogether},
}

// modesOf are the modes a limit can be asked in.
func modesOf(q algorithms.Quota) []algorithms.Mode {
	if a, err := algorithms.Lookup(q.Algorithm); err == nil && a.BinaryOnly {
		return []algorithms.Mode{algorithms.Binary}
	}
	return []algorithms.Mode{algorithms.Binary, algorithms.Nary, algorithms.Uniform, algorithms.Force}
}

// Variants are the quotas of every algorithm, and those whose options make another
// algorithm of it.
func Variants(events int64, window algorithms.Micros) []algorithms.Quota {
	quotas, none := Quotas(events, window), int64(0)
	for _, q := range quotas {
		switch q.Algorithm {
		case "fixed_window":
			q.Align = "clock"
		case "sliding_log":
			q.Buckets = 4
		case "token_bucket":
			q.Initial = &none
		case "smooth":
			q.Burst, q.WarmUp = 0, window
		default:
			continue
		}
		quotas = append(quotas, q)
	}
	return append(quotas, algorithms.Quota{Algorithm: "sliding_log", Events: events, Window: window, MinInterval: window / events / 2})
}

// each runs a part of a test on every limit of a list.
func each(t *testing.T, quotas []algorithms.Quota, run func(t *testing.T, q algorithms.Quota)) {
	for _, q := range quotas {
		name := q.Algorithm
		for _, option := range []struct {
			name string
			set  bool
		}{{"align", q.Align != ""}, {"buckets", q.Buckets != 0}, {"min_interval", q.MinInterval != 0}, {"initial", q.Initial != nil}, {"warm_up", q.WarmUp != 0}} {
			if option.set {
				name += " " + option.name
			}
		}
		t.Run(name, func(t *testing.T) { run(t, q) })
	}
}

// promise is how many events, asked for one at a time, a limit may let pass in a
// span: see the algorithms' own words.
func promise(q algorithms.Quota, span algorithms.Micros) int64 {
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

// holdsPromise checks every span between two of the instants events passed at.
func holdsPromise(t *testing.T, q algorithms.Quota, passed []algorithms.Micros, slack algorithms.Micros) {
	t.Helper()
	for i, first := range passed {
		for n, last := range passed[i:] {
			if most := promise(q, last-first+slack); int64(n+1) > most {
				t.Fatalf("%d events passed within %d µs, the promise is %d", n+1, last-first, most)
			}
		}
	}
}

// drain takes until the first refusal.
func drain(t *testing.T, s Store, now algorithms.Micros, r []store.Request) {
	t.Helper()
	for n := 0; takeAt(t, s, now, r); n++ {
		if n == 1000 {
			t.Fatal("everything passes")
		}
	}
}

// Requests that are refused put nothing off: a client that keeps asking passes at
// the instant it was first told (Kong and APISIX count what they refuse, and extend
// what they count).
func testHammering(t *testing.T, s Store) {
	each(t, Variants(2, minute), func(t *testing.T, q algorithms.Quota) {
		for _, mode := range modesOf(q) {
			if mode == algorithms.Uniform || mode == algorithms.Force {
				continue // there it does, or there is nothing to wait for
			}
			r := ask("z", mode.String(), 1, Limit(t, "z", q))
			r[0].Mode = mode
			drain(t, s, start+5, r)
			at := start + 5 + r[0].Outcome.Decisions[0].RetryAfter
			for now := algorithms.Micros(start + 5); now < at; now += second {
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

// Where refused requests are charged, a client stays out while it keeps asking, and
// no longer than two bursts or windows once it stops.
func testLockOut(t *testing.T, s Store) {
	each(t, Variants(2, minute), func(t *testing.T, q algorithms.Quota) {
		if len(modesOf(q)) == 1 {
			return
		}
		r := ask("z", "k", 1, Limit(t, "z", q))
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
			t.Error("refused although it paused as long as it was told")
		}
	})
}

// Indebted makes a budget owe as much as it can, as of an instant (0: the store's own
// time), and returns how long until one event fits: by charges in advance, or by
// refused requests that are charged.
func Indebted(t *testing.T, s Store, now algorithms.Micros, key string, l store.Limit, inAdvance bool) algorithms.Micros {
	t.Helper()
	r := ask("z", key, 1, l)
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

// Debts are the ways a limit can be made to owe: see [Indebted].
func Debts(t testing.TB, q algorithms.Quota) (inAdvance []bool) {
	if Limit(t, "z", q).CheckDelay(5*q.Window) == nil {
		inAdvance = append(inAdvance, true)
	}
	if len(modesOf(q)) > 1 {
		inAdvance = append(inAdvance, false)
	}
	return inAdvance
}

// A limiter whose state expired after 2 s, whatever was owed, let 50 + 50 + 50
// through where 57 was the most (Traefik), others cut expiry to whole seconds
// (throttled): every debt is remembered until it is paid.
func testExpiryShorterThanDebt(t *testing.T, s Store) {
	each(t, Variants(2, minute+234_567), func(t *testing.T, q algorithms.Quota) {
		limit := Limit(t, "z", q)
		for _, inAdvance := range Debts(t, q) {
			key := fmt.Sprint(inAdvance)
			retry := Indebted(t, s, start, key, limit, inAdvance)
			if inAdvance && retry < 5*q.Window {
				t.Errorf("charges of 5 windows are waited for %d µs", retry)
			}
			r := ask("z", key, 1, limit)
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

// A limiter's expiry of very slow limits overflowed (Traefik): the slowest that can
// be counted are remembered.
func testExpiryOverflows(t *testing.T, s Store) {
	const year = 365 * 24 * 60 * minute
	for _, a := range algorithms.All() {
		t.Run(a.Name, func(t *testing.T) {
			q := algorithms.Quota{Algorithm: a.Name, Events: 1, Window: 70 * year}
			limit := Limit(t, "z", q)
			r := ask("z", "k", 1, limit)
			drain(t, s, start, r)
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

// Refused weights, taken off all the same, left a budget of 10 at -30 and kept
// requests of weight 1 out for long (Upstash): what is refused, or let pass by
// force, is no debt.
func testRefusedWeights(t *testing.T, s Store) {
	each(t, Variants(10, minute), func(t *testing.T, q algorithms.Quota) {
		limit, full := Limit(t, "z", q), Limit(t, "full", algorithms.Quota{Algorithm: "gcra", Events: 1, Window: 60 * minute})
		takeAt(t, s, start, ask("full", "k", 1, full))
		for _, mode := range modesOf(q) {
			if mode == algorithms.Uniform {
				continue // there it is
			}
			now, key := algorithms.Micros(start), mode.String()
			for _, filled := range []int64{3, 10} {
				r := ask("z", key, 1, limit)
				for range filled {
					takeAt(t, s, now, r)
				}
				state := func() algorithms.Decision { // as anyone else sees it, who costs 1
					peek := ask("z", key, 0, limit)
					takeAt(t, s, now, peek)
					return peek[0].Outcome.Decisions[0]
				}
				before := state()
				r[0].Mode = mode
				for range 5 {
					for _, cost := range []int64{8, 11, 1<<31 - 1} {
						r[0].Cost = cost
						with := append(slices.Clone(r), ask("full", "k", 1, full)...) // which refuses
						if takeAt(t, s, now, with) {
							t.Fatalf("%v: allowed although another zone refuses", mode)
						}
						if before.Remaining == 0 && mode != algorithms.Force && takeAt(t, s, now, r) {
							t.Fatalf("%v: cost %d is allowed with nothing remaining", mode, cost)
						}
						if mode == algorithms.Force && before.Remaining == 0 && !takeAt(t, s, now, r) {
							t.Fatalf("%v: refused", mode)
						}
						if mode == algorithms.Binary && q.Algorithm != "smooth" && takeAt(t, s, now, r) {
							t.Fatalf("%v: cost %d is allowed with %d remaining", mode, cost, before.Remaining)
						}
					}
				}
				if after := state(); after != before {
					t.Errorf("%v: refused weights made %+v of %+v", mode, after, before)
				}
			}
		}
	})
}

// A limiter that asks whether anything is left, and then takes the whole weight,
// admits more than the limit (APISIX's sliding windows).
func testWeightOvershoots(t *testing.T, s Store) {
	each(t, Variants(10, minute), func(t *testing.T, q algorithms.Quota) {
		if q.Algorithm == "smooth" {
			return // whose promise is that the next request pays
		}
		limit := Limit(t, "z", q)
		for _, mode := range modesOf(q) {
			r, now := ask("z", mode.String(), 9, limit), algorithms.Micros(start+minute)
			takeAt(t, s, start, r) // so that there are 10, initially or by now
			takeAt(t, s, now+minute, r)
			now += 2*minute + q.MinInterval
			r[0].Mode = mode
			peek := ask("z", mode.String(), 0, limit)
			takeAt(t, s, now, peek)
			left := peek[0].Outcome.Decisions[0].Remaining
			r[0].Cost = left + 1
			allowed := takeAt(t, s, now, r)
			d := r[0].Outcome.Decisions[0]
			if want := mode == algorithms.Nary || mode == algorithms.Force; allowed != want {
				t.Errorf("%v: cost %d with %d remaining: allowed %v", mode, left+1, left, allowed)
			}
			if allowed && d.Charged != left {
				t.Errorf("%v: charged %d with %d remaining", mode, d.Charged, left)
			}
		}
	})
}

// Where several limits are asked in turn, and each is charged before the next is
// asked, a request that is refused in the end has used up the loose ones
// (caddy-ratelimit, Kong, APISIX): whatever the order, a refusal charges nothing.
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
	each(t, Quotas(10, minute), func(t *testing.T, q algorithms.Quota) {
		for n, order := range orders {
			for _, oneZone := range []bool{false, true} {
				for _, mode := range modesOf(q) {
					if mode == algorithms.Uniform || mode == algorithms.Force && oneZone {
						continue
					}
					key := fmt.Sprint(n, oneZone, mode)
					var r []store.Request
					for _, o := range order {
						limited := q
						limited.Events = o.events
						if q.Algorithm == "smooth" {
							limited.Burst = o.events - 1
						}
						if limit := Limit(t, o.zone, limited); oneZone && len(r) > 0 {
							r[0].Limits = append(r[0].Limits, limit)
						} else {
							r = append(r, ask(o.zone, key, 1, limit)...)
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

// A limiter told requests that can never pass when to try again (redis_rate):
// whatever else there is to wait for, these never pass, held or not.
func testNeverHasATime(t *testing.T, s Store) {
	each(t, Variants(5, minute), func(t *testing.T, q algorithms.Quota) {
		if q.Algorithm == "smooth" {
			return // which serves any cost
		}
		limit, wide := Limit(t, "z", q), Limit(t, "z", algorithms.Quota{Algorithm: "gcra", Events: 1000, Window: minute})
		ask := func(mode algorithms.Mode, used bool) []store.Request {
			r := ask("z", fmt.Sprint(mode, used), 6, wide, limit)
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
				r := ask(mode, used)
				if takeAt(t, s, start, r) || r[0].Outcome.Decisions[1].RetryAfter != algorithms.Forever {
					t.Errorf("%v: cost 6 of 5: %+v", mode, r[0].Outcome.Decisions[1])
				}
				if wait := r[0].Outcome.Decisions[0].RetryAfter; wait != 0 {
					t.Errorf("%v: the limit that had room is waited for %d µs", mode, wait)
				}
			}
			if limit.CheckDelay(60*minute) == nil {
				r := ask(algorithms.Binary, used)
				r[0].Limits = r[0].Limits[1:]
				r[0].MaxWait = 60 * minute
				if takeAt(t, s, start, r) || r[0].Outcome.Decisions[0].RetryAfter != algorithms.Forever || r[0].Outcome.Decisions[0].Wait != 0 {
					t.Errorf("held: cost 6 of 5: %+v", r[0].Outcome.Decisions[0])
				}
			}
		}
	})
}

// A limiter refused all of 1168 requests that came back when it had told them to
// (RisingStack): the identical request passes at the instant told, held as long as
// it said it would be, and not 1 µs before, over all limits and zones it is in.
func testRetryAfterIsKept(t *testing.T, s Store) {
	quotas := Variants(3, minute)
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 5))
		var r []store.Request
		for z := range 1 + rng.IntN(2) {
			zone := fmt.Sprint("z", z)
			q := store.Request{Zone: zone, Key: fmt.Sprint(seed), Cost: 1 + rng.Int64N(2)}
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
		for refusals, n := 0, 0; refusals < 5 && n < 100; n++ {
			if takeAt(t, s, now, r) {
				now += rng.Int64N(minute / 8)
				continue
			}
			refusals++
			retry := algorithms.Micros(0)
			for _, q := range r {
				for _, d := range q.Outcome.Decisions {
					retry = max(retry, d.RetryAfter)
				}
			}
			told := describe(r)
			if uniform := slices.ContainsFunc(r, func(q store.Request) bool { return q.Mode == algorithms.Uniform }); !uniform {
				if takeAt(t, s, now+retry-1, r) {
					t.Fatalf("seed %d: allowed 1 µs before the retry-after of %d µs:%s", seed, retry, told)
				}
			}
			if now += retry; !takeAt(t, s, now, r) {
				t.Fatalf("seed %d: refused again at the retry-after of %d µs:%s\nnow%s", seed, retry, told, describe(r))
			}
		}
	}
}

func describe(r []store.Request) string {
	var b strings.Builder
	for _, q := range r {
		for i, d := range q.Outcome.Decisions {
			fmt.Fprintf(&b, "\n  %s %v max wait %d cost %d, %v: %+v", q.Zone, q.Mode, q.MaxWait, q.Cost, q.Limits[i].Limit, d)
		}
	}
	return b.String()
}

// A limiter joined names without telling where one ends (Envoy's ratelimit), so two
// clients could share a budget.
func testNamesRunTogether(t *testing.T, s Store) {
	q := algorithms.Quota{Algorithm: "gcra", Events: 1, Window: minute}
	var all []store.Request
	for _, names := range [][2]string{{"a", "b_c"}, {"a_b", "c"}, {"a", "b:c"}, {"a:b", "c"}, {"a", ":b"}, {"a:", "b"}, {"", "ab"}, {"ab", ""}, {"b_c", "a"}} {
		all = append(all, ask(names[0], names[1], 1, Limit(t, names[0], q))...)
	}
	for _, r := range all {
		if !takeAt(t, s, start, []store.Request{r}) {
			t.Errorf("zone %q key %q was refused on another's account", r.Zone, r.Key)
		}
	}
}
