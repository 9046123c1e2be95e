package storetest

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// newSlotsRequest returns a request of a zone with n slots.
func newSlotsRequest(zone, key string, n int64) []store.ZoneRequest {
	return []store.ZoneRequest{{Zone: zone, Key: key, Cost: 1, Slots: &store.Slots{ID: store.SlotsID(zone, ""), Limit: n}}}
}

// Leaves returns the corrections that give back the slots of requests.
func Leaves(requests []store.ZoneRequest) []store.Correction {
	corrections := make([]store.Correction, len(requests))
	for i := range requests {
		corrections[i] = store.Correction{Request: &requests[i], Leave: true}
	}
	return corrections
}

func leaveAt(t *testing.T, s Store, now algorithms.Micros, requests []store.ZoneRequest) {
	t.Helper()
	correctAt(t, s, now, Leaves(requests)...)
}

// takeSlotsAt takes at an instant, and checks the outcome of the first request's slots.
func takeSlotsAt(t *testing.T, s Store, now algorithms.Micros, r []store.ZoneRequest, want store.SlotsOutcome) {
	t.Helper()
	if allowed := takeAt(t, s, now, r); allowed != want.Taken {
		t.Errorf("allowed %v, want %v", allowed, want.Taken)
	}
	checkSlots(t, &r[0], want)
}

// checkSlots checks the outcome of a request's slots. Its limits must have room.
func checkSlots(t *testing.T, r *store.ZoneRequest, want store.SlotsOutcome) {
	t.Helper()
	if got := r.Outcome.Slots; got != want {
		t.Errorf("zone %s: %+v, want %+v", r.Zone, got, want)
	}
	verdict := store.Allowed
	if !want.Free {
		verdict = store.Denied
	}
	if got := r.Outcome.Verdict; got != verdict {
		t.Errorf("zone %s: verdict %d, want %d", r.Zone, got, verdict)
	}
}

// tookSlot is the outcome of a request that took a slot.
func tookSlot(inFlight int64) store.SlotsOutcome {
	return store.SlotsOutcome{Free: true, Taken: true, InFlight: inFlight}
}

// slotFree is the outcome of a request that took no slot, although one was free.
func slotFree(inFlight int64) store.SlotsOutcome {
	return store.SlotsOutcome{Free: true, InFlight: inFlight}
}

// noSlotFree is the outcome of a request that found no free slot.
func noSlotFree(inFlight int64) store.SlotsOutcome { return store.SlotsOutcome{InFlight: inFlight} }

// testSlots begins and ends random requests, of some tenants. They pass exactly while a slot is free.
func testSlots(t *testing.T, s Store) {
	const n = 7
	rng := rand.New(rand.NewPCG(1, 2))
	held, denied, emptied := map[string][][]store.ZoneRequest{}, 0, 0
	const now = 0 // the store's clock, because a count that one tenant gives back is written at the time of Redis
	for range 600 {
		key := []string{"a", "b"}[rng.IntN(2)]
		count := int64(len(held[key]))
		if count > 0 && rng.IntN(100) < 45 {
			i := rng.IntN(len(held[key]))
			leaveAt(t, s, now, held[key][i])
			if held[key] = slices.Delete(held[key], i, i+1); count == 1 {
				emptied++
			}
			continue
		}
		r := newSlotsRequest("z", key, n)
		r[0].Cost = rng.Int64N(3) // a slot at any cost
		if rng.IntN(2) == 0 {     // and for any tenant, while none waits
			r[0].Tenant = wire.NewTenant("", []string{"x", "y"}[rng.IntN(2)], rng.Int64N(2*store.MaxWeight))
		}
		if count < n {
			takeSlotsAt(t, s, now, r, tookSlot(count+1))
			held[key] = append(held[key], r)
			continue
		}
		denied++
		takeSlotsAt(t, s, now, r, noSlotFree(n))
		leaveAt(t, s, now, r) // which has no slot to give back
	}
	if denied < 10 || emptied < 3 {
		t.Errorf("%d requests were denied, and %d times none was left: the test tests too little", denied, emptied)
	}
}

// testSlotsOfZones sends requests to several zones. A request takes a slot of each zone, or none.
func testSlotsOfZones(t *testing.T, s Store) {
	newRequest := func() []store.ZoneRequest {
		return slices.Concat(newSlotsRequest("x", "a", 2), newSlotsRequest("y", "a", 3), newSlotsRequest("y", "b", 1))
	}
	one := newRequest()
	takeSlotsAt(t, s, start, one, tookSlot(1))
	checkSlots(t, &one[1], tookSlot(1))
	checkSlots(t, &one[2], tookSlot(1))
	for range 3 { // a denied request takes none
		two := newRequest()
		if takeAt(t, s, start, two) {
			t.Fatal("allowed though all slots of a zone are taken")
		}
		checkSlots(t, &two[0], slotFree(1))
		checkSlots(t, &two[1], slotFree(1))
		checkSlots(t, &two[2], noSlotFree(1))
		leaveAt(t, s, start, two)
	}
	leaveAt(t, s, start, one[2:])
	two := newRequest()
	takeSlotsAt(t, s, start, two, tookSlot(2))
	checkSlots(t, &two[1], tookSlot(2))
	checkSlots(t, &two[2], tookSlot(1))
	leaveAt(t, s, start, append(one[:2], two...))

	// Shadows deny nothing, and take none when they would deny, or when another zone denies.
	shadow := func() []store.ZoneRequest {
		r := newRequest()
		r[0].Shadow = true
		return r
	}
	leaveAt(t, s, start, shadow()) // which was never asked
	first := shadow()
	takeSlotsAt(t, s, start, first, tookSlot(1))
	second := shadow()
	if takeAt(t, s, start, second) {
		t.Fatal("allowed though all slots of a zone are taken")
	}
	checkSlots(t, &second[0], slotFree(1))
	takeSlotsAt(t, s, start, newSlotsRequest("x", "a", 2), tookSlot(2))
	leaveAt(t, s, start, first[2:])
	if third := shadow(); !takeAt(t, s, start, third) {
		t.Error("a shadow denies")
	} else {
		checkSlots(t, &third[0], noSlotFree(2))
		checkSlots(t, &third[1], tookSlot(2))
		checkSlots(t, &third[2], tookSlot(1))
		leaveAt(t, s, start, third)
	}
	takeSlotsAt(t, s, start, newSlotsRequest("x", "a", 3), tookSlot(3))
	takeSlotsAt(t, s, start, newSlotsRequest("y", "a", 3), tookSlot(2))
	takeSlotsAt(t, s, start, newSlotsRequest("y", "b", 3), tookSlot(1))
}

// testSlotsWithLimits has slots, a limit and a ban in one zone. Each decides on its own.
func testSlotsWithLimits(t *testing.T, s Store) {
	limit := Limit(t, "z", algorithms.Quota{Algorithm: "gcra", Events: 4, Window: 1000 * minute})
	ban := Ban(t, "z", algorithms.Ban{After: 2, Window: minute, Duration: minute, Max: minute})
	newRequest := func(mode algorithms.Mode) []store.ZoneRequest {
		r := newSlotsRequest("z", "k", 2)
		r[0].Limits, r[0].Ban, r[0].Mode = []store.Limit{limit}, ban, mode
		return r
	}
	check := func(r []store.ZoneRequest, remaining, charged int64, want store.BanOutcome) {
		t.Helper()
		if d := r[0].Outcome.Decisions[0]; d.Remaining != remaining || d.Charged != charged {
			t.Errorf("%+v, want %d remaining and %d charged", d, remaining, charged)
		}
		if got := r[0].Outcome.Ban; got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	none := store.BanOutcome{}
	var held [][]store.ZoneRequest
	for i := range int64(2) {
		r := newRequest(algorithms.Binary)
		takeSlotsAt(t, s, start, r, tookSlot(i+1))
		check(r, 3-i, 1, none)
		held = append(held, r)
	}
	for range 3 { // the lack of a slot charges nothing, and doesn't count
		r := newRequest(algorithms.Binary)
		takeSlotsAt(t, s, start, r, noSlotFree(2))
		check(r, 2, 0, none)
	}
	r := newRequest(algorithms.Uniform) // which charges what it denies
	takeSlotsAt(t, s, start, r, noSlotFree(2))
	check(r, 1, 1, none)
	leaveAt(t, s, start, held[0])
	r = newRequest(algorithms.Binary)
	r[0].Cost = 2
	for i := range 2 { // the limit denies, and no slot is taken
		if takeAt(t, s, start, r) || r[0].Outcome.Verdict != store.Denied || r[0].Outcome.Slots != slotFree(1) {
			t.Errorf("%+v, want it denied by its limit", r[0].Outcome)
		}
		check(r, 1, 0, []store.BanOutcome{none, {Began: true, EndsAfter: minute}}[i])
	}
	r = newRequest(algorithms.Binary)
	if takeAt(t, s, start+1, r) || r[0].Outcome.Verdict != store.Banned || r[0].Outcome.Slots != slotFree(1) {
		t.Errorf("%+v, want it banned", r[0].Outcome)
	}
	check(r, 1, 0, store.BanOutcome{Stands: true, EndsAfter: minute - 1})
	leaveAt(t, s, start+1, r)
	leaveAt(t, s, start+1, held[1]) // a request of before the ban
	if takeAt(t, s, start+1, r); r[0].Outcome.Slots != slotFree(0) {
		t.Errorf("%+v, want none in flight", r[0].Outcome.Slots)
	}
}

// testChangedSlots changes the number of slots while some are taken. No request loses its slot. If more
// slots are taken than there are, no other request gets one.
func testChangedSlots(t *testing.T, s Store) {
	var held [][]store.ZoneRequest
	take := func(n int64, want store.SlotsOutcome) {
		t.Helper()
		r := newSlotsRequest("z", "k", n)
		takeSlotsAt(t, s, start+int64(len(held)), r, want)
		if want.Taken {
			held = append(held, r)
		}
	}
	leave := func() {
		leaveAt(t, s, start+second, held[0])
		held = held[1:]
	}
	for i := range int64(5) {
		take(5, tookSlot(i+1))
	}
	take(5, noSlotFree(5))
	take(3, noSlotFree(5))
	take(7, tookSlot(6))
	take(5, noSlotFree(6))
	for i := range int64(4) {
		take(3, noSlotFree(6-i))
		if i < 3 {
			leave()
		}
	}
	leave()
	take(3, tookSlot(3))
	take(3, noSlotFree(3))
	take(4, tookSlot(4))
	take(1, noSlotFree(4))
	for len(held) > 0 {
		leave()
	}
	take(1, tookSlot(1))
	take(1, noSlotFree(1))
}

// testManySlots has the largest number of slots that can be configured.
func testManySlots(t *testing.T, s Store) {
	const n = 10_000_000
	all := make([][]store.ZoneRequest, 200)
	for i := range all {
		all[i] = newSlotsRequest("z", "k", n)
		takeSlotsAt(t, s, start, all[i], tookSlot(int64(i+1)))
	}
	for _, r := range all {
		leaveAt(t, s, start, r)
	}
	takeSlotsAt(t, s, start, newSlotsRequest("z", "k", n), tookSlot(1))
}

// testSlotsConcurrency begins and ends many requests at once. The number in flight never exceeds the
// number of slots, and no slot is lost.
func testSlotsConcurrency(t *testing.T, s Store) {
	const n = 5
	var inFlight, passed, denied atomic.Int64
	flood(t, 16, 50, func() error {
		r := newSlotsRequest("z", "k", n)
		ok, err := s.Take(context.Background(), r)
		if err != nil {
			return err
		}
		if !ok {
			denied.Add(1)
			return nil
		}
		passed.Add(1)
		if now := inFlight.Add(1); now > n {
			t.Errorf("%d are in flight", now)
		}
		time.Sleep(100 * time.Microsecond) // so that requests overlap, also in a store of another process
		inFlight.Add(-1)
		s.Correct(Leaves(r), func(err error) { t.Errorf("leave: %v", err) })
		return nil
	})
	if passed.Load() < n || denied.Load() < n {
		t.Errorf("%d passed, and %d were denied: the test tests too little", passed.Load(), denied.Load())
	}
	for i := range int64(n) {
		r := newSlotsRequest("z", "k", n)
		if ok, err := s.Take(context.Background(), r); err != nil || !ok || r[0].Outcome.Slots.InFlight != i+1 {
			t.Errorf("afterwards: %v, %v, %+v, want %d in flight", ok, err, r[0].Outcome.Slots, i+1)
		}
	}
	if ok, err := s.Take(context.Background(), newSlotsRequest("z", "k", n)); ok || err != nil {
		t.Errorf("one too many: %v, %v", ok, err)
	}
}

// testSlotsPeek peeks at slots and at a limit, with and without a free slot.
func testSlotsPeek(t *testing.T, s Store) {
	limit := Limit(t, "z", algorithms.Quota{Algorithm: "fixed_window", Events: 5, Window: 60_000_000})
	peek := newSlotsRequest("z", "k", 2)
	peek[0].Limits, peek[0].Peek, peek[0].Cost, peek[0].Shadow = []store.Limit{limit}, true, 0, true
	for n := range int64(3) {
		for range 3 {
			takeAt(t, s, 1_000_000, peek)
			if o := peek[0].Outcome; o.Slots.Taken || o.Slots.InFlight != n || o.Slots.Free != (n < 2) || o.Decisions[0].Remaining != 5 {
				t.Fatalf("%d in flight: a peek says %+v", n, o)
			}
		}
		if n < 2 {
			takeSlotsAt(t, s, 1_000_000, newSlotsRequest("z", "k", 2), tookSlot(n+1))
		}
	}
}
