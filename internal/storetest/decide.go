package storetest

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

func testDecides(t *testing.T, s Store) {
	for _, q := range Quotas(3, minute) {
		t.Run(q.Algorithm, func(t *testing.T) {
			r := newRequest("z", "alice", 1, Limit(t, "z", q))
			for i := range int64(3) {
				if !takeAt(t, s, start, r) {
					t.Fatalf("request %d of 3 was denied: %+v", i+1, r[0].Outcome.Decisions)
				}
				checkOutcome(t, &r[0], store.Allowed)
				if d := r[0].Outcome.Decisions[0]; !d.Allowed || d.Charged != 1 || d.Remaining != 2-i || d.RetryAfter != 0 {
					t.Errorf("request %d: %+v, want it allowed and charged with %d remaining", i+1, d, 2-i)
				}
			}
			if takeAt(t, s, start, r) {
				t.Fatalf("the fourth request was allowed: %+v", r[0].Outcome.Decisions)
			}
			checkOutcome(t, &r[0], store.Denied)
			d := r[0].Outcome.Decisions[0]
			if d.Allowed || d.Charged != 0 || d.Remaining != 0 || d.RetryAfter <= 0 || d.RetryAfter > 2*minute && q.Period == "" {
				t.Errorf("the fourth request: %+v", d)
			}
			if takeAt(t, s, start+d.RetryAfter-1, r) {
				t.Error("allowed 1 µs before its retry-after")
			}
			if !takeAt(t, s, start+d.RetryAfter, r) {
				t.Error("denied at its retry-after")
			}
		})
	}
}

func testAllOrNone(t *testing.T, s Store) {
	for i, q := range Quotas(10, minute) {
		t.Run(q.Algorithm, func(t *testing.T) {
			few := Quotas(2, minute)[i]
			wide, narrow := Limits(t, "wide", q, few), Limit(t, "narrow", few)
			// Three limits: two of one zone and key, one of another zone and key.
			r := []store.ZoneRequest{
				{Zone: "wide", Key: "a", Cost: 1, Limits: wide},
				{Zone: "narrow", Key: "b", Cost: 1, Limits: []store.Limit{narrow}},
			}
			takeAt(t, s, start, r)
			takeAt(t, s, start, newRequest("narrow", "b", 1, narrow))
			if takeAt(t, s, start, r) {
				t.Fatal("allowed although one of three limits was exhausted")
			}
			checkOutcome(t, &r[0], store.Allowed)
			checkOutcome(t, &r[1], store.Denied)
			if d := r[1].Outcome.Decisions[0]; d.Allowed || d.RetryAfter == 0 {
				t.Errorf("the denying limit: %+v", d)
			}
			for i, want := range []int64{9, 1} {
				if d := r[0].Outcome.Decisions[i]; !d.Allowed || d.Charged != 0 || d.Remaining != want {
					t.Errorf("limit %d had room and should not be charged, with %d remaining: %+v", i, want, d)
				}
			}
			peek := newRequest("wide", "a", 0, wide...)
			takeAt(t, s, start, peek)
			if got := peek[0].Outcome.Decisions; got[0].Remaining != 9 || got[1].Remaining != 1 {
				t.Errorf("a denied request was charged: %+v", got)
			}
		})
	}
}

func testShadow(t *testing.T, s Store) {
	for i, q := range Quotas(2, minute) {
		t.Run(q.Algorithm, func(t *testing.T) {
			// Two shadows, one of them with two limits, and an ordinary zone.
			few, fewer, many := q, Quotas(1, minute)[i], Quotas(3, minute)[i]
			r := []store.ZoneRequest{
				{Zone: "s1", Key: "a", Cost: 1, Shadow: true, Limits: Limits(t, "s1", many, fewer)},
				{Zone: "z", Key: "a", Cost: 1, Limits: []store.Limit{Limit(t, "z", many)}},
				{Zone: "s2", Key: "b", Cost: 1, Shadow: true, Limits: []store.Limit{Limit(t, "s2", few)}},
			}
			for n, want := range []struct {
				allowed bool
				charged [4]int64 // s1's limits, z's, s2's
			}{
				{true, [4]int64{1, 1, 1, 1}},
				{true, [4]int64{0, 0, 1, 1}}, // s1 denies by its second limit
				{true, [4]int64{0, 0, 1, 0}}, // s2 denies, too
				{false, [4]int64{0, 0, 0, 0}},
			} {
				allowed := takeAt(t, s, start, r)
				s1, z, s2 := r[0].Outcome.Decisions, r[1].Outcome.Decisions, r[2].Outcome.Decisions
				charged := [4]int64{s1[0].Charged, s1[1].Charged, z[0].Charged, s2[0].Charged}
				if allowed != want.allowed || charged != want.charged {
					t.Errorf("request %d: allowed %v, charged %d, want %+v", n+1, allowed, charged, want)
				}
			}
			if d := r[0].Outcome.Decisions; !d[0].Allowed || d[1].Allowed || d[1].RetryAfter == 0 || r[2].Outcome.Decisions[0].Allowed {
				t.Errorf("the shadows don't have their own verdict: %+v %+v", d, r[2].Outcome.Decisions)
			}
			for i := range r {
				checkOutcome(t, &r[i], store.Denied)
			}
			other := newRequest("s2", "c", 1, r[2].Limits[0])
			other[0].Shadow = true
			// If z denies, a shadow with room is not charged.
			pair := []store.ZoneRequest{r[1], other[0]}
			if takeAt(t, s, start, pair) || !takeAt(t, s, start, other) || other[0].Outcome.Decisions[0].Remaining != 1 {
				t.Errorf("a shadow was charged although another zone denied: %+v", other[0].Outcome.Decisions)
			}
			// A shadow has its own verdict, even if the zone of another key denies.
			beside := newRequest("z3", "a", 1, Limit(t, "z3", many))[0]
			denying := newRequest("z", "b", 4, r[1].Limits[0])[0]
			if denying.Limits[0].Algorithm().BinaryOnly { // it serves any cost
				denying = r[1]
			}
			three := []store.ZoneRequest{r[0], beside, denying}
			if takeAt(t, s, start, three) || three[0].Outcome.Decisions[1].Allowed || three[1].Outcome.Decisions[0].Charged != 0 {
				t.Errorf("a shadow that denies, one with room, and one of another key that denies: %+v", three)
			}
			// A uniform shadow charges itself for a denial, but no other zone.
			if r[0].Limits[0].Algorithm().BinaryOnly {
				return
			}
			both := append(newRequest("s3", "a", 2, Limit(t, "s3", fewer)), newRequest("z2", "a", 1, Limit(t, "z2", many))...)
			both[0].Shadow, both[0].Mode = true, algorithms.Uniform
			if !takeAt(t, s, start, both) || both[0].Outcome.Decisions[0].Charged == 0 || both[1].Outcome.Decisions[0].Charged != 1 {
				t.Errorf("a uniform shadow: %+v", both)
			}
		})
	}
}

func testPeek(t *testing.T, s Store) {
	for _, q := range Quotas(5, minute) {
		limit := Limit(t, "z", q)
		peek := newRequest("z", "k", 0, limit)
		for range 3 {
			if !takeAt(t, s, start, peek) {
				t.Errorf("%s: a peek was denied", q.Algorithm)
			}
			if d := peek[0].Outcome.Decisions[0]; d.Remaining != 5 || d.ResetAfter != 0 || d.MoreAfter != 0 || d.Charged != 0 {
				t.Errorf("%s: peek at an untouched budget: %+v", q.Algorithm, d)
			}
		}
		takeAt(t, s, start, newRequest("z", "k", 5, limit))
		if !takeAt(t, s, start, peek) || peek[0].Outcome.Decisions[0].Remaining != 0 {
			t.Errorf("%s: peek at an empty budget: %+v", q.Algorithm, peek[0].Outcome.Decisions)
		}
	}
	for _, q := range Variants(5, minute) {
		for _, mode := range modesOf(q) {
			testPeekDecides(t, s, q, mode)
		}
	}
}

// testPeekOfKeys peeks at two keys at once. One of them denies.
func testPeekOfKeys(t *testing.T, s Store) {
	for _, q := range Quotas(5, minute) {
		for _, mode := range modesOf(q) {
			zone := fmt.Sprint("peek", mode)
			slots := &store.Slots{ID: store.SlotsID(zone, ""), Limit: 1}
			takeAt(t, s, start, newRequest(zone, "full", 5, Limit(t, zone, q)))
			both := append(newRequest(zone, "free", 3, Limit(t, zone, q)), newRequest(zone, "full", 3, Limit(t, zone, q))...)
			for i := range both {
				both[i].Mode, both[i].Slots, both[i].Peek = mode, slots, true
			}
			both[1].Mode = algorithms.Binary
			for range 2 {
				if takeAt(t, s, start, both) {
					t.Fatalf("%v %v: a peek is allowed that one key denies", q, mode)
				}
				free, full := both[0].Outcome, both[1].Outcome
				if free.Verdict != store.Allowed || free.Slots.InFlight != 0 || full.Verdict != store.Denied || full.Decisions[0].RetryAfter == 0 {
					t.Fatalf("%v %v: a peek at two keys says %+v and %+v", q, mode, free, full)
				}
			}
			look := newRequest(zone, "free", 0, Limit(t, zone, q))
			if takeAt(t, s, start, look); look[0].Outcome.Decisions[0].ResetAfter != 0 {
				t.Errorf("%v %v: a peek changed a key: %+v", q, mode, look[0].Outcome)
			}
		}
	}
}

// testPeekDecides compares peeks of any cost with the takes that follow them. The zone has a ban and
// slots, too.
func testPeekDecides(t *testing.T, s Store, q algorithms.Quota, mode algorithms.Mode) {
	zone := fmt.Sprint("peek", mode)
	ban := Ban(t, zone, algorithms.Ban{After: 3, Window: minute, Duration: minute, Max: minute})
	limit := Limit(t, zone, q)
	take := newRequest(zone, "k", 0, limit)
	take[0].Mode, take[0].Ban, take[0].Slots = mode, ban, &store.Slots{ID: store.SlotsID(zone, ""), Limit: 4}
	take[0].Key = fmt.Sprint(q)
	peek := slices.Clone(take)
	peek[0].Peek = true
	now := algorithms.Micros(start)
	for step, cost := range []int64{2, 4, 1, 6, 0, 3, 1, 1, 9, 1, 2, 1} {
		now += algorithms.Micros(step) * 1000
		take[0].Cost, peek[0].Cost = cost, cost
		takeAt(t, s, now, peek)
		takeAt(t, s, now, peek) // finds nothing changed
		p := peek[0].Outcome
		p.Decisions = slices.Clone(p.Decisions)
		allowed := takeAt(t, s, now, take)
		o := take[0].Outcome
		if p.Verdict != o.Verdict || p.Slots.Free != o.Slots.Free || p.Slots.Taken || p.Ban != o.Ban {
			t.Errorf("%v %v: step %d: the peek says %+v, the take %+v", q, mode, step, p, o)
		}
		for i, d := range p.Decisions {
			want := o.Decisions[i]
			if limit.Algorithm().Calendar && (d.Used == q.Events-d.Remaining || mode == algorithms.Force && d.Remaining == 0 && d.Used > q.Events) {
				d.Receipt = algorithms.Receipt{} // it had the end of the period
			}
			if d.Allowed != want.Allowed || d.Charged != 0 || d.Receipt != (algorithms.Receipt{}) ||
				d.RetryAfter != want.RetryAfter && mode != algorithms.Uniform {
				t.Errorf("%v %v: step %d: the peek says %+v, the take %+v", q, mode, step, d, want)
			}
		}
		inFlight := o.Slots.InFlight
		if o.Slots.Taken {
			inFlight--
		}
		if o.Slots.Taken != allowed || p.Slots.InFlight != inFlight {
			t.Errorf("%v %v: step %d: %d in flight before, and %+v after", q, mode, step, p.Slots.InFlight, o.Slots)
		}
	}
}

func testCostAboveBurst(t *testing.T, s Store) {
	for _, q := range Quotas(5, minute) {
		if q.Algorithm == "smooth" {
			continue // the next request waits for the cost of this one
		}
		for _, cost := range []int64{6, 1<<31 - 1} {
			r := newRequest("z", "k", cost, Limit(t, "z", q))
			if takeAt(t, s, start, r) {
				t.Errorf("%s: cost %d of 5 was allowed", q.Algorithm, cost)
			}
			if d := r[0].Outcome.Decisions[0]; d.RetryAfter != algorithms.Forever || d.Remaining != 5 {
				t.Errorf("%s: cost %d of 5: %+v", q.Algorithm, cost, d)
			}
		}
	}
}

// testChangedLimit raises a limit, and lowers it. Used events stay used until their window ends. To
// the lower limit its budget is full, and it owes nothing. A denial by the lower limit changes nothing.
func testChangedLimit(t *testing.T, s Store) {
	lower, higher := Quotas(3, minute), Quotas(30, minute)
	for i, q := range Quotas(10, minute) {
		take := func(now algorithms.Micros, q algorithms.Quota, cost, remaining int64) {
			t.Helper()
			r := newRequest("z", "k", cost, Limit(t, "z", q))
			if allowed := takeAt(t, s, now, r); allowed != (cost <= 10) || r[0].Outcome.Decisions[0].Remaining != remaining {
				t.Errorf("%v: %v, %+v, want %d remaining", r[0].Limits[0], allowed, r[0].Outcome.Decisions, remaining)
			}
		}
		if q.Algorithm == "smooth" { // which saves up one event less, and allows any cost
			continue
		}
		take(start, q, 6, 4)
		take(start, higher[i], 1, 23)
		take(start, lower[i], 0, 0)
		take(start, lower[i], 11, 0)
		take(start, q, 1, 2)
		end := start + algorithms.Micros(minute)
		switch q.Algorithm {
		case "calendar":
			end = start + 24*60*minute
		case "sliding_window":
			end += minute
		}
		take(end, lower[i], 0, 3)
	}
}

func testKeys(t *testing.T, s Store) {
	q := algorithms.Quota{Algorithm: "fixed_window", Events: 1, Window: minute}
	a, b := Limit(t, "a", q), Limit(t, "b", q)
	for _, r := range [][]store.ZoneRequest{
		newRequest("a", "k", 1, a), newRequest("b", "k", 1, b), newRequest("a", "K", 1, a), newRequest("a", "", 1, a),
	} {
		if !takeAt(t, s, start, r) {
			t.Errorf("zone %q key %q was denied because of another", r[0].Zone, r[0].Key)
		}
		if takeAt(t, s, start, r) {
			t.Errorf("zone %q key %q was allowed twice", r[0].Zone, r[0].Key)
		}
	}
}

func testStrangeKeys(t *testing.T, s Store) {
	limit := Limit(t, "z", algorithms.Quota{Algorithm: "gcra", Events: 1, Window: minute})
	long := make([]byte, 100_000)
	for i := range long {
		long[i] = byte(i)
	}
	keys := []string{
		"", "{", "}", "{}", "{a}b", "a}:z:{", "%", "%7B", "{%}", "\x00", "a\nb", "a\r\nb", " ", "\xff\xfe", "日本",
		string(long), string(long[1:]), string(long[:200]), "#" + string(long[:31]),
	}
	for i, key := range keys {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			if r := newRequest("z", key, 1, limit); !takeAt(t, s, start, r) || takeAt(t, s, start, r) {
				t.Errorf("key %.40q is not one budget of its own", key)
			}
		})
	}
}

func testDecisionsMemory(t *testing.T, s Store) {
	limit := Limit(t, "z", algorithms.Quota{Algorithm: "gcra", Events: 5, Window: minute})
	r := newRequest("z", "k", 1, limit)
	r[0].Outcome.Decisions = make([]algorithms.Decision, 3, 4)
	kept := &r[0].Outcome.Decisions[0]
	takeAt(t, s, start, r)
	if len(r[0].Outcome.Decisions) != 1 || &r[0].Outcome.Decisions[0] != kept {
		t.Errorf("Decisions has %d entries, or not the caller's memory", len(r[0].Outcome.Decisions))
	}
}

func testInAdvance(t *testing.T, s Store) {
	for _, q := range delayQuotas(t, 2, minute) {
		t.Run(q.Algorithm, func(t *testing.T) {
			r := newRequest("z", "k", 1, Limit(t, "z", q))
			r[0].MaxWait = minute
			var waits []algorithms.Micros
			for len(waits) < 10 && takeAt(t, s, start, r) {
				waits = append(waits, r[0].Outcome.Decisions[0].Wait)
			}
			if len(waits) != 4 || waits[0] != 0 || waits[1] != 0 || waits[2] == 0 || waits[3] != minute {
				t.Fatalf("requests wait for %v", waits)
			}
			d := r[0].Outcome.Decisions[0]
			if d.Wait != 0 || d.Charged != 0 || d.RetryAfter <= 0 || d.RetryAfter > minute {
				t.Errorf("past the longest wait: %+v", d)
			}
			r[0].MaxWait = 0
			if takeAt(t, s, start, r) || takeAt(t, s, start+waits[3]-1, r) {
				t.Error("allowed before those that were charged in advance")
			}
		})
	}
}

func testInitial(t *testing.T, s Store) {
	for _, algorithm := range []string{"token_bucket", "smooth"} {
		initial := int64(0)
		q := algorithms.Quota{Algorithm: algorithm, Events: 1, Window: minute, Burst: 3, Initial: &initial}
		r := newRequest("z", algorithm, 1, Limit(t, "z", q))
		if algorithm == "smooth" {
			takeAt(t, s, start, r) // on account of the next
		}
		if takeAt(t, s, start, r) {
			t.Errorf("%s: allowed although a budget begins with nothing", algorithm)
		}
		if takeAt(t, s, start+minute-1, r) || !takeAt(t, s, start+minute, r) {
			t.Errorf("%s: the first event is not there one minute after the first request", algorithm)
		}
	}
}

func testOwnClock(t *testing.T, s Store) {
	limit := Limit(t, "z", algorithms.Quota{Algorithm: "gcra", Events: 1, Window: minute})
	r := newRequest("z", "k", 1, limit)
	for _, want := range []bool{true, false} {
		if ok, err := s.Take(context.Background(), r); err != nil || ok != want {
			t.Fatalf("Take = %v, %v; want %v", ok, err, want)
		}
	}
	if d := r[0].Outcome.Decisions[0]; d.RetryAfter <= 0 || d.RetryAfter > 2*minute {
		t.Errorf("retry after %d µs, want up to a minute", d.RetryAfter)
	}
}
