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

// A slot that moves under load causes no wrong decision and no error, whether the limits of a key
// are on both nodes for a while or on one.
func testClusterMovesSlots(t *testing.T, c *redistest.Cluster) {
	s := openCluster(t, c, redisstore.Options{Address: c.Addrs()[0]})
	ctx := context.Background()
	const limit = 1500
	several := []store.Request{{Zone: "z", Key: "moves", Cost: 1, Limits: []store.Limit{
		storetest.Limit(t, "z", algorithms.Quota{Algorithm: "token_bucket", Events: 1, Window: 3_600_000_000, Burst: limit}),
		storetest.Limit(t, "z", algorithms.Quota{Algorithm: "fixed_window", Events: 2 * limit, Window: 3_600_000_000}),
	}}}
	var admitted, denied, failed atomic.Int64
	stop := make(chan struct{})
	var running sync.WaitGroup
	for range 8 {
		running.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				one := []store.Request{several[0]}
				one[0].Outcome.Decisions = nil
				switch allowed, err := s.Take(ctx, one); {
				case err != nil:
					failed.Add(1)
					t.Error(err)
					return
				case allowed:
					admitted.Add(1)
				default:
					denied.Add(1)
				}
			}
		})
	}
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
	close(stop)
	running.Wait()
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
	request := func(zone, key int, cost int64) store.Request {
		return store.Request{Zone: fmt.Sprint(zone), Key: fmt.Sprint("key-", key), Cost: cost, Limits: limits[zone : zone+1]}
	}
	var admitted [keys][3]atomic.Int64
	stop := make(chan struct{})
	var running sync.WaitGroup
	for g := range uint64(8) {
		rng := rand.New(rand.NewPCG(g, 7))
		running.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				var together []store.Request
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
					return
				}
				for _, n := range counts {
					if allowed {
						n.Add(1)
					}
				}
			}
		})
	}
	end := sync.OnceFunc(func() {
		close(stop)
		running.Wait()
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
			r := []store.Request{request(zone, key, 0)}
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

// ends returns the node that has a slot, and another one.
func ends(t *testing.T, c *redistest.Cluster, slot int) (from, to *redistest.Server) {
	t.Helper()
	from, to = c.Owner(t, c.Nodes[0], slot), c.Nodes[0]
	if from == to {
		to = c.Nodes[1]
	}
	return from, to
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

// While a slot moves, a key that is on neither node yet begins on the new one.
func testClusterAsks(t *testing.T, c *redistest.Cluster) {
	s := openCluster(t, c, redisstore.Options{})
	ctx := context.Background()
	slot := c.Slot(t, "new")
	from, to := ends(t, c, slot)
	c.BeginMove(t, slot, from, to)
	r := request(t, "new")
	for want := int64(9); want >= 7; want-- {
		if allowed, err := s.Take(ctx, r); !allowed || err != nil || r[0].Outcome.Decisions[0].Remaining != want {
			t.Fatalf("allowed %v, error %v, %+v, want %d remaining", allowed, err, r[0].Outcome.Decisions, want)
		}
	}
	if err := refund(s, r, 1); err != nil {
		t.Fatal(err)
	}
	if n := to.Client.ClusterCountKeysInSlot(ctx, slot).Val(); n != 1 {
		t.Errorf("the new node has %d keys of the slot, want 1", n)
	}
	c.EndMove(t, slot, from, to)
	if allowed, err := s.Take(ctx, r); !allowed || err != nil || r[0].Outcome.Decisions[0].Remaining != 7 {
		t.Fatalf("allowed %v, error %v, %+v, want 7 remaining", allowed, err, r[0].Outcome.Decisions)
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
		if (wire.Names{}).Slot(key) != slot {
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

// It also doesn't trouble a log that has only expired entries.
func testClusterMovesLogs(t *testing.T, c *redistest.Cluster) {
	const hour = 3_600_000_000
	s := openCluster(t, c, redisstore.Options{})
	ctx := context.Background()
	slot := c.Slot(t, "log")
	from, to := ends(t, c, slot)
	var all [][]store.Request
	for _, buckets := range []int64{0, 2} {
		zone := fmt.Sprint(buckets)
		limit := storetest.Limit(t, zone, algorithms.Quota{Algorithm: "sliding_log", Events: 2, Window: hour, Buckets: buckets})
		all = append(all, []store.Request{{Zone: zone, Key: "log", Cost: 1, Limits: []store.Limit{limit}}})
	}
	const now algorithms.Micros = 1_763_640_000_000_000
	for _, r := range all {
		if allowed, err := s.TakeAt(ctx, now, r); !allowed || err != nil {
			t.Fatal(allowed, err)
		}
	}
	c.BeginMove(t, slot, from, to)
	for _, r := range all { // events count for 1.5 hours at most, and keys are there for as long as that in true time
		if allowed, err := s.TakeAt(ctx, now+2*hour, r); !allowed || err != nil {
			t.Errorf("%v: allowed %v, error %v", r[0].Limits[0], allowed, err)
		}
	}
	if n := from.Client.ClusterCountKeysInSlot(ctx, slot).Val(); n != 2 {
		t.Errorf("the old node has %d keys, want 2", n)
	}
	c.MoveKeys(t, slot, 2, from, to)
	c.EndMove(t, slot, from, to)
}

// A node works whether or not the slot of its check moves.
func testClusterChecks(t *testing.T, c *redistest.Cluster) {
	s := openCluster(t, c, redisstore.Options{})
	ctx := context.Background()
	from, to := c.Nodes[0], c.Nodes[1]
	check := func() {
		t.Helper()
		if err := s.Check(ctx); err != nil {
			t.Error(err)
		}
	}
	for _, checked := range []bool{false, true} {
		var slot int
		for i := 0; ; i++ {
			if slot = c.Slot(t, fmt.Sprint("%!", i)); c.Owner(t, from, slot) == from {
				break
			}
		}
		if checked {
			check()
		} else { // what checks write is gone after a second
			redistest.WaitFor(t, "the slot to be empty", func() bool { return from.Client.ClusterCountKeysInSlot(ctx, slot).Val() == 0 })
		}
		c.BeginMove(t, slot, from, to)
		check()
		c.EndMove(t, slot, from, to)
	}
}

// A slot is renewed while the slot of the cluster that its key is in moves.
func testClusterRenews(t *testing.T, c *redistest.Cluster) {
	t.Parallel() // it waits for counts to expire, when no other test stops a node
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
