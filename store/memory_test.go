package store_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/racetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

func TestMemoryConforms(t *testing.T) {
	for _, sweeps := range []bool{false, true} {
		t.Run(fmt.Sprint("sweeps ", sweeps), func(t *testing.T) {
			storetest.Run(t, func(*testing.T) storetest.Store {
				memory, s := newMemory(1_000_000, 1)
				if sweeps {
					return sweptMemory{s, memory}
				}
				return s
			})
		})
	}
}

// sweptMemory is swept before each request, at the instant of the request.
type sweptMemory struct {
	*store.Memory
	shared *store.SharedMemory
}

func (m sweptMemory) TakeAt(ctx context.Context, now algorithms.Micros, requests []store.ZoneRequest) (bool, error) {
	m.shared.SweepAt(now)
	return m.Memory.TakeAt(ctx, now, requests)
}

func zoneCount(n int) func() int { return func() int { return n } }

// newMemory returns a memory with a bound of its keys, and the store of a configuration with so many zones.
func newMemory(maxKeys int64, zones int) (*store.SharedMemory, *store.Memory) {
	shared := store.NewSharedMemory()
	return shared, shared.Bounded(maxKeys, zoneCount(zones), nil)
}

func fixedWindow(t testing.TB, events int64, window time.Duration) store.Limit {
	return storetest.Limit(t, "z", algorithms.Quota{Algorithm: "fixed_window", Events: events, Window: window.Microseconds()})
}

func take(t *testing.T, s store.Store, zone, key string, cost int64, limits ...store.Limit) bool {
	t.Helper()
	allowed, err := s.Take(context.Background(), []store.ZoneRequest{{Zone: zone, Key: key, Cost: cost, Limits: limits}})
	errtest.None(t, err)
	return allowed
}

// A flood of keys past the bound gets one budget between them, and the keys held
// before the flood keep theirs.
func TestMemoryOverflowIsOneBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := store.NewSharedMemory()
		full := 0
		s := memory.Bounded(10, zoneCount(1), func(string) { full++ })
		limit := fixedWindow(t, 3, time.Minute)
		for i := range 10 {
			take(t, s, "z", fmt.Sprint("early ", i), 1, limit)
		}
		passed := 0
		for i := range 1000 {
			if take(t, s, "z", fmt.Sprint("flood ", i), 1, limit) {
				passed++
			}
		}
		if passed != 3 {
			t.Errorf("%d of 1000 new keys passed when full; all of them together have a budget of 3", passed)
		}
		if full != 1000 || memory.Overflowed() != 1000 || memory.Keys() != 10 {
			t.Errorf("full called %d times, %d overflowed, %d keys; want 1000, 1000, 10", full, memory.Overflowed(), memory.Keys())
		}
		for _, want := range []bool{true, true, false} {
			if take(t, s, "z", "early 4", 1, limit) != want {
				t.Error("a key held before the flood lost its own budget")
			}
		}
		time.Sleep(time.Minute) // what is held expires, and makes room
		for i := range 10 {
			if !take(t, s, "z", fmt.Sprint("late ", i), 3, limit) {
				t.Error("no room for a new key although all the others have expired")
			}
		}
	})
}

// A budget with initial is forgotten some time after it is full, even without a sweep, and then
// begins again. The time is a window and one to two quanta, of 5 events here.
func TestMemoryForgetsInitial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.NewSharedMemory().Bounded(10, zoneCount(1), nil)
		initial := int64(1)
		limit := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "token_bucket", Events: 1, Window: 60_000_000, Burst: 5, Initial: &initial})
		remaining := func() int64 {
			r := []store.ZoneRequest{{Zone: "z", Key: "k", Limits: []store.Limit{limit}}}
			errtest.None(t, errtest.Of(s.Take(context.Background(), r)))
			return r[0].Outcome.Decisions[0].Remaining
		}
		if !take(t, s, "z", "k", 1, limit) || take(t, s, "z", "k", 1, limit) {
			t.Error("a new budget does not hold 1")
		}
		time.Sleep(6*time.Minute - time.Microsecond) // 5 until it is full
		if got := remaining(); got != 5 {
			t.Errorf("%d remaining, want 5", got)
		}
		time.Sleep(time.Minute)
		if got := remaining(); got != 5 {
			t.Errorf("%d remaining, want 5", got)
		}
		time.Sleep(time.Minute + time.Microsecond)
		if got := remaining(); got != 1 {
			t.Errorf("%d remaining in a budget that is forgotten, want 1", got)
		}
		if take(t, s, "z", "k", 2, limit) { // which is remembered: it fills up from now on
			t.Error("a forgotten budget of 1 has room for 2")
		}
		time.Sleep(time.Minute)
		if !take(t, s, "z", "k", 2, limit) {
			t.Error("a forgotten budget does not fill up")
		}
	})
}

// A charge that is given back once its budget has been forgotten doesn't make that one known
// to be full again.
func TestMemoryRefundForgetsInitial(t *testing.T) {
	for _, algorithm := range []string{"token_bucket", "smooth"} {
		initial, ctx := int64(1), t.Context()
		limit := storetest.Limit(t, "z", algorithms.Quota{Algorithm: algorithm, Events: 10, Window: 1_000_000, Initial: &initial})
		b := store.NewSharedMemory().Bounded(100, zoneCount(1), nil)
		request := func() []store.ZoneRequest {
			return []store.ZoneRequest{{Zone: "z", Key: "k", Limits: []store.Limit{limit}, Cost: 1}}
		}
		const at, later = 1_763_640_000_000_000, 1_763_640_000_000_000 + 60_000_000
		early := request()
		if allowed, _ := b.TakeAt(ctx, at, early); !allowed {
			t.Fatal("the first request is denied")
		}
		_ = b.CorrectAt(ctx, later, storetest.Refunds(early, 1))
		got, want := request(), request()
		want[0].Key = "never seen"
		for i := range 5 {
			_, _ = b.TakeAt(ctx, later, got)
			_, _ = b.TakeAt(ctx, later, want)
			if g, w := got[0].Outcome.Decisions[0], want[0].Outcome.Decisions[0]; g != w {
				t.Fatalf("%s, request %d: %+v, want %+v as of a key never seen", algorithm, i, g, w)
			}
		}
	}
}

// A budget that expires during a request keeps the charge of the request.
func TestMemoryReclaimKeepsWhatIsInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory, s := newMemory(1, 2) // which leaves zones no share of their own
		limit := fixedWindow(t, 2, time.Minute)
		take(t, s, "z", "a", 1, limit)
		time.Sleep(time.Minute)
		other := storetest.Limit(t, "y", algorithms.Quota{Algorithm: "gcra", Events: 5, Window: 60_000_000})
		r := []store.ZoneRequest{
			{Zone: "z", Key: "a", Cost: 1, Limits: []store.Limit{limit}},
			{Zone: "y", Key: "b", Cost: 1, Limits: []store.Limit{other}},
		}
		if ok, _ := s.Take(context.Background(), r); !ok {
			t.Fatal("denied")
		}
		if take(t, s, "z", "a", 2, limit) {
			t.Error("a charge was lost with the expired budget it was made on")
		}
		if memory.Keys() != 1 {
			t.Errorf("%d keys counted, want 1", memory.Keys())
		}
	})
}

// Budgets move as others are added: a charge must not go to where a
// budget was before another of the same request was added.
func TestMemoryBudgetsMoveSafely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory, s := newMemory(1_000_000, 1)
		held := fixedWindow(t, 1000, time.Minute)
		decide := func(limits ...store.Limit) []algorithms.Decision {
			r := []store.ZoneRequest{{Zone: "z", Key: "k", Cost: 1, Limits: limits}}
			if ok, _ := s.Take(context.Background(), r); !ok {
				t.Fatal("denied")
			}
			return r[0].Outcome.Decisions
		}
		decide(held)
		time.Sleep(50 * time.Second)
		for i := range 40 { // each with a limit that is new, before the one that is held
			decide(fixedWindow(t, 2000+int64(i), time.Hour), held)
		}
		if got := decide(held)[0].Remaining; got != 1000-42 {
			t.Errorf("%d remaining after 42 charges of 1000", got)
		}
		// A fresh window, opened together with a budget that is new.
		time.Sleep(11 * time.Second)
		decide(fixedWindow(t, 5000, time.Hour), held)
		time.Sleep(20 * time.Second)
		memory.Sweep()
		if got := decide(held)[0].Remaining; got != 998 {
			t.Errorf("%d remaining, want 998: the new window was swept as if it were the old one", got)
		}
	})
}

func TestMemoryZonesKeepAShare(t *testing.T) {
	memory, s := newMemory(10, 2)
	limit := fixedWindow(t, 1, time.Minute)
	for i := range 20 {
		take(t, s, "greedy", fmt.Sprint(i), 1, limit)
	}
	other := storetest.Limit(t, "modest", algorithms.Quota{Algorithm: "gcra", Events: 1, Window: 60_000_000})
	for i := range 5 {
		if !take(t, s, "modest", fmt.Sprint(i), 1, other) {
			t.Errorf("key %d of 5 found no room in its zone's share", i)
		}
	}
	if before := memory.Overflowed(); take(t, s, "modest", "5", 1, other) && memory.Overflowed() == before {
		t.Error("a zone past its share took in a key although the store is full")
	}
}

// After a flood of keys the memory is freed, and the other keys keep their budgets.
func TestMemoryAfterAFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory, s := newMemory(1_000_000, 1)
		short, long := fixedWindow(t, 5, time.Minute), fixedWindow(t, 5, time.Hour)
		for i := range 60_000 {
			take(t, s, "z", fmt.Sprint(i), 1, short)
			if i%1000 == 0 {
				take(t, s, "z", fmt.Sprint(i), 4, long)
			}
		}
		time.Sleep(time.Minute)
		memory.Sweep()
		if memory.Keys() != 60 {
			t.Errorf("%d keys are left, want 60", memory.Keys())
		}
		for i := 0; i < 60_000; i += 1000 {
			if !take(t, s, "z", fmt.Sprint(i), 1, long) || take(t, s, "z", fmt.Sprint(i), 1, long) {
				t.Fatalf("key %d does not have the 1 event it had left", i)
			}
		}
	})
}

// A long log counts for more than one key, and gives its memory back.
func TestMemoryCountsLongLogs(t *testing.T) {
	for events, keys := range map[int64]int64{640: 11, 6400: 101} {
		synctest.Test(t, func(t *testing.T) {
			memory, s := newMemory(1000, 1)
			limit := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "sliding_log", Events: 10_000, Window: 60_000_000})
			take(t, s, "z", "k", events, limit)
			if memory.Keys() != keys {
				t.Errorf("a log of %d events counts as %d keys, want %d", events, memory.Keys(), keys)
			}
			time.Sleep(time.Minute)
			take(t, s, "z", "k", 1, limit)
			if memory.Keys() != 1 {
				t.Errorf("a log of 1 event counts as %d keys, want 1", memory.Keys())
			}
		})
	}
}

// The target is no allocation at all beyond the key, which is the caller's.
func TestMemoryTakeAllocatesNothing(t *testing.T) {
	s := store.NewSharedMemory().Bounded(1_000_000, zoneCount(1), nil)
	ban := storetest.Ban(t, "z", algorithms.Ban{After: 100, Window: 1_000_000, Duration: 1000, Max: 1000})
	for _, q := range storetest.Quotas(1000, 1000) {
		t.Run(q.Algorithm, func(t *testing.T) {
			r := []store.ZoneRequest{{Zone: "z", Key: "k", Cost: 1, Limits: []store.Limit{storetest.Limit(t, "z", q)}}}
			r[0].Slots, r[0].Ban, r[0].Override = &store.Slots{ID: store.SlotsID("z", ""), Limit: 3}, ban, &store.Override{}
			corrections := []store.Correction{{Request: &r[0], Charge: 1, Leave: true}}
			if r[0].Limits[0].Algorithm().BinaryOnly {
				corrections[0].Charge = 0
			}
			take := func() { _, _ = s.Take(context.Background(), r) }
			both := func() { take(); s.Correct(corrections, nil) }
			for range 2000 { // until a log has grown to its full size
				both()
			}
			for name, f := range map[string]func(){"decision": take, "decision and correction": both} {
				if n := testing.AllocsPerRun(1000, f); n != 0 && !racetest.Enabled {
					t.Errorf("%v allocations per %s", n, name)
				}
			}
		})
	}
}

// A new key that finds no room waits for a few shards at most, with any number of budgets.
func TestMemoryReclaimIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory, s := newMemory(50_000, 1)
		limit := fixedWindow(t, 5, time.Minute)
		for i := range 50_000 {
			take(t, s, "z", fmt.Sprint(i), 1, limit)
		}
		time.Sleep(time.Minute) // all have expired
		take(t, s, "z", "new", 1, limit)
		if keys := memory.Keys(); keys < 49_500 || keys >= 50_000 {
			t.Errorf("%d of 50000 expired keys are left after one request, want all but those of a few of 1024 shards", keys)
		}
	})
}

// A smaller limit is soon full again. The budget that it shares with a larger one is kept for as long as the larger one needs.
func TestMemoryKeepsWhatALargerLimitCounts(t *testing.T) {
	const hour = 3_600_000_000
	for _, name := range []string{"token_bucket", "gcra", "leaky_bucket", "smooth"} {
		shared := store.NewSharedMemory()
		s := shared.Bounded(1000, func() int { return 1 }, nil)
		now := algorithms.Micros(1_800_000_000_000_000)
		take := func(burst, cost, remaining int64) {
			t.Helper()
			limit := storetest.Limit(t, "z", algorithms.Quota{Algorithm: name, Events: 1000, Window: hour, Burst: burst})
			r := []store.ZoneRequest{{Zone: "z", Key: "k", Limits: []store.Limit{limit}, Cost: cost}}
			if _, err := s.TakeAt(t.Context(), now, r); err != nil || r[0].Outcome.Decisions[0].Remaining > remaining {
				t.Errorf("%v: %+v, want at most %d remaining", limit, r[0].Outcome.Decisions, remaining)
			}
		}
		take(1000, 1000, 1)
		now += hour / 100
		take(10, 1, 11)
		now += hour / 50
		shared.SweepAt(now)
		take(1000, 0, 30)
	}
}
