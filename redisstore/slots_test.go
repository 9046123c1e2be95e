package redisstore_test

import (
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// takeSlot takes a slot of a key.
func takeSlot(t *testing.T, s store.Store, key string, limit int64) store.Request {
	t.Helper()
	r := []store.Request{{Zone: "z", Key: key, Cost: 1, Slots: &store.Slots{ID: store.SlotsID("z", ""), Limit: limit}}}
	allowed, err := s.Take(t.Context(), r)
	if o := r[0].Outcome; err != nil || allowed != o.Slots.Taken || allowed != (o.Verdict == store.Allowed) {
		t.Fatalf("allowed %v, error %v, %+v", allowed, err, o)
	}
	return r[0]
}

func leaveSlot(t *testing.T, s store.Store, r store.Request) {
	t.Helper()
	if err := correct(s, store.Correction{Request: &r, Leave: true}); err != nil {
		t.Fatal(err)
	}
}

// A slot lasts as long as its request. The slots of an instance that is killed expire.
func TestSlotsAreRenewed(t *testing.T) {
	t.Parallel()
	redistest.Long(t)
	const expiry = 2 * time.Second
	server := redistest.Start(t)
	s := open(t, redisstore.Options{Address: server.Addr, SlotExpiry: expiry})
	killed := open(t, redisstore.Options{Address: server.Addr, SlotExpiry: expiry})
	held := takeSlot(t, s, "k", 2)
	if !takeSlot(t, killed, "k", 2).Outcome.Slots.Taken || takeSlot(t, s, "k", 2).Outcome.Slots.Taken {
		t.Fatal("there are other than 2 slots")
	}
	redisstore.Kill(killed)
	time.Sleep(3 * expiry / 2) // the count of the killed store expires, and the other one is renewed
	second := takeSlot(t, s, "k", 2)
	if o := second.Outcome.Slots; !o.Taken || o.InFlight != 2 {
		t.Errorf("%+v, want 2 in flight", o)
	}
	leaveSlot(t, s, held)
	leaveSlot(t, s, second)
	if o := takeSlot(t, s, "k", 1).Outcome.Slots; !o.Taken || o.InFlight != 1 {
		t.Errorf("%+v, want 1 in flight", o)
	}
}

// A slot that is left while the store fails expires.
func TestSlotsLeftDuringAnOutage(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, redisstore.Options{Address: server.Addr, SlotExpiry: time.Second, Timeout: 500 * time.Millisecond})
	b := store.NewBreaker(s, nil)
	defer b.Close()
	held := takeSlot(t, b, "k", 1)
	server.Freeze(t)
	redistest.WaitFor(t, "the breaker to open", func() bool {
		_, err := b.Take(t.Context(), request(t, "k"))
		return err != nil && b.Open()
	})
	err := correct(b, store.Correction{Request: &held, Leave: true})
	wantReason(t, "leaving", err, store.ReasonOpen)
	server.Thaw(t)
	redistest.WaitFor(t, "the slot to expire", func() bool {
		r := []store.Request{{Zone: "z", Key: "k", Slots: held.Slots}}
		allowed, err := b.Take(t.Context(), r)
		return allowed && err == nil
	})
}
