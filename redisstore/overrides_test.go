package redisstore_test

import (
	"context"
	"errors"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

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
		if err := s.Change(ctx, store.Change{Zone: r[0].Zone, Key: r[0].Key, Override: &text}); err != nil {
			t.Fatal(err)
		}
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
