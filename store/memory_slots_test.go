package store_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Slots and bans in memory.

// Keys that find no room share a budget, but nobody is banned for what others of them do. A key with room for its ban is banned.
func TestMemoryBanFindsNoRoom(t *testing.T) {
	memory, s := newMemory(3, 1)
	limits := []store.Limit{fixedWindow(t, 1, time.Hour)}
	ban := storetest.Ban(t, "z", algorithms.Ban{After: 2, Window: 3_600_000_000, Duration: 3_600_000_000, Max: 3_600_000_000})
	take := func(key string) (bool, store.BanOutcome) {
		t.Helper()
		r := []store.ZoneRequest{{Zone: "z", Key: key, Cost: 1, Limits: limits, Ban: ban}}
		allowed, err := s.Take(t.Context(), r)
		errtest.None(t, err)
		return allowed, r[0].Outcome.Ban
	}
	take("a")
	take("a") // its first denial
	take("b")
	take("c")                                              // shares a budget
	if _, b := take("a"); !b.Began || memory.Keys() != 4 { // limits of a and b, and a ban with its key
		t.Fatalf("%+v with %d keys", b, memory.Keys())
	}
	for _, key := range []string{"b", "c", "d", "b", "c", "d"} {
		if allowed, b := take(key); allowed || b != (store.BanOutcome{}) {
			t.Errorf("%s: allowed %v, ban %+v", key, allowed, b)
		}
	}
	if _, b := take("a"); !b.Stands || memory.Keys() != 4 {
		t.Errorf("%+v with %d keys", b, memory.Keys())
	}
}

// A ban is held until it ends, though the denials before it would have been forgotten. A ban by hand is known when it has
// ended, so that the next ban is longer.
func TestMemoryHoldsBans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory, s := newMemory(10, 1)
		const minute = 60_000_000
		ban := storetest.Ban(t, "z", algorithms.Ban{After: 1, Window: 1, Duration: minute, Max: 3 * minute})
		r := []store.ZoneRequest{{Zone: "z", Key: "k", Cost: 2, Limits: []store.Limit{fixedWindow(t, 1, time.Minute)}, Ban: ban}}
		for _, test := range []struct {
			after time.Duration // the end of the ban by hand
			next  algorithms.Micros
		}{{3*time.Minute - time.Microsecond, 2 * minute}, {3 * time.Minute, minute}} {
			_ = s.Change(t.Context(), store.Change{Zone: "z", Key: "k", Forget: []string{ban.ID}})
			_ = s.Change(t.Context(), store.Change{Zone: "z", Key: "k", Ban: []*store.Ban{ban}, BanFor: minute})
			time.Sleep(time.Minute + test.after)
			memory.Sweep()
			if _, _ = s.Take(t.Context(), r); r[0].Outcome.Ban.EndsAfter != test.next {
				t.Errorf("%v after the end: %+v, want a ban for %d µs", test.after, r[0].Outcome.Ban, test.next)
			}
			time.Sleep(time.Duration(test.next-1) * time.Microsecond)
			memory.Sweep()
			if _, _ = s.Take(t.Context(), r); r[0].Outcome.Ban != (store.BanOutcome{Stands: true, EndsAfter: 1}) {
				t.Errorf("%+v, want a ban that ends 1 µs later", r[0].Outcome.Ban)
			}
		}
		time.Sleep(time.Hour)
		if memory.Sweep(); memory.Keys() != 0 {
			t.Errorf("%d keys are held in the end", memory.Keys())
		}
	})
}

// takeSlot asks for one of n slots.
func takeSlot(t *testing.T, s store.Store, zone, key string, n int64) []store.ZoneRequest {
	t.Helper()
	r := []store.ZoneRequest{{Zone: zone, Key: key, Cost: 1, Slots: &store.Slots{ID: store.SlotsID(zone, ""), Limit: n}}}
	if allowed, err := s.Take(t.Context(), r); err != nil || allowed != r[0].Outcome.Slots.Taken {
		t.Fatalf("allowed %v, %v, %+v", allowed, err, r[0].Outcome.Slots)
	}
	return r
}

func leave(s store.Store, r []store.ZoneRequest) { s.Correct(storetest.Leaves(r), nil) }

// AdmitSlots counts the slots of all zones, or of none if one has no room. A shadow always has room.
func TestMemoryAdmitsSlots(t *testing.T) {
	s := store.NewMemory(1000)
	admit := func(want bool, limits ...int64) {
		t.Helper()
		var r []store.ZoneRequest
		for i, limit := range limits {
			zone := fmt.Sprint(i)
			r = append(r, store.ZoneRequest{Zone: zone, Key: "k", Slots: &store.Slots{ID: store.SlotsID(zone, ""), Limit: limit}})
			r[i].Outcome.Slots.Taken = limit > 0
			r[i].Shadow = i == 2
		}
		if got := s.AdmitSlots(r); got != want {
			t.Errorf("slots %v are counted: %v", limits, got)
		}
	}
	wantInFlight := func(want ...int64) {
		t.Helper()
		for i, want := range want {
			if got := slotsInFlight(t, s, fmt.Sprint(i), "k"); got != want {
				t.Errorf("zone %d: %d are in flight, want %d", i, got, want)
			}
		}
	}
	admit(true, 2, 2, 1)
	admit(false, 2, 1, 1)
	admit(false, 1, 2, 1)
	wantInFlight(1, 1, 1)
	admit(true, 2, 0, 1)
	wantInFlight(2, 1, 2)
	admit(true, 0, 0, 0)
	wantInFlight(2, 1, 2)
}

// slotsInFlight returns how many requests of a key hold a slot.
func slotsInFlight(t *testing.T, s store.Store, zone, key string) int64 {
	t.Helper()
	r := []store.ZoneRequest{{Zone: zone, Key: key, Peek: true, Slots: &store.Slots{ID: store.SlotsID(zone, ""), Limit: 1}}}
	errtest.None(t, errtest.Of(s.Take(t.Context(), r)))
	return r[0].Outcome.Slots.InFlight
}

// A request in flight counts for as long as it takes, and then nothing of it is kept.
func TestMemorySlotsOutliveAnyTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory, s := newMemory(2, 1)
		one, two := takeSlot(t, s, "z", "k", 2), takeSlot(t, s, "z", "k", 2)
		for range 50 {
			time.Sleep(365 * 24 * time.Hour)
			memory.Sweep()
			take(t, s, "z", fmt.Sprint(time.Now()), 1, fixedWindow(t, 1, time.Hour)) // the store is full
			take(t, s, "z", fmt.Sprint(time.Now(), "+"), 1, fixedWindow(t, 1, time.Hour))
			if o := takeSlot(t, s, "z", "k", 2)[0].Outcome.Slots; o.Taken || o.InFlight != 2 {
				t.Fatalf("%+v, want 2 in flight", o)
			}
		}
		leave(s, one)
		if r := takeSlot(t, s, "z", "k", 2); r[0].Outcome.Slots.InFlight != 2 {
			t.Errorf("%+v, want 2 in flight", r[0].Outcome.Slots)
		} else {
			leave(s, r)
		}
		leave(s, two)
		time.Sleep(time.Hour)
		memory.Sweep()
		if memory.Keys() != 0 || memory.ZoneKeys() != 0 {
			t.Errorf("%d keys are held, %d by zones, with nothing in flight", memory.Keys(), memory.ZoneKeys())
		}
	})
}

// Requests begin and end at random, in a store that is mostly full. Keys that find no room share the slots of one key, and
// give them back to where they were taken from, even if there is room by then. No slot is lost or free too often, and none
// is taken in the end.
func TestMemorySlotsNeverLeak(t *testing.T) {
	for seed := range seedtest.Cases(t, uint64(10)) {
		rng := rand.New(rand.NewPCG(seed, 7))
		memory := store.NewSharedMemory()
		maxKeys, full := 1+rng.Int64N(10), int64(0)
		s := memory.Bounded(maxKeys, zoneCount(2), func(string) { full++ })
		const n = 3
		type place struct{ zone, key string } // without a key: the shared slots
		held, inFlight, overflowed := [][]store.ZoneRequest{}, map[place]int64{}, int64(0)
		hasRoom := func(p place) bool {
			all, ofZone := int64(0), int64(0)
			for other, count := range inFlight {
				if count > 0 && other.key != "" {
					all++
					ofZone += map[bool]int64{true: 1}[other.zone == p.zone]
				}
			}
			return inFlight[p] > 0 || all < maxKeys || ofZone < maxKeys/2
		}
		placeOf := func(r []store.ZoneRequest) place {
			if r[0].Outcome.Slots.Overflow {
				return place{r[0].Zone, ""}
			}
			return place{r[0].Zone, r[0].Key}
		}
		for range 2000 {
			memory.Sweep()
			if len(held) > 0 && rng.IntN(100) < 48 {
				i := rng.IntN(len(held))
				leave(s, held[i])
				inFlight[placeOf(held[i])]--
				held[i] = held[len(held)-1]
				held = held[:len(held)-1]
				continue
			}
			own := place{fmt.Sprint("z", rng.IntN(3)), fmt.Sprint("k", rng.IntN(5))}
			before, room := slotsInFlight(t, s, own.zone, own.key), hasRoom(own)
			r := takeSlot(t, s, own.zone, own.key, n)
			o, p := r[0].Outcome.Slots, placeOf(r)
			if o.Overflow == room || before != inFlight[p] || o.Taken != (inFlight[p] < n) {
				t.Fatalf("seed %d: room %v, %d in flight before, %+v with %d in flight of %v", seed, room, before, o, inFlight[p], p)
			}
			if o.Overflow {
				overflowed++
			}
			if o.Taken {
				inFlight[p]++
				held = append(held, r)
			}
			if o.InFlight != inFlight[p] {
				t.Fatalf("seed %d: %+v, want %d in flight of %v", seed, o, inFlight[p], p)
			}
		}
		if full != overflowed || memory.Overflowed() != overflowed {
			t.Errorf("seed %d: full called %d times, %d overflowed, want %d", seed, full, memory.Overflowed(), overflowed)
		}
		for _, r := range held {
			leave(s, r)
		}
		memory.Sweep()
		if memory.Keys() != 0 || memory.ZoneKeys() != 0 || memory.OverflowBudgets() != 0 {
			t.Errorf("seed %d: %d keys are held, %d by zones, and %d overflow budgets", seed, memory.Keys(), memory.ZoneKeys(), memory.OverflowBudgets())
		}
	}
}
