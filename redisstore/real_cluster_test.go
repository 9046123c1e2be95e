//go:build real

package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// When a primary dies, its replica takes over. No request waits longer than the timeout, and keys
// of other nodes are not affected.
//
// Simulated: TestNodeDies.
func TestRealClusterFailover(t *testing.T) {
	c := redistest.StartCluster(t, "--cluster-require-full-coverage", "no")
	const timeout = 2 * time.Second
	var changes sync.Map
	s, err := redisstore.NewCluster(redisstore.Options{Cluster: true, Address: strings.Join(c.Addrs(), ","), Timeout: timeout},
		redisstore.Hooks{HealthChanged: func(address string, failure error) { changes.Store(address, failure) }})
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
	// If a dead primary fails a request, the charges on other nodes are refunded.
	var together []store.ZoneRequest
	for n := 0; len(together) < 2; n++ {
		key := fmt.Sprint("together-", n)
		if lost := c.Owner(t, c.Nodes[0], c.Slot(t, key)) == dying; lost == (len(together) == 0) {
			limit := storetest.Limit(t, key, algorithms.Quota{Algorithm: "gcra", Events: 10, Window: 36_000_000_000})
			together = append(together, store.ZoneRequest{Zone: key, Key: key, Cost: 1, Limits: []store.Limit{limit}})
		}
	}
	// Another instance knows the dead primary, and asks nothing until the replica has taken over.
	idle, err := redisstore.NewCluster(redisstore.Options{Cluster: true, Address: strings.Join(c.Addrs(), ","), Timeout: timeout}, redisstore.Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = idle.Close() })
	redistest.WaitFor(t, "an instance to learn the hash slots", func() bool { return idle.Check(context.Background()) == nil })
	if _, err := idle.Take(context.Background(), together); err != nil {
		t.Fatal(err)
	}
	if err := idle.CorrectAt(context.Background(), 0, store.FullRefunds(together)); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	dying.Kill(t)
	for range 20 {
		if _, err := s.Take(context.Background(), together); err == nil {
			break // its replica is there
		}
		looked := []store.ZoneRequest{together[1]}
		redistest.WaitForState(t, "the charge to be given back", func() (any, bool) {
			looked[0].Cost, looked[0].Outcome.Decisions = 0, nil
			if _, err := s.Take(context.Background(), looked); err != nil {
				t.Fatal(err)
			}
			return looked[0].Outcome.Decisions[0], looked[0].Outcome.Decisions[0].Remaining == 10
		})
	}
	redistest.WaitForState(t, "the keys of a dead primary to find the new one", func() (any, bool) {
		errors, failed, last := mine.seen()
		return last, errors > 0 && time.Since(failed) > time.Second
	})
	if _, err := idle.Take(context.Background(), together); err != nil {
		t.Errorf("the first request of an instance, long after the failover: %v", err)
	}
	errors, failed, last := mine.seen()
	t.Logf("failed last after %v (%d times), longest request %v, last error: %v",
		failed.Sub(began).Round(time.Millisecond), errors, mine.forget().Round(time.Millisecond), last)
	if _, known := changes.Load(dying.Addr); !known {
		t.Error("HealthChanged was not called for the failed primary")
	}
	if n := s.Stats().Failing; n != 0 {
		t.Errorf("%d nodes fail, the dead one is to be forgotten", n)
	}
	redistest.WaitFor(t, "HealthChanged about the end of the failure", func() bool {
		failure, _ := changes.Load(dying.Addr)
		return failure == nil
	})
	errors, _, last = others.seen()
	if longest := others.forget(); errors > 0 || longest > timeout+slack {
		t.Errorf("keys of other nodes: %d errors (%v), longest request %v", errors, last, longest)
	}
}

// The slots of a primary that is cut off from the others are old, and are not used.
//
// Simulated: TestNodeCutOff.
func TestRealClusterCutOff(t *testing.T) {
	c := redistest.StartCluster(t)
	c.KeepMasters(t)
	ctx := context.Background()
	alone, heir := c.Nodes[0], c.Nodes[3]
	for _, other := range c.Nodes[1:] { // the node does not reply for a minute
		if err := alone.Client.ClusterForget(ctx, other.Client.ClusterMyID(ctx).Val()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	c.TakeOver(t, heir, c.Nodes[1], c.Nodes[2])
	redistest.WaitFor(t, "the master to notice that it is alone", func() bool {
		return !strings.Contains(alone.Client.ClusterInfo(ctx).Val(), "cluster_state:ok")
	})
	for range 20 { // any node may reply first
		s := openCluster(t, c, redisstore.Options{Address: strings.Join(c.Addrs()[:3], ",")})
		for n := range 10 { // of all nodes
			if _, err := s.Take(ctx, request(t, fmt.Sprint(n))); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A node that hangs during a refund delays the request only until the timeout. The refund is made
// later, once.
func testClusterGivesBackLate(t *testing.T, c *redistest.Cluster) {
	const (
		timeout  = 4 * time.Second
		attempts = 5 // a slow machine may need some
	)
	for n := 1; ; n++ {
		took, err := takeFromSlowNodes(t, c, timeout, fmt.Sprint("late-", n, "-"))
		if err == nil && took <= timeout*7/5 { // a second deadline would always make it 3/2
			return
		}
		if n == attempts {
			t.Fatalf("after %d attempts: it took %v, %v", n, took, err)
		}
	}
}

// takeFromSlowNodes makes a request to a node that hangs for half of the timeout, and to a node that hangs during the
// refund. It returns how long the request took, and checks the refund.
func takeFromSlowNodes(t *testing.T, c *redistest.Cluster, timeout time.Duration, keys string) (took time.Duration, err error) {
	s := openCluster(t, c, redisstore.Options{Timeout: timeout})
	ctx := context.Background()
	limit := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "fixed_window", Events: 2, Window: 3_600_000_000})
	var both []store.ZoneRequest // one of each node
	for n := 0; len(both) < 2; n++ {
		key := fmt.Sprint(keys, n)
		if c.Owner(t, c.Nodes[0], c.Slot(t, key)) == c.Nodes[len(both)] {
			both = append(both, store.ZoneRequest{Zone: "z", Key: key, Cost: 1, Limits: []store.Limit{limit}})
		}
	}
	look := func(one store.ZoneRequest) algorithms.Decision {
		r := []store.ZoneRequest{{Zone: one.Zone, Key: one.Key, Limits: one.Limits}}
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
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		began := time.Now()
		allowed := false
		if allowed, err = s.Take(ctx, both); allowed {
			t.Error("allowed")
		}
		took = time.Since(began)
	}()
	began := time.Now()
	for look(both[1]).Remaining == 2 && time.Since(began) < timeout {
		time.Sleep(time.Millisecond) // between two looks, until the other node has charged
	}
	c.Nodes[1].Freeze(t)
	time.Sleep(timeout/2 - time.Since(began)) // the first node takes half of the time that there is
	c.Nodes[0].Thaw(t)
	<-ended
	c.Nodes[1].Thaw(t)
	if err != nil {
		return took, err
	}
	if d := both[1].Outcome.Decisions[0]; d.Charged != 0 {
		t.Errorf("%+v, want no receipt", d)
	}
	redistest.WaitForState(t, "the refund", func() (any, bool) {
		d := look(both[1])
		return d, d.Remaining == 2
	})
	return took, nil
}

// If a node of a request is known to fail, nothing is charged on the other nodes.
func testClusterBesideFailed(t *testing.T, c *redistest.Cluster) {
	s := openCluster(t, c, redisstore.Options{})
	ctx := context.Background()
	var both []store.ZoneRequest // one of each node
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
		return s.Stats().Failing > 0
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
