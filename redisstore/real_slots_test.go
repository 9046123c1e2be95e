//go:build real

package redisstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Slots held while Redis loses them, hangs or has its clock set are counted again within a third of
// the expiry, until they are left. Then no state remains.
//
// Simulated: TestSlotsSurvive.
func TestRealSlotsSurviveRedis(t *testing.T) {
	const expiry = 3 * time.Second
	for _, test := range []struct {
		name  string
		fault func(t *testing.T, server *redistest.Server, clock redistest.Clock)
	}{
		{"emptied", func(t *testing.T, server *redistest.Server, _ redistest.Clock) { server.Client.FlushAll(t.Context()) }},
		{"restarted", func(t *testing.T, server *redistest.Server, _ redistest.Clock) {
			server.Kill(t)
			server.Restart(t)
		}},
		{"frozen", func(t *testing.T, server *redistest.Server, _ redistest.Clock) {
			server.Freeze(t)
			time.Sleep(expiry / 2) // the store has to set its counts meanwhile, and can't
			server.Thaw(t)
		}},
		{"ahead", func(t *testing.T, _ *redistest.Server, clock redistest.Clock) { clock.Set(t, 10*time.Minute) }},
		{"back", func(t *testing.T, _ *redistest.Server, clock redistest.Clock) { clock.Set(t, -10*time.Minute) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			server, clock := redistest.StartClock(t)
			o := redisstore.Options{Address: server.Addr, SlotExpiry: expiry, Timeout: 500 * time.Millisecond}
			s, other := open(t, o), open(t, o)
			var held []store.ZoneRequest
			for range 5 {
				held = append(held, takeSlot(t, s, "k", 5))
			}
			test.fault(t, server, clock)
			waitForSlots(t, other, "k", 5)
			for stop := time.Now().Add(expiry * 3 / 2); time.Now().Before(stop); {
				time.Sleep(20 * time.Millisecond) // a count that nobody sets again expires by then
				if n := keys(t, other, "k"); n != 5 {
					t.Fatalf("%d in flight, want 5", n)
				}
			}
			if r := takeSlot(t, other, "k", 5); r.Outcome.Slots.Taken {
				t.Error("a sixth request is in flight")
			}
			errtest.None(t, s.CorrectAt(t.Context(), 0, storetest.Leaves(held)))
			waitForSlots(t, other, "k", 0)
		})
	}
}

// waitForSlots waits until so many requests hold a slot of a key, as a store without held slots finds.
func waitForSlots(t *testing.T, s store.Store, key string, want int64) {
	t.Helper()
	redistest.WaitForState(t, fmt.Sprint(want, " slots of ", key, " in flight"), func() (any, bool) {
		n := keys(t, s, key)
		return fmt.Sprint(n, ", -1 is a failure"), n == want
	})
}

// keys returns how many requests hold a slot of a key, as a store without held slots finds.
func keys(t *testing.T, s store.Store, key string) int64 {
	t.Helper()
	r := []store.ZoneRequest{{Zone: "z", Key: key, Peek: true, Slots: &store.Slots{ID: store.SlotsID("z", ""), Limit: 100}}}
	if _, err := s.Take(t.Context(), r); err != nil {
		return -1
	}
	return r[0].Outcome.Slots.InFlight
}
