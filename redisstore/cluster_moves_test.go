package redisstore_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// ends returns the node that has a slot, and another one.
func ends(t *testing.T, c *redistest.Cluster, slot int) (from, to *redistest.Server) {
	t.Helper()
	from, to = c.Owner(t, c.Nodes[0], slot), c.Nodes[0]
	if from == to {
		to = c.Nodes[1]
	}
	return from, to
}

// A slot that moves doesn't trouble a log that has only expired entries.
func testClusterMovesLogs(t *testing.T, c *redistest.Cluster) {
	const hour = 3_600_000_000
	s := openCluster(t, c, redisstore.Options{})
	ctx := context.Background()
	slot := c.Slot(t, "log")
	from, to := ends(t, c, slot)
	var all [][]store.ZoneRequest
	for _, buckets := range []int64{0, 2} {
		zone := fmt.Sprint(buckets)
		limit := storetest.Limit(t, zone, algorithms.Quota{Algorithm: "sliding_log", Events: 2, Window: hour, Buckets: buckets})
		all = append(all, []store.ZoneRequest{{Zone: zone, Key: "log", Cost: 1, Limits: []store.Limit{limit}}})
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
