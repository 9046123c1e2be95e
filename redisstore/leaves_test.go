package redisstore

import (
	"fmt"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Slots that are given back while Redis isn't asked leave nothing behind.
func TestLeftWithoutRedis(t *testing.T) {
	f := newInFlight(wire.Names{}, DefaultSlotExpiry, func(string) *Store { return nil })
	for n := range 1000 {
		r := store.Request{Key: fmt.Sprint(n), Slots: &store.Slots{ID: "s", Limit: 1}}
		r.Outcome.Slots.Taken = true
		f.hold([]store.Request{r})
		f.leave([]store.Correction{{Request: &r, Leave: true}}, false)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.leaves) > 0 {
		t.Errorf("%d names are remembered that no call sets", len(f.leaves))
	}
}

// Bans, slots and sets count as work of a message.
func TestWorkOfSlots(t *testing.T) {
	s, err := New(Options{Address: "127.0.0.1:1", Batch: 1000}, nil)
	if err != nil {
		t.Fatal(err)
	}
	const most = int(algorithms.MostWork / algorithms.CounterWork)
	requests := []store.Request{{Slots: &store.Slots{ID: "s", Limit: 1}, Ban: &store.Ban{ID: "b"}}}
	for name, test := range map[string]struct {
		make func() *call
		most int
	}{
		"sets":  {func() *call { return newSet("s") }, most},
		"takes": {func() *call { return s.newTake(t.Context(), 0, requests) }, most / 2},
	} {
		s.queue.calls = nil
		for range 2 * most {
			s.queue.calls = append(s.queue.calls, test.make())
		}
		b := new(batch)
		s.fillLocked(b)
		if len(b.calls) != test.most {
			t.Errorf("%d %s travel together, want %d", len(b.calls), name, test.most)
		}
	}
}
