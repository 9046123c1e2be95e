package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"runtime/metrics"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// A store keeps nothing of a key of any length, or of the text that contains the key.
func TestNothingOfAKeyIsKept(t *testing.T) {
	ban := storetest.Ban(t, "z", algorithms.Ban{After: 2, Window: 3_600_000_000, Duration: 3_600_000_000, Max: 3_600_000_000})
	for name, open := range map[string]func() store.Store{
		"memory":      func() store.Store { return store.NewSharedMemory().Bounded(1000, zoneCount(1), func(string) {}) },
		"full memory": func() store.Store { return store.NewSharedMemory().Bounded(1, zoneCount(2), func(string) {}) },
		"deny cache":  func() store.Store { return store.NewDenyCache(newFailing()) },
	} {
		for _, q := range storetest.Variants(2, 3_600_000_000) {
			s := open()
			kept := storetest.IsKept(func(key string) {
				r := []store.ZoneRequest{{Zone: "z", Key: key, Cost: 1, Limits: []store.Limit{storetest.Limit(t, "z", q)}}}
				for range 3 {
					errtest.None(t, errtest.Of(s.Take(t.Context(), r)))
				}
				banned := []store.ZoneRequest{{Zone: "z", Key: key, Cost: 3, Limits: r[0].Limits, Ban: ban}}
				for range 4 {
					_, _ = s.Take(t.Context(), banned)
				}
				r[0].Slots = &store.Slots{ID: store.SlotsID("z", ""), Limit: 2}
				errtest.None(t, errtest.Of(s.Take(t.Context(), r)))
				s.Correct([]store.Correction{{Request: &r[0], Refund: 1, Charge: 1, Leave: true}}, nil)
			})
			if kept {
				t.Errorf("%s, %s: a key is kept", name, q.Algorithm)
			}
			runtime.KeepAlive(s)
		}
	}
}

// Keys and limits are hashed by different secrets: a key that is a limit's ID is a key as any
// other.
func TestMemoryKeyLikeALimit(t *testing.T) {
	s := store.NewSharedMemory().Bounded(1000, zoneCount(1), nil)
	for i := range 300 { // so many that some are in the same shard
		l := fixedWindow(t, 1, time.Duration(i+1)*time.Hour)
		if !take(t, s, "z", l.ID, 1, l) || take(t, s, "z", l.ID, 1, l) {
			t.Fatalf("key %q has not 1", l.ID)
		}
	}
}

// A key that has one budget of its own, and shares another one, has no part in what other keys reserve.
func TestMemoryReservesBesideOverflow(t *testing.T) {
	s := store.NewSharedMemory().Bounded(3, zoneCount(1), nil)
	limits := []store.Limit{fixedWindow(t, 5, time.Second), fixedWindow(t, 1, 24*time.Hour)}
	ask := func(now algorithms.Micros, key string) []store.ZoneRequest {
		r := []store.ZoneRequest{{Zone: "z", Key: key, Cost: 1, Limits: limits, ReservedID: store.ReservedID("z", "")}}
		errtest.None(t, errtest.Of(s.TakeAt(t.Context(), now, r)))
		return r
	}
	now := algorithms.Micros(1_000_000_000)
	r := ask(now, "k")
	_ = s.CorrectAt(t.Context(), now, []store.Correction{{Request: &r[0], Settled: true}})
	now += 10_000_000 // its first budget is over
	for other := range 6 {
		ask(now, fmt.Sprint(other))
	}
	if d := ask(now, "k")[0].Outcome.Decisions[1]; d.Allowed || d.Reserved {
		t.Errorf("%+v, want a denial by what is used", d)
	}
}

// A budget is kept in fields of the shard's own: this fails when a State has another one,
// which loadLocked and saveLocked must know of.
func TestMemoryKeepsAllOfAState(t *testing.T) {
	var fields []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[algorithms.State]()) {
		fields = append(fields, f.Name)
	}
	if got := strings.Join(fields, " "); got != "A B C D Log" {
		t.Errorf("a State has the fields %s, and a budget keeps A B C D Log", got)
	}
}

// Budgets hold no pointer, so that the garbage collector has as much to do with many of them
// as with few.
func TestMemoryHoldsNoPointers(t *testing.T) {
	const count = 100_000
	scannable := func() int64 {
		runtime.GC()
		sample := []metrics.Sample{{Name: "/gc/scan/heap:bytes"}}
		metrics.Read(sample)
		return int64(sample[0].Value.Uint64())
	}
	memory, s := newMemory(1_000_000, 1)
	r := []store.ZoneRequest{{Zone: "z", Cost: 1, Limits: []store.Limit{fixedWindow(t, 1, time.Hour)}}}
	before := scannable()
	for i := range count {
		r[0].Key = fmt.Sprint(i)
		_, _ = s.Take(context.Background(), r)
	}
	if bytes := scannable() - before; bytes > count*10 {
		t.Errorf("%d keys have the garbage collector scan %d bytes more", count, bytes)
	}
	runtime.KeepAlive(memory)
}

// allocated is how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// Each of many overrides has limits of its own: the first request to one costs no more than
// to any other.
func TestMemoryLimitsCostNothing(t *testing.T) {
	const count = 16_000
	memory, s := newMemory(1_000_000, 1)
	limits := make([]store.Limit, count)
	for i := range limits {
		limits[i] = fixedWindow(t, int64(i)+1, time.Hour)
	}
	r := []store.ZoneRequest{{Zone: "z", Cost: 1, Limits: make([]store.Limit, 1)}}
	bytes := allocated(func() {
		for i, l := range limits {
			r[0].Key, r[0].Limits[0] = fmt.Sprint(i), l
			_, _ = s.Take(context.Background(), r)
		}
	})
	if bytes > count*500 {
		t.Errorf("the first charges of %d limits allocated %d bytes each", count, bytes/count)
	}
	if memory.Keys() != count || memory.Zones() != 1 {
		t.Errorf("%d keys of %d zones are held, want %d of 1", memory.Keys(), memory.Zones(), count)
	}
}

// A new zone costs the same however many there are. Budgets that have expired no longer count in their own zones.
func TestMemoryZonesCostNothing(t *testing.T) {
	const count = 16_000
	memory, s := newMemory(1_000_000, 1)
	r := []store.ZoneRequest{{Cost: 1, Limits: []store.Limit{fixedWindow(t, 2, time.Minute)}}}
	bytes := allocated(func() {
		for range 2 {
			for i := range count {
				r[0].Zone = fmt.Sprint("zone ", i)
				r[0].Key = r[0].Zone
				_, _ = s.Take(context.Background(), r)
			}
		}
	})
	if bytes > count*1000 {
		t.Errorf("%d zones allocated %d bytes each", count, bytes/count)
	}
	if memory.Zones() != count || memory.Keys() != count {
		t.Errorf("%d keys of %d zones, want %d of as many", memory.Keys(), memory.Zones(), count)
	}
	memory.SweepAt(memory.Now() + time.Hour.Microseconds())
	if memory.Keys() != 0 || memory.ZoneKeys() != 0 || memory.LeastZoneKeys() != 0 {
		t.Errorf("after a sweep %d keys, of zones with %d, the least %d", memory.Keys(), memory.ZoneKeys(), memory.LeastZoneKeys())
	}
}

// Zones appear under requests, changes and sweeps: budgets stay exact, and the keys of
// the zones add up to the keys of the store.
func TestMemoryZonesAtOnce(t *testing.T) {
	const clients, each, events = 8, 2000, 5000
	memory, s := newMemory(1_000_000, 1)
	exact, short := fixedWindow(t, events, time.Hour), fixedWindow(t, 1, time.Microsecond)
	log := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "sliding_log", Events: 1000, Window: 1})
	var passed atomic.Int64
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for i := range each {
				if take(t, s, "exact", "k", 1, exact) {
					passed.Add(1)
				}
				zone := fmt.Sprint("zone ", rand.IntN(4))
				take(t, s, zone, fmt.Sprint(rand.IntN(8)), 1, short)
				take(t, s, zone, "log", rand.Int64N(400), log)
				switch {
				case i%50 == 0:
					memory.Sweep()
				case i%7 == 0:
					_ = s.Change(t.Context(), store.Change{Zone: zone, Key: fmt.Sprint(rand.IntN(8)), Forget: []string{short.ID}})
				}
			}
		})
	}
	wg.Wait()
	if passed.Load() != events {
		t.Errorf("%d requests passed a limit of %d", passed.Load(), events)
	}
	if memory.Keys() != memory.ZoneKeys() {
		t.Errorf("%d keys are held, and the zones hold %d", memory.Keys(), memory.ZoneKeys())
	}
	time.Sleep(time.Millisecond) // until the short windows have ended, by the same clock by which they end under requests
	memory.Sweep()
	if memory.Keys() != 1 || memory.ZoneKeys() != 1 {
		t.Errorf("%d keys, and the zones hold %d; want 1", memory.Keys(), memory.ZoneKeys())
	}
}

// A request reads the clock a moment before it finds that there is no room. Meanwhile a sweep can
// drop shared budgets, which must not be in force for the request.
func TestMemorySweepLeavesOverflowBudgetsInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory, s := newMemory(1, 2)
		limit := fixedWindow(t, 1, time.Minute)
		take(t, s, "z", "held", 1, fixedWindow(t, 1, time.Hour))
		began := memory.Now()
		if !take(t, s, "z", "a", 1, limit) {
			t.Fatal("the shared budget is used already")
		}
		time.Sleep(time.Minute + time.Second - time.Microsecond)
		memory.Sweep()
		r := []store.ZoneRequest{{Zone: "z", Key: "b", Cost: 1, Limits: []store.Limit{limit}}}
		if allowed, _ := s.TakeAt(t.Context(), began+time.Minute.Microseconds()-1, r); allowed {
			t.Error("a sweep dropped a shared budget that was in force for a request under way")
		}
	})
}

// An override that has ended takes no memory after a sweep, also if its shard has nothing else.
func TestEndedOverridesAreSwept(t *testing.T) {
	const minute = 60_000_000
	for _, endless := range []bool{false, true} {
		m := store.NewSharedMemory()
		s, text := m.Bounded(1000, zoneCount(1), nil), `{"unlimited":true}`
		now := m.Now()
		c := store.Change{Zone: "z", Key: "k", Override: &text}
		if !endless {
			c.OverrideFor = minute
		}
		errtest.None(t, s.ChangeAt(t.Context(), now, c))
		m.SweepAt(now + minute - 1)
		before := m.KeptOverrides()
		m.SweepAt(now + minute)
		want := 0
		if endless {
			want = 1
		}
		if after := m.KeptOverrides(); before != 1 || after != want {
			t.Errorf("without an end %t: %d overrides, and then %d, want 1 and %d", endless, before, after, want)
		}
	}
}
