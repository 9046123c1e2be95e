package redisstore

import (
	"context"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// When the last slot is given back, the expiry stays, because the next request would move it again. A key without
// an expiry gets one.
func TestSlotsExpiryStays(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), redistest.Shared(t).Client
	r := []store.ZoneRequest{{Zone: "z", Key: "k", Slots: &store.Slots{ID: store.SlotsID("z", ""), Limit: 1}}}
	name := wire.Names{}.Name("k", r[0].Slots.ID)
	run := func(write func(m *wire.Message)) {
		t.Helper()
		m := new(wire.Message)
		m.Reset(wire.Names{}, wire.Head{SlotsExpiry: algorithms.SlotsExpiry})
		write(m)
		errtest.None(t, client.Eval(ctx, featuresFor(r).Script(), m.AppendKeys(nil), m.Argument()).Err())
	}
	giveBack := func(m *wire.Message) { m.SetSlots(wire.Names{}.CountName("k", r[0].Slots.ID, 0), 0, false) }
	run(func(m *wire.Message) { m.Take(r) })
	client.Expire(ctx, name, time.Hour)
	run(giveBack)
	if left, value := client.TTL(ctx, name).Val(), client.Get(ctx, name).Val(); left < 50*time.Minute || value != "" {
		t.Errorf("%q expires in %v, want an empty value, and an hour", value, left)
	}
	client.Del(ctx, name)
	run(giveBack)
	if left := client.TTL(ctx, name).Val(); left <= 0 || left > time.Minute {
		t.Errorf("a new key expires in %v", left)
	}
}
