//go:build real

package redisstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Slots move and nodes hang under load. Decisions stay exact, and counts of slots are set.
//
// Simulated: TestFaults, TestCountsAreSetElsewhere, TestSplitKey, TestGoesOnAfterWait, TestGivesBackLate, TestBesideFailedNode.
func TestRealClusterMoves(t *testing.T) {
	c := redistest.StartCluster(t)
	c.KeepMasters(t)
	for name, test := range map[string]func(*testing.T, *redistest.Cluster){
		"a slot moves under load":             testClusterMovesSlots,
		"many slots move at once":             testClusterReshards,
		"renews while a slot moves":           testClusterRenews,
		"sets counts elsewhere":               testClusterSetsMovedSlots,
		"refunds on a node that hangs":        testClusterGivesBackLate,
		"charges no node beside a failed one": testClusterBesideFailed,
		"goes on after a wait":                testClusterGoesOn,
		"a split key":                         testClusterSplitKey,
	} {
		t.Run(name, func(t *testing.T) { test(t, c) })
	}
}

const goroutines = 8 // of repeat

// repeat does something again and again in several goroutines: each until it returns false, or until the returned function
// is called, which waits for all.
func repeat(do func(goroutine int) (again bool)) (end func()) {
	var ended atomic.Bool
	var running sync.WaitGroup
	for g := range goroutines {
		running.Go(func() {
			for !ended.Load() && do(g) {
			}
		})
	}
	return func() {
		ended.Store(true)
		running.Wait()
	}
}

// A slot that moves under load causes no wrong decision and no error, whether the limits of a key
// are on both nodes for a while or on one.
func testClusterMovesSlots(t *testing.T, c *redistest.Cluster) {
	s := openCluster(t, c, redisstore.Options{Address: c.Addrs()[0]})
	ctx := context.Background()
	const limit = 1500
	several := []store.ZoneRequest{{Zone: "z", Key: "moves", Cost: 1, Limits: []store.Limit{
		storetest.Limit(t, "z", algorithms.Quota{Algorithm: "token_bucket", Events: 1, Window: 3_600_000_000, Burst: limit}),
		storetest.Limit(t, "z", algorithms.Quota{Algorithm: "fixed_window", Events: 2 * limit, Window: 3_600_000_000}),
	}}}
	var admitted, denied, failed atomic.Int64
	end := repeat(func(int) bool {
		one := []store.ZoneRequest{several[0]}
		one[0].Outcome.Decisions = nil
		switch allowed, err := s.Take(ctx, one); {
		case err != nil:
			failed.Add(1)
			t.Error(err)
			return false
		case allowed:
			admitted.Add(1)
		default:
			denied.Add(1)
		}
		return true
	})
	defer end()
	slot := c.Slot(t, "moves")
	for move := range 6 {
		from := c.Owner(t, c.Nodes[0], slot)
		to := c.Nodes[0]
		if from == to {
			to = c.Nodes[1+move%2]
		}
		c.BeginMove(t, slot, from, to)
		time.Sleep(10 * time.Millisecond) // some requests find both keys here
		c.MoveKeys(t, slot, 1, from, to)
		time.Sleep(10 * time.Millisecond) // some requests find one key here and one there
		for c.MoveKeys(t, slot, 10, from, to) > 0 {
		}
		time.Sleep(10 * time.Millisecond) // some requests find both keys there
		c.EndMove(t, slot, from, to)
		time.Sleep(20 * time.Millisecond) // some requests come when the slot has moved
	}
	redistest.WaitForState(t, "the limit to be reached", func() (any, bool) {
		return fmt.Sprint(admitted.Load(), " admitted"), denied.Load() > 0 || failed.Load() > 0
	})
	end()
	if admitted.Load() != limit {
		t.Errorf("admitted %d, want %d", admitted.Load(), limit)
	}
}

// While many slots move, the charges and refunds of requests with several keys are exact, and no
// state remains after Close.
func testClusterReshards(t *testing.T, c *redistest.Cluster) {
	before := runtime.NumGoroutine()
	s := openCluster(t, c, redisstore.Options{KeyPrefix: "reshards"})
	ctx := context.Background()
	const keys, events = 8, 30
	var limits []store.Limit
	for n, algorithm := range []string{"fixed_window", "token_bucket", "sliding_log"} {
		limits = append(limits, storetest.Limit(t, fmt.Sprint(n), algorithms.Quota{Algorithm: algorithm, Events: events, Window: 36_000_000_000}))
	}
	request := func(zone, key int, cost int64) store.ZoneRequest {
		return store.ZoneRequest{Zone: fmt.Sprint(zone), Key: fmt.Sprint("key-", key), Cost: cost, Limits: limits[zone : zone+1]}
	}
	var admitted [keys][3]atomic.Int64
	var randoms [goroutines]*rand.Rand
	for g := range randoms {
		randoms[g] = rand.New(rand.NewPCG(uint64(g), 7))
	}
	end := repeat(func(goroutine int) bool {
		rng := randoms[goroutine]
		var together []store.ZoneRequest
		var counts []*atomic.Int64
		for _, zone := range rng.Perm(3)[:1+rng.IntN(3)] {
			key := rng.IntN(keys)
			together = append(together, request(zone, key, 1))
			counts = append(counts, &admitted[key][zone])
		}
		allowed, err := s.Take(ctx, together)
		if allowed && err == nil && rng.IntN(3) == 0 {
			allowed, err = false, refund(s, together, 1)
		}
		if err != nil {
			t.Error(err)
			return false
		}
		for _, n := range counts {
			if allowed {
				n.Add(1)
			}
		}
		return true
	})
	defer end()
	type move struct {
		slot     int
		from, to *redistest.Server
	}
	owners := make(map[int]*redistest.Server) // by slot
	for key := range keys {
		slot := c.Slot(t, fmt.Sprint("key-", key))
		owners[slot] = c.Owner(t, c.Nodes[0], slot)
	}
	for round := range 3 {
		var moves []move
		for slot, from := range owners {
			if to := c.Nodes[(round+slot)%3]; to != from {
				c.BeginMove(t, slot, from, to)
				moves, owners[slot] = append(moves, move{slot, from, to}), to
			}
		}
		for len(moves) > 0 {
			i := rand.IntN(len(moves))
			if m := moves[i]; c.MoveKeys(t, m.slot, 1, m.from, m.to) == 0 {
				c.EndMove(t, m.slot, m.from, m.to)
				moves = slices.Delete(moves, i, i+1)
				for _, node := range c.Nodes[:3] { // else they may never agree
					redistest.WaitForState(t, fmt.Sprintf("%s to hear that slot %d has moved", node.Addr, m.slot), func() (any, bool) {
						owner := c.Owner(t, node, m.slot)
						return owner.Addr, owner == m.to
					})
				}
			}
		}
	}
	end()
	for key := range keys {
		for zone := range limits {
			r := []store.ZoneRequest{request(zone, key, 0)}
			if _, err := s.Take(ctx, r); err != nil {
				t.Fatal(err)
			}
			charged, n := events-r[0].Outcome.Decisions[0].Remaining, admitted[key][zone].Load()
			if n > events || charged != n {
				t.Errorf("key %d zone %d: admitted %d, charged %d, the limit is %d", key, zone, n, charged, events)
			}
		}
	}
	_ = s.Close()
	redistest.WaitForState(t, "the goroutines to end", func() (any, bool) {
		n := runtime.NumGoroutine()
		return fmt.Sprint(n, ", and ", before, " before"), n <= before
	})
}

// A slot is renewed while the slot of the cluster that its key is in moves.
func testClusterRenews(t *testing.T, c *redistest.Cluster) {
	const expiry = 2 * time.Second
	s := openCluster(t, c, redisstore.Options{SlotExpiry: expiry})
	slot := c.Slot(t, "renewed")
	first, second := takeSlot(t, s, "renewed", 3), takeSlot(t, s, "renewed", 3)
	held := func(when string) {
		t.Helper()
		time.Sleep(3 * expiry / 2) // a count that nobody sets again expires meanwhile
		third := takeSlot(t, s, "renewed", 3)
		if third.Outcome.Slots.InFlight != 3 {
			t.Errorf("%s: %+v, want 3 in flight", when, third.Outcome.Slots)
		}
		leaveSlot(t, s, third)
	}
	moveSlot(t, c, slot, held)
	leaveSlot(t, s, first)
	leaveSlot(t, s, second)
	if n := takeSlot(t, s, "renewed", 3).Outcome.Slots.InFlight; n != 1 {
		t.Errorf("%d in flight, want 1", n)
	}
}

// While a slot moves, requests of a key fail if not all of its values are on one node, or if it has several values, but
// none yet.
func testClusterSplitKey(t *testing.T, c *redistest.Cluster) {
	s := openCluster(t, c, redisstore.Options{Timeout: 300 * time.Millisecond, DialTimeout: patient})
	slot := c.Slot(t, "split")
	takes := make(map[string]func() error) // by key
	for i := 0; len(takes) < 2; i++ {
		key := "split"
		if i > 0 {
			key = fmt.Sprint("new", i)
		}
		if (wire.Names{}).HashSlot(key) != slot {
			continue
		}
		r := request(t, key)
		quota := algorithms.Quota{Algorithm: "fixed_window", Events: 10, Window: 3_600_000_000}
		r[0].Limits = append(r[0].Limits, storetest.Limit(t, "other", quota))
		takes[key] = func() error {
			_, err := s.Take(t.Context(), r)
			return err
		}
	}
	works := func(take func() error) {
		redistest.WaitForState(t, "a request that works", func() (any, bool) { err := take(); return err, err == nil })
	}
	works(takes["split"])
	from, to := ends(t, c, slot)
	c.BeginMove(t, slot, from, to)
	c.MoveKeys(t, slot, 1, from, to)
	for key, take := range takes {
		if err := take(); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("slot %d of the cluster is moving to another node, or has moved", slot)) {
			t.Errorf("%s: %v", key, err)
		}
	}
	c.MoveKeys(t, slot, 1, from, to)
	works(takes["split"])
	c.EndMove(t, slot, from, to)
	for _, take := range takes {
		works(take)
	}
}

// A request that has waited in the queue of a node for longer than the timeout still goes to the
// node that the first one names.
func testClusterGoesOn(t *testing.T, c *redistest.Cluster) {
	const timeout = time.Second
	s := openCluster(t, c, redisstore.Options{Timeout: timeout, DialTimeout: patient})
	if _, err := s.Take(t.Context(), request(t, "goes on")); err != nil {
		t.Fatal(err)
	}
	redisstore.Misroute(s, "goes on", 3*timeout/2)
	began := time.Now()
	r := request(t, "goes on")
	if allowed, err := s.Take(t.Context(), r); !allowed || err != nil || r[0].Outcome.Decisions[0].Remaining != 8 {
		t.Errorf("allowed %v, error %v, %+v, want 8 remaining", allowed, err, r[0].Outcome.Decisions)
	}
	if waited := time.Since(began); waited < timeout {
		t.Errorf("it waited for %v only", waited)
	}
}

// moveSlot moves a slot with one key to another node, and calls check at each stage.
func moveSlot(t *testing.T, c *redistest.Cluster, slot int, check func(when string)) {
	t.Helper()
	from, to := ends(t, c, slot)
	c.BeginMove(t, slot, from, to)
	check("before the key moves")
	c.MoveKeys(t, slot, 1, from, to)
	check("when the key has moved")
	c.EndMove(t, slot, from, to)
	check("when the slot has moved")
}

// Counts are set on the node that a slot has moved to, even if no request has one of its keys.
func testClusterSetsMovedSlots(t *testing.T, c *redistest.Cluster) {
	const expiry = 2 * time.Second
	s := openCluster(t, c, redisstore.Options{SlotExpiry: expiry})
	other := openCluster(t, c, redisstore.Options{SlotExpiry: expiry})
	slot := c.Slot(t, "set elsewhere")
	held := takeSlot(t, s, "set elsewhere", 3)
	stays := func(when string) {
		t.Helper()
		time.Sleep(3 * expiry / 2) // a count that nobody sets again expires meanwhile
		if n := keys(t, other, "set elsewhere"); n != 1 {
			t.Errorf("%s: %d in flight, want 1", when, n)
		}
	}
	moveSlot(t, c, slot, stays)
	leaveSlot(t, s, held)
	waitForSlots(t, other, "set elsewhere", 0)
}

// takeSlot takes a slot of a key.
func takeSlot(t *testing.T, s store.Store, key string, limit int64) store.ZoneRequest {
	t.Helper()
	r := []store.ZoneRequest{{Zone: "z", Key: key, Cost: 1, Slots: &store.Slots{ID: store.SlotsID("z", ""), Limit: limit}}}
	allowed, err := s.Take(t.Context(), r)
	if o := r[0].Outcome; err != nil || allowed != o.Slots.Taken || allowed != (o.Verdict == store.Allowed) {
		t.Fatalf("allowed %v, error %v, %+v", allowed, err, o)
	}
	return r[0]
}
