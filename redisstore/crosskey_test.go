package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// If one key of a request denies, the budgets of the other keys stay as they were, and their
// decisions show that.
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
					t.Errorf("the denying key: %+v", d)
				}
			}
		})
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
	var both []store.Request // one of each node
	for n := 0; len(both) < 2; n++ {
		key := fmt.Sprint(keys, n)
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
