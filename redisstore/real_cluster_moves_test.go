//go:build real

package redisstore_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Slots move under load. Decisions stay exact, and counts of slots are set. TestRealThousandSlotsMove moves many slots at once.
//
// Simulated: TestFaults, TestCountsAreSetElsewhere, TestSplitKey.
func TestRealClusterMoves(t *testing.T) {
	c := redistest.StartCluster(t)
	c.KeepMasters(t)
	for name, test := range map[string]func(*testing.T, *redistest.Cluster){
		"a slot moves under load": testClusterMovesSlots,
		"sets counts elsewhere":   testClusterSetsMovedSlots,
		"several new values":      testClusterNewValues,
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

// While a slot moves, a request fails if its key has several values, but none yet.
func testClusterNewValues(t *testing.T, c *redistest.Cluster) {
	s := openCluster(t, c, redisstore.Options{Timeout: 300 * time.Millisecond, DialTimeout: patient})
	r := append(request(t, "several"), request(t, "several")...)
	r[1].Zone, r[1].Limits = "y", []store.Limit{storetest.Limit(t, "y", algorithms.Quota{Algorithm: "fixed_window", Events: 10, Window: 3_600_000_000})}
	slot := c.Slot(t, "several")
	from, to := ends(t, c, slot)
	c.BeginMove(t, slot, from, to)
	if _, err := s.Take(t.Context(), r); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("slot %d of the cluster is moving", slot)) {
		t.Errorf("while the slot moves: %v", err)
	}
	c.EndMove(t, slot, from, to)
	redistest.WaitForState(t, "a request that works", func() (any, bool) { _, err := s.Take(t.Context(), r); return err, err == nil })
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
		time.Sleep(3 * expiry / 2) // a count that nobody sets again expires by then
		if n := keys(t, other, "set elsewhere"); n != 1 {
			t.Errorf("%s: %d in flight, want 1", when, n)
		}
	}
	moveSlot(t, c, slot, stays)
	s.Correct(storetest.Leaves([]store.ZoneRequest{held}), func(err error) { t.Error(err) })
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
