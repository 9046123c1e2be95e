package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
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
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

func openCluster(t testing.TB, c *redistest.Cluster, o redisstore.Options) *redisstore.Cluster {
	t.Helper()
	o.Cluster = true
	if o.Address == "" {
		o.Address = strings.Join(c.Addrs(), ",")
	}
	if o.Timeout == 0 {
		o.Timeout, o.DialTimeout = patient, patient
	}
	s, err := redisstore.NewCluster(o, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		redisstore.Kill(s)
		_ = s.Close()
	})
	return s
}

func TestCluster(t *testing.T) {
	long(t)
	t.Parallel()
	c := redistest.StartCluster(t)
	c.KeepMasters(t)
	for name, test := range map[string]func(*testing.T, *redistest.Cluster){
		"conforms":                          testClusterConforms,
		"gives back what one key refuses":   testClusterSeveralKeys,
		"a slot moves under load":           testClusterMovesSlots,
		"a key begins while its slot moves": testClusterAsks,
		"many slots move at once":           testClusterReshards,
		"a log ends while its slot moves":   testClusterMovesLogs,
		"renews while a slot moves":         testClusterRenews,
		"sets counts elsewhere":             testClusterSetsMovedSlots,
		"is checked while a slot moves":     testClusterChecks,
		"gives back to a node that hangs":   testClusterGivesBackLate,
		"asks nobody beside a failed node":  testClusterBesideFailed,
		"moves overrides":                   testClusterMovesOverrides,
		"goes on after a wait":              testClusterGoesOn,
		"settings":                          testClusterSettings,
		"nodes don't say where they are":    testClusterNoHosts,
		"decides as one store does":         testClusterParity,
	} {
		t.Run(name, func(t *testing.T) { test(t, c) })
	}
}

// givesBack is a cluster, which can't decide keys of several slots in one step.
type givesBack struct{ *redisstore.Cluster }

func (givesBack) GivesBack() {}

func testClusterConforms(t *testing.T, c *redistest.Cluster) {
	n := 0
	storetest.Run(t, func(t *testing.T) storetest.Store {
		n++
		return givesBack{openCluster(t, c, redisstore.Options{KeyPrefix: fmt.Sprint("test", n)})}
	})
}

// A request of several keys that one has no room for leaves the budgets of the others as
// they were, and says so.
func testClusterSeveralKeys(t *testing.T, c *redistest.Cluster) {
	s := openCluster(t, c, redisstore.Options{})
	for _, q := range storetest.Quotas(5, 3_600_000_000) {
		t.Run(q.Algorithm, func(t *testing.T) {
			scarce := storetest.Limit(t, "scarce", algorithms.Quota{Algorithm: "fixed_window", Events: 1, Window: 3_600_000_000})
			request := func(n int, cost int64) []store.Request {
				return []store.Request{
					{Zone: "a", Key: fmt.Sprint("a", n), Cost: cost, Limits: []store.Limit{storetest.Limit(t, "a", q)}},
					{Zone: "b", Key: fmt.Sprint("b", n), Cost: cost, Limits: []store.Limit{storetest.Limit(t, "b", q)}},
					{Zone: "scarce", Key: q.Algorithm, Cost: 1, Limits: []store.Limit{scarce}},
				}
			}
			if allowed, err := s.Take(context.Background(), request(0, 2)); !allowed || err != nil {
				t.Fatal(allowed, err)
			}
			for n := range 10 { // of all nodes
				r := request(n, 2)
				allowed, err := s.Take(context.Background(), r)
				if allowed || err != nil {
					t.Fatal(allowed, err)
				}
				want := int64(5)
				if n == 0 {
					want = 3
				}
				for _, one := range r[:2] {
					d := one.Outcome.Decisions[0]
					if !d.Allowed || d.Charged != 0 || d.Remaining != want || d.RetryAfter != 0 || want == 5 && d.ResetAfter > 1000 {
						t.Errorf("key %s: %+v, want %d remaining and nothing charged", one.Key, d, want)
					}
				}
				if d := r[2].Outcome.Decisions[0]; d.Allowed || d.RetryAfter == 0 {
					t.Errorf("the refusing key: %+v", d)
				}
			}
		})
	}
}

// A node that hangs when it is to give a charge back holds nobody up for longer than the
// timeout in all. It gives back later, and nobody else does.
func testClusterGivesBackLate(t *testing.T, c *redistest.Cluster) {
	const timeout = 4 * time.Second
	s := openCluster(t, c, redisstore.Options{Timeout: timeout})
	ctx := context.Background()
	limit := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "fixed_window", Events: 2, Window: 3_600_000_000})
	var both []store.Request // one of each node
	for n := 0; len(both) < 2; n++ {
		key := fmt.Sprint("late-", n)
		if c.Owner(t, c.Nodes[0], c.Slot(t, key)) == c.Nodes[len(both)] {
			both = append(both, store.Request{Zone: "z", Key: key, Cost: 1, Limits: []store.Limit{limit}})
		}
	}
	look := func(one store.Request) algorithms.Decision {
		r := []store.Request{{Zone: one.Zone, Key: one.Key, Limits: one.Limits}}
		if _, err := s.Take(ctx, r); err != nil {
			t.Fatal(err)
		}
		return r[0].Outcome.Decisions[0]
	}
	// On this node the request finds no room, and it is slow to say so.
	both[0].Cost = 3
	look(both[0])
	look(both[1])
	c.Nodes[0].Freeze(t)
	took := make(chan time.Duration)
	go func() {
		began := time.Now()
		if allowed, err := s.Take(ctx, both); allowed || err != nil {
			t.Error(allowed, err)
		}
		took <- time.Since(began)
	}()
	began := time.Now()
	for look(both[1]).Remaining == 2 && time.Since(began) < timeout {
		time.Sleep(time.Millisecond)
	}
	c.Nodes[1].Freeze(t)
	time.Sleep(timeout/2 - time.Since(began))
	c.Nodes[0].Thaw(t)
	if took := <-took; took > timeout*7/5 { // a second deadline would make it 3/2
		t.Errorf("it took %v", took)
	}
	c.Nodes[1].Thaw(t)
	if d := both[1].Outcome.Decisions[0]; d.Charged != 0 {
		t.Errorf("%+v, want no receipt", d)
	}
	for deadline := time.Now().Add(patient); look(both[1]).Remaining != 2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the charge is not given back")
		}
	}
}

// Nothing is charged at one node for a request that another node, which isn't asked at
// present, has to decide, too: it would have to be given back at once.
func testClusterBesideFailed(t *testing.T, c *redistest.Cluster) {
	s := openCluster(t, c, redisstore.Options{})
	ctx := context.Background()
	var both []store.Request // one of each node
	for n := 0; len(both) < 2; n++ {
		r := endless(t, fmt.Sprint("beside-", n))
		if c.Owner(t, c.Nodes[0], c.Slot(t, r.Key)) == c.Nodes[len(both)] {
			both = append(both, r)
		}
	}
	if allowed, err := s.Take(ctx, both); !allowed || err != nil {
		t.Fatal(allowed, err)
	}
	c.Nodes[0].Freeze(t)
	defer c.Nodes[0].Thaw(t)
	redistest.WaitFor(t, "the check to fail", func() bool { // it may run out of time at another node
		checking, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_ = s.Check(checking)
		return s.Failing() > 0
	})
	calls := c.Nodes[1].Calls(t, "evalsha")
	for range 10 {
		if _, err := s.Take(ctx, both); !errors.Is(err, store.ErrOpen) {
			t.Errorf("error %v, want that the node isn't asked", err)
		}
	}
	if more := c.Nodes[1].Calls(t, "evalsha") - calls; more != 0 {
		t.Errorf("the other node was asked %d times", more)
	}
}

// A slot that moves under load costs nobody a wrong answer, nor an error; neither
// limits that are on both sides for a while, nor keys that are on one.
func testClusterMovesSlots(t *testing.T, c *redistest.Cluster) {
	s := openCluster(t, c, redisstore.Options{Address: c.Addrs()[0]})
	ctx := context.Background()
	const limit = 1500
	several := []store.Request{{Zone: "z", Key: "moves", Cost: 1, Limits: []store.Limit{
		storetest.Limit(t, "z", algorithms.Quota{Algorithm: "token_bucket", Events: 1, Window: 3_600_000_000, Burst: limit}),
		storetest.Limit(t, "z", algorithms.Quota{Algorithm: "fixed_window", Events: 2 * limit, Window: 3_600_000_000}),
	}}}
	var admitted, refused, failed atomic.Int64
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
					refused.Add(1)
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
		time.Sleep(10 * time.Millisecond) // some find both keys here,
		c.MoveKeys(t, slot, 1, from, to)
		time.Sleep(10 * time.Millisecond) // one here and one there,
		for c.MoveKeys(t, slot, 10, from, to) > 0 {
		}
		time.Sleep(10 * time.Millisecond) // both there
		c.EndMove(t, slot, from, to)
		time.Sleep(20 * time.Millisecond)
	}
	for deadline := time.Now().Add(patient); refused.Load() == 0 && time.Now().Before(deadline) && failed.Load() == 0; {
		time.Sleep(10 * time.Millisecond)
	}
	close(stop)
	running.Wait()
	if admitted.Load() != limit {
		t.Errorf("admitted %d, want %d", admitted.Load(), limit)
	}
}

// Where many slots move at once, requests of several keys and what is given back of them
// are charged exactly, and after Close nothing is left over.
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
					for deadline := time.Now().Add(patient); c.Owner(t, node, m.slot) != m.to; time.Sleep(time.Millisecond) {
						if time.Now().After(deadline) {
							t.Fatalf("slot %d has moved, and %s has not heard of it", m.slot, node.Addr)
						}
					}
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
	for deadline := time.Now().Add(patient); runtime.NumGoroutine() > before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines, and %d before", runtime.NumGoroutine(), before)
		}
	}
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

// While a slot is on its way, a key that is on neither side yet begins on the new one.
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

// A request that has waited in the queue of a node for longer than the timeout still goes to the
// node that the first one names.
func testClusterGoesOn(t *testing.T, c *redistest.Cluster) {
	const timeout = 400 * time.Millisecond
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

// Nor does it trouble a log that holds nothing but what counts no more.
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

// A node works, whether or not the slot that it is checked with is on its way, and what
// another check wrote with it: else it could not come back as long as that is so.
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
	const expiry = 2 * time.Second
	s := openCluster(t, c, redisstore.Options{SlotExpiry: expiry})
	slot := c.Slot(t, "renewed")
	from, to := ends(t, c, slot)
	first, second := takeSlot(t, s, "renewed", 3), takeSlot(t, s, "renewed", 3)
	held := func(when string) {
		t.Helper()
		time.Sleep(3 * expiry / 2)
		third := takeSlot(t, s, "renewed", 3)
		if third.Outcome.Slots.InFlight != 3 {
			t.Errorf("%s: %+v, want 3 in flight", when, third.Outcome.Slots)
		}
		leaveSlot(t, s, third)
	}
	c.BeginMove(t, slot, from, to)
	held("before the key moves")
	c.MoveKeys(t, slot, 1, from, to)
	held("when the key has moved")
	c.EndMove(t, slot, from, to)
	held("when the slot has moved")
	leaveSlot(t, s, first)
	leaveSlot(t, s, second)
	if n := takeSlot(t, s, "renewed", 3).Outcome.Slots.InFlight; n != 1 {
		t.Errorf("%d in flight, want 1", n)
	}
}

// When a master dies, its replica's turn comes without anybody's doing, no request waits
// longer than it may, and keys of other nodes notice nothing.
func TestClusterFailover(t *testing.T) {
	long(t)
	t.Parallel()
	c := redistest.StartCluster(t, "--cluster-require-full-coverage", "no")
	const timeout = 2 * time.Second
	var changes sync.Map
	s, err := redisstore.NewCluster(redisstore.Options{Cluster: true, Address: strings.Join(c.Addrs(), ","), Timeout: timeout}, nil,
		func(address string, failure error) { changes.Store(address, failure) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	dying := c.Nodes[1]
	var mine, others *instance
	var running sync.WaitGroup
	stop := make(chan struct{})
	defer running.Wait()
	defer close(stop)
	for n := 0; mine == nil || others == nil; n++ {
		key := fmt.Sprint("key-", n)
		i := &instance{store: s}
		switch lost := c.Owner(t, c.Nodes[0], c.Slot(t, key)) == dying; {
		case lost && mine == nil:
			mine = i
		case !lost && others == nil:
			others = i
		default:
			continue
		}
		running.Go(func() { i.run(t, key, stop) })
	}
	time.Sleep(100 * time.Millisecond)
	// What others charge for a request that a dead master fails is given back.
	var together []store.Request
	for n := 0; len(together) < 2; n++ {
		key := fmt.Sprint("together-", n)
		if lost := c.Owner(t, c.Nodes[0], c.Slot(t, key)) == dying; lost == (len(together) == 0) {
			limit := storetest.Limit(t, key, algorithms.Quota{Algorithm: "gcra", Events: 10, Window: 36_000_000_000})
			together = append(together, store.Request{Zone: key, Key: key, Cost: 1, Limits: []store.Limit{limit}})
		}
	}
	began := time.Now()
	dying.Kill(t)
	for range 20 {
		if _, err := s.Take(context.Background(), together); err == nil {
			break // its replica is there
		}
		looked := []store.Request{together[1]}
		for deadline := time.Now().Add(patient); ; time.Sleep(time.Millisecond) {
			looked[0].Cost, looked[0].Outcome.Decisions = 0, nil
			if _, err := s.Take(context.Background(), looked); err != nil {
				t.Fatal(err)
			}
			if looked[0].Outcome.Decisions[0].Remaining == 10 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%+v: it keeps a charge", looked[0].Outcome.Decisions[0])
			}
		}
	}
	for deadline := began.Add(2 * patient); ; time.Sleep(20 * time.Millisecond) {
		errors, failed, last := mine.seen()
		if errors > 0 && time.Since(failed) > time.Second {
			t.Logf("failed last after %v (%d times), longest request %v, last error: %v",
				failed.Sub(began).Round(time.Millisecond), errors, mine.forget().Round(time.Millisecond), last)
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the keys of a dead master find no new one: %v", last)
		}
	}
	if _, known := changes.Load(dying.Addr); !known {
		t.Error("nobody was told that the master fails")
	}
	if n := s.Failing(); n != 0 {
		t.Errorf("%d nodes fail, the dead one is to be forgotten", n)
	}
	errors, _, last := others.seen()
	if longest := others.forget(); errors > 0 || longest > timeout+slack {
		t.Errorf("keys of other nodes: %d errors (%v), longest request %v", errors, last, longest)
	}
}

// A master that is cut off from the others doesn't hear who has which slots by now. Nobody
// believes it.
func TestClusterCutOff(t *testing.T) {
	long(t)
	t.Parallel()
	c := redistest.StartCluster(t)
	c.KeepMasters(t)
	ctx := context.Background()
	alone, heir := c.Nodes[0], c.Nodes[3]
	for _, other := range c.Nodes[1:] { // for a minute, it listens to nobody
		if err := alone.Client.ClusterForget(ctx, other.Client.ClusterMyID(ctx).Val()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	c.TakeOver(t, heir, c.Nodes[1], c.Nodes[2])
	for deadline := time.Now().Add(patient); strings.Contains(alone.Client.ClusterInfo(ctx).Val(), "cluster_state:ok"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the master does not notice that it is alone")
		}
	}
	for range 20 { // anybody may answer first
		s := openCluster(t, c, redisstore.Options{Address: strings.Join(c.Addrs()[:3], ",")})
		for n := range 10 { // of all nodes
			if _, err := s.Take(ctx, request(t, fmt.Sprint(n))); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A node that has been taken out of the cluster knows nobody who has a slot: it is asked of
// others.
func TestClusterStrangers(t *testing.T) {
	long(t)
	t.Parallel()
	c := redistest.StartCluster(t)
	c.KeepMasters(t)
	ctx := context.Background()
	from, to := c.Nodes[0], c.Nodes[3]
	var keys []string // of all nodes
	for n := range 10 {
		keys = append(keys, fmt.Sprint("key-", n))
	}
	old := openCluster(t, c, redisstore.Options{})
	for _, key := range keys {
		if _, err := old.Take(ctx, request(t, key)); err != nil {
			t.Fatal(err)
		}
	}
	c.TakeOver(t, to, c.Nodes[1], c.Nodes[2], from)
	if err := from.Client.ClusterResetHard(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		for deadline := time.Now().Add(patient); ; time.Sleep(10 * time.Millisecond) {
			_, err := old.Take(ctx, request(t, key))
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: %v", key, err)
			}
		}
	}
}

// A cluster that can't be reached is found out once, and then no request waits for it,
// until it is there.
func TestClusterUnreachable(t *testing.T) {
	long(t)
	t.Parallel()
	const timeout = 300 * time.Millisecond // a node that is asked for the slots has 1 s
	c := redistest.StartCluster(t)
	c.KeepMasters(t)
	ctx := context.Background()
	for _, s := range c.Nodes {
		s.Freeze(t)
	}
	s := openCluster(t, c, redisstore.Options{Timeout: timeout})
	var failed *store.Error
	if _, err := s.Take(ctx, request(t, "k")); !errors.As(err, &failed) || failed.Reason != store.ReasonTimeout {
		t.Errorf("error %v, want a timeout", err)
	}
	for deadline := time.Now().Add(patient); s.Failing() == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the cluster doesn't count as failing")
		}
	}
	began := time.Now()
	for range 50 {
		if _, err := s.Take(ctx, request(t, "k")); !errors.As(err, &failed) || failed.Reason != store.ReasonTimeout {
			t.Fatalf("error %v, want a timeout", err)
		}
	}
	if took := time.Since(began); took > 10*timeout {
		t.Errorf("50 requests took %v: they wait", took)
	}
	for _, s := range c.Nodes {
		s.Thaw(t)
	}
	for deadline := time.Now().Add(patient); ; time.Sleep(20 * time.Millisecond) {
		_, err := s.Take(ctx, request(t, "k"))
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	redistest.WaitFor(t, "nothing to fail any more", func() bool { return s.Failing() == 0 })
}

func testClusterSettings(t *testing.T, c *redistest.Cluster) {
	alone := redistest.Start(t)
	ctx := context.Background()
	for _, test := range []struct {
		name    string
		options redisstore.Options
		want    string
	}{
		{"one address", redisstore.Options{Address: c.Addrs()[5]}, ""},
		{"one address of several", redisstore.Options{Address: "127.0.0.1:" + redistest.FreePort(t) + "," + c.Addrs()[2]}, ""},
		{"hashed keys", redisstore.Options{Address: c.Addrs()[0], HashKeys: "secret"}, ""},
		{"no cluster", redisstore.Options{Address: alone.Addr}, "is no node of a cluster"},
		{"nobody there", redisstore.Options{Address: "127.0.0.1:" + redistest.FreePort(t)}, "refused"},
	} {
		s := openCluster(t, c, test.options)
		check := s.Check(ctx)
		var err error
		for n := range 20 { // of all nodes
			if _, err = s.Take(ctx, request(t, fmt.Sprint(n))); err != nil {
				break
			}
		}
		for _, err := range []error{check, err} {
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%s: error %v, want %q", test.name, err, test.want)
			}
		}
	}
	for _, p := range [][2]string{{"../README.md", "`(\\+evalsha [^`]*)`"}, {"../docs/redis.md", "`(\\+cluster[^`]*)`"}} {
		text, err := os.ReadFile(p[0])
		if err != nil {
			t.Fatal(err)
		}
		listed := regexp.MustCompile(p[1]).FindSubmatch(text)
		if listed == nil {
			t.Fatalf("%s lists no permissions", p[0])
		}
		rules := append([]string{"on", ">secret", "~caddy_rl:*"}, strings.Fields(string(listed[1]))...)
		for _, node := range c.Nodes {
			if err := node.Client.ACLSetUser(ctx, "limiter", rules...).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	user := openCluster(t, c, redisstore.Options{Username: "limiter", Password: "secret"})
	if err := user.Check(ctx); err != nil {
		t.Error(err)
	}
	if _, err := user.Take(ctx, request(t, "k")); err != nil {
		t.Error(err)
	}
	s := open(t, redisstore.Options{Address: c.Addrs()[0]})
	var failed error
	for n := range 20 {
		if _, err := s.Take(ctx, request(t, fmt.Sprint(n))); err != nil {
			failed = err
		}
	}
	if failed == nil || !strings.Contains(failed.Error(), "write cluster") {
		t.Errorf("a node alone: error %v", failed)
	}
	for want, o := range map[string]redisstore.Options{
		`"h" is not`:    {Address: "h:1,h"},
		"one is not":    {Address: "h:1,/a/socket"},
		"is not: write": {Address: "redis://:SECRET@h:1"},
		"master_name":   {Address: "h:1", MasterName: "m"},
		"nor with db":   {Address: "h:1", DB: 1},
	} {
		o.Cluster = true
		if _, err := redisstore.NewCluster(o, nil, nil); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// Nodes that say of each other only a port are where the one is that says so. The test
// needs Redis 7.
func testClusterNoHosts(t *testing.T, c *redistest.Cluster) {
	ctx := context.Background()
	slot := c.Slot(t, "nowhere")
	from, to := ends(t, c, slot)
	const setting = "cluster-preferred-endpoint-type"
	for _, node := range c.Nodes {
		if err := node.Client.ConfigSet(ctx, setting, "unknown-endpoint").Err(); err != nil {
			t.Skip(err)
		}
		defer node.Client.ConfigSet(ctx, setting, "ip")
	}
	s := openCluster(t, c, redisstore.Options{Address: c.Addrs()[4]})
	if err := s.Check(ctx); err != nil {
		t.Error(err)
	}
	c.BeginMove(t, slot, from, to)
	_, asked := s.Take(ctx, request(t, "nowhere"))
	c.EndMove(t, slot, from, to)
	if _, moved := s.Take(ctx, request(t, "nowhere")); asked != nil || moved != nil {
		t.Error(asked, moved)
	}
}

// In a cluster a batch of many keys is as many script calls. What they lack is loaded once,
// for a new master has no scripts.
func TestLoadsOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, redisstore.Options{Address: server.Addr})
	var requests [][]store.Request
	for n := range 50 {
		requests = append(requests, request(t, fmt.Sprint(n)))
	}
	for _, err := range redisstore.SendApart(s, requests) {
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := server.Calls(t, "evalsha"); n != 100 { // the first 50 prove that nothing ran
		t.Errorf("%d calls, want 100", n)
	}
	stats := server.Client.Info(context.Background(), "commandstats").Val()
	if loads := regexp.MustCompile(`cmdstat_script(?:.load)?:calls=(\d+)`).FindStringSubmatch(stats); loads == nil || loads[1] != "1" {
		t.Errorf("loads %q, want 1", loads)
	}
}

// Where a redirect leads to.
func TestRedirectAddress(t *testing.T) {
	for said, want := range map[string]string{
		"10.0.0.1:7000":    "10.0.0.1:7000",
		"node.example:1":   "node.example:1",
		":7000":            "[fd00::1]:7000",
		"fd00::2:7000":     "[fd00::2]:7000",
		"::ffff:1.2.3.4:1": "[::ffff:1.2.3.4]:1",
	} {
		if got := redisstore.AddressFrom(said, "[fd00::1]:6379"); got != want {
			t.Errorf("%s leads to %s, want %s", said, got, want)
		}
	}
}

// Requests of several keys that come one after the other are decided as a store decides
// that does so in one step.
func testClusterParity(t *testing.T, c *redistest.Cluster) {
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 4))
		s := openCluster(t, c, redisstore.Options{KeyPrefix: fmt.Sprint("parity", seed)})
		memory := store.NewSharedMemory().Bounded(1000, func() int { return 3 }, func(string) {})
		var zones []store.Request
		for z := range 3 {
			quotas := storetest.Variants(1+rng.Int64N(5), 60_000_000)
			quota := quotas[rng.IntN(len(quotas))]
			quota.Initial = nil   // a key of that kind expires by Redis' own clock
			if quota.WarmUp > 0 { // what was warmed up stays warm
				quota = algorithms.Quota{Algorithm: "gcra", Events: quota.Events, Window: quota.Window}
			}
			limit := storetest.Limit(t, fmt.Sprint("zone", z), quota)
			mode := algorithms.Mode(rng.IntN(4))
			if limit.Algorithm().BinaryOnly {
				mode = algorithms.Binary
			}
			zones = append(zones, store.Request{Zone: fmt.Sprint("zone", z), Limits: []store.Limit{limit}, Mode: mode})
		}
		now := algorithms.Micros(1_763_640_000_000_000)
		for step := range 40 {
			now += rng.Int64N(20_000_000)
			var one, other []store.Request
			for _, z := range zones[:1+rng.IntN(3)] {
				z.Key, z.Cost = fmt.Sprint("key", rng.IntN(2), z.Zone), rng.Int64N(4)
				one, other = append(one, z), append(other, z)
			}
			allowed, err := s.TakeAt(context.Background(), now, one)
			if err != nil {
				t.Fatal(err)
			}
			want, _ := memory.TakeAt(context.Background(), now, other)
			for i := range one {
				got, d := one[i].Outcome.Decisions[0], other[i].Outcome.Decisions[0]
				got.Receipt, d.Receipt = algorithms.Receipt{}, algorithms.Receipt{}
				if one[i].Mode == algorithms.Uniform && got.Allowed && d.RetryAfter > 0 && got.RetryAfter > d.RetryAfter {
					got.RetryAfter = d.RetryAfter // it may be told to wait for longer
				}
				if got != d || allowed != want {
					t.Errorf("seed %d step %d, %v %v of cost %d:\ngot  %v %+v,\nwant %v %+v", seed, step, one[i].Limits[0], one[i].Mode, one[i].Cost, allowed, got, want, d)
				}
			}
			if t.Failed() {
				return
			}
		}
	}
}
