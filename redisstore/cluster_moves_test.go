package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
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
		errtest.Report(t, s.Check(ctx))
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

// While a slot moves, requests are decided even if their override can't be read. Changes made
// meanwhile hold after the move.
func testClusterMovesOverrides(t *testing.T, c *redistest.Cluster) {
	s := openCluster(t, c, redisstore.Options{})
	ctx := context.Background()
	slot := c.Slot(t, "overridden")
	from, to := ends(t, c, slot)
	r := request(t, "overridden")
	r[0].Override = new(store.Override)
	left := int64(10)
	take := func(when string) {
		t.Helper()
		left--
		if allowed, err := s.Take(ctx, r); !allowed || err != nil || r[0].Outcome.Decisions[0].Remaining != left {
			t.Fatalf("%s: allowed %v, error %v, %+v, want %d remaining", when, allowed, err, r[0].Outcome.Decisions, left)
		}
	}
	override := func(text string) {
		t.Helper()
		errtest.None(t, s.Change(ctx, store.Change{Zone: r[0].Zone, Key: r[0].Key, Override: &text}))
	}
	overridden := func(when, want string) {
		t.Helper()
		_, err := s.Take(ctx, r)
		var others *store.OverriddenError
		if !errors.As(err, &others) || others.Overrides[0] != want {
			t.Fatalf("%s: %v, want it overridden by %q", when, err, want)
		}
		r[0].Override = &store.Override{Text: want}
	}
	moveAll := func() {
		for c.MoveKeys(t, slot, 10, from, to) > 0 {
		}
	}
	c.BeginMove(t, slot, from, to)
	take("before anything is there")
	take("on the new node")
	moveAll()
	c.EndMove(t, slot, from, to)
	override("x")
	overridden("on the new node", "x")
	take("on the new node")

	from, to = to, from
	c.BeginMove(t, slot, from, to)
	take("before the two keys move")
	override("y")
	overridden("before the two keys move", "y")
	c.MoveKeys(t, slot, 1, from, to)
	take("between them")
	override("z")
	take("between them, when it can't be looked for")
	moveAll()
	c.EndMove(t, slot, from, to)
	overridden("after the move", "z")
	take("after the move")
	override("")
	overridden("after the move", "")
}

// Nodes that name only the ports of others are on the same host. The test needs Redis 7.
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
	errtest.Report(t, s.Check(ctx))
	c.BeginMove(t, slot, from, to)
	_, asked := s.Take(ctx, request(t, "nowhere"))
	c.EndMove(t, slot, from, to)
	if _, moved := s.Take(ctx, request(t, "nowhere")); asked != nil || moved != nil {
		t.Error(asked, moved)
	}
}

// A redirect without a host leads to the host of the node that sent it.
func TestRedirectAddress(t *testing.T) {
	for said, want := range map[string]string{
		"10.0.0.1:7000":    "10.0.0.1:7000",
		"node.example:1":   "node.example:1",
		":7000":            "[fd00::1]:7000",
		"fd00::2:7000":     "[fd00::2]:7000",
		"[fd00::2]:7000":   "[fd00::2]:7000",
		"::ffff:1.2.3.4:1": "[::ffff:1.2.3.4]:1",
	} {
		if got := redisstore.ResolveRedirect(said, "[fd00::1]:6379"); got != want {
			t.Errorf("%s leads to %s, want %s", said, got, want)
		}
	}
}
