package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/racetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// late is a store in memory whose replies take time. It fails on demand.
type late struct {
	*failing
	mu        sync.Mutex
	delay     func() time.Duration
	corrected func() // called after each Correct
}

func (l *late) Correct(corrections []store.Correction, failed func(error)) {
	l.failing.Correct(corrections, failed)
	if l.corrected != nil {
		l.corrected()
	}
}

func (l *late) Take(ctx context.Context, requests []store.ZoneRequest) (bool, error) {
	allowed, err := l.failing.Take(ctx, requests)
	if err == nil {
		l.mu.Lock()
		delay := l.delay()
		l.mu.Unlock()
		time.Sleep(delay) // virtual time, or none
	}
	return allowed, err
}

// lateFailover is a Failover with a late main store, and with all decorators between.
type lateFailover struct {
	*store.Failover
	main     *late
	breaker  *store.Breaker
	local    *store.Memory
	failures atomic.Int64
}

func newLateFailover(t *testing.T) *lateFailover {
	f := &lateFailover{
		main:  &late{failing: newFailing(), delay: func() time.Duration { return 0 }},
		local: store.NewMemory(1000),
	}
	f.breaker = store.NewBreaker(f.main, nil)
	t.Cleanup(f.breaker.Close)
	f.Failover = store.NewFailover(store.NewDenyCache(f.breaker), f.local, func(error) { f.failures.Add(1) })
	return f
}

// wantInFlight checks how many requests of a key both stores count.
func (f *lateFailover) wantInFlight(t *testing.T, key string, want int64) {
	t.Helper()
	for name, s := range map[string]store.Store{"main": f.main.Store, "local": f.local} {
		if n := slotsInFlight(t, s, "z", key); n != want {
			t.Errorf("the %s store counts %d requests of %s in flight, want %d", name, n, key, want)
		}
	}
}

// The main store has lost its counts, and grants a slot that is taken. All zones get their charges and
// slots back, and a shadow denies nothing.
func TestFailoverKnowsItsOwnSlots(t *testing.T) {
	f := newLateFailover(t)
	limit, other := fixedWindow(t, 10, time.Hour), storetest.Limit(t, "other", algorithms.Quota{Algorithm: "token_bucket", Events: 10, Window: 3_600_000_000})
	request := func(key, shadowKey string) []store.ZoneRequest {
		return []store.ZoneRequest{
			{Zone: "z", Key: key, Cost: 1, Limits: []store.Limit{limit}, Slots: &store.Slots{ID: store.SlotsID("z", ""), Limit: 2, Share: 1}},
			{Zone: "shadow", Key: shadowKey, Cost: 1, Shadow: true, Slots: &store.Slots{ID: store.SlotsID("shadow", ""), Limit: 1}},
			{Zone: "other", Key: key, Cost: 1, Limits: []store.Limit{other}},
		}
	}
	take := func(allowed, local bool, shadowKey string) []store.ZoneRequest {
		t.Helper()
		r := request("k", shadowKey)
		if ok, err := f.Take(t.Context(), r); err != nil || ok != allowed || r[0].Outcome.Local != local {
			t.Fatalf("allowed %v, %v, %+v, want allowed %v, local %v", ok, err, r[0].Outcome, allowed, local)
		}
		return r
	}
	first, second := take(true, false, "a"), take(true, false, "b")
	f.main.Store = store.NewMemory(1000)
	for range 3 {
		take(false, true, "a")
	}
	f.Correct(storetest.Leaves(first), nil)
	third := take(true, false, "b") // the local store counts a second request of b in the shadow
	if o := third[1].Outcome; !o.Slots.Taken {
		t.Errorf("the shadow: %+v", o)
	}
	take(false, true, "b")
	for i, remaining := range []int64{9, -1, 9} { // of the third request alone
		if d := third[i].Outcome.Decisions; remaining >= 0 && d[0].Remaining != remaining {
			t.Errorf("zone %s: %d events remain, want %d", third[i].Zone, d[0].Remaining, remaining)
		}
	}
	f.Correct(append(storetest.Leaves(second), storetest.Leaves(third)...), nil)
	if n := slotsInFlight(t, f.local, "z", "k"); n != 0 {
		t.Errorf("the local store counts %d requests in flight, want none", n)
	}
	if n := f.failures.Load(); n > 0 {
		t.Errorf("%d failures", n)
	}
}

// Outages begin and end at random, while requests come and leave, and replies of the main store are
// late. No more requests are in flight than may be. While the main store works, only the lack of a slot
// denies a request. In the end both stores count none.
func TestFailoverSlotsLaws(t *testing.T) {
	for seed := range seedtest.Cases(t, uint64(30)) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 17))
			f := newLateFailover(t)
			f.main.delay = func() time.Duration { return time.Duration(random.Int64N(int64(300 * time.Millisecond))) }
			const keys = 3
			limit := 1 + random.Int64N(4)
			var mu sync.Mutex
			inFlight, passed, locally := make(map[string]int64), 0, 0
			var clients sync.WaitGroup
			for range 400 {
				f.main.mu.Lock()
				key, took := fmt.Sprint(random.IntN(keys)), time.Duration(random.Int64N(int64(500*time.Millisecond)))
				f.main.mu.Unlock()
				clients.Go(func() {
					r := takeSlot(t, f, "z", key, limit)
					if !r[0].Outcome.Slots.Taken {
						return
					}
					mu.Lock()
					passed++
					if r[0].Outcome.Local {
						locally++
					}
					if inFlight[key]++; inFlight[key] > limit {
						t.Errorf("seed %d: %d requests of %s are in flight, want at most %d", seed, inFlight[key], key, limit)
					}
					mu.Unlock()
					time.Sleep(took)
					mu.Lock()
					inFlight[key]--
					mu.Unlock()
					f.Correct(storetest.Leaves(r), nil)
				})
				f.main.mu.Lock()
				pause, n := time.Duration(random.Int64N(int64(40*time.Millisecond))), random.IntN(20)
				f.main.mu.Unlock()
				time.Sleep(pause)
				switch {
				case n == 0:
					f.main.fail(&store.Error{Reason: store.ReasonSilent, Err: errGone})
				case n < 4:
					f.main.fail(nil)
				}
			}
			clients.Wait()
			if passed < 20 || locally == 0 || locally == passed {
				t.Errorf("seed %d: %d requests passed, %d of them locally", seed, passed, locally)
			}
			for key := range inFlight {
				f.wantInFlight(t, key, 0)
			}
		})
	}
}

// A slot that is given back is free in the local store when the main store grants it again.
func TestFailoverGivesSlotsBackLocallyFirst(t *testing.T) {
	f := newLateFailover(t)
	first, again := takeSlot(t, f, "z", "k", 1), []store.ZoneRequest(nil)
	f.main.corrected = func() {
		f.main.corrected = nil
		again = takeSlot(t, f, "z", "k", 1)
	}
	f.Correct(storetest.Leaves(first), nil)
	if o := again[0].Outcome; !o.Slots.Taken || o.Local {
		t.Errorf("%+v, want a slot of the main store", o)
	}
	f.wantInFlight(t, "k", 1)
}

// While the main store works, a Failover allocates nothing, also for slots.
func TestFailoverAllocatesNothing(t *testing.T) {
	f := newLateFailover(t)
	r := []store.ZoneRequest{{Zone: "z", Key: "k", Cost: 1, Limits: []store.Limit{fixedWindow(t, 10_000, time.Hour)}, Slots: &store.Slots{ID: store.SlotsID("z", ""), Limit: 10_000}}}
	take := func() {
		if allowed, err := f.Take(t.Context(), r); err != nil || !allowed || r[0].Outcome.Local {
			t.Fatalf("allowed %v, %v, %+v", allowed, err, r[0].Outcome)
		}
	}
	if n := testing.AllocsPerRun(1000, take); n > 0 && !racetest.Enabled {
		t.Errorf("%v allocations", n)
	}
}
