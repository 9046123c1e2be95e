package redisstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Slots that are left while Redis fails leave no state behind.
func TestLeaveSlotsWithoutRedis(t *testing.T) {
	counts := newKeyStates(wire.Names{}, DefaultSlotExpiry, func(string) *Store { return nil })
	for n := range 1000 {
		r := store.ZoneRequest{Key: fmt.Sprint(n), Slots: &store.Slots{ID: "s", Limit: 1}}
		r.Outcome.Slots.Taken = true
		counts.countSlots([]store.ZoneRequest{r})
		counts.leaveSlots([]store.Correction{{Request: &r, Leave: true}}, false)
	}
	counts.mu.Lock()
	defer counts.mu.Unlock()
	if len(counts.sets) > 0 {
		t.Errorf("%d names are remembered that no call sets", len(counts.sets))
	}
}

// Bans, slots, sets, reserved events and look-ups of overrides count as work of a message.
func TestWorkOfSlots(t *testing.T) {
	s := MustNew(t, Options{Address: "127.0.0.1:1", Batch: 1000})
	defer Kill(s)
	s.keys.table.Count("s", 0) // so a count must be set
	const most = int(algorithms.MaxWork / algorithms.CounterWork)
	log, _ := algorithms.NewLimit(algorithms.Quota{Algorithm: "sliding_log", Events: 1000, Window: 1000})
	requests := []store.ZoneRequest{{Slots: &store.Slots{ID: "s", Limit: 1}, Ban: &store.Ban{ID: "b"}}}
	for name, test := range map[string]struct {
		make func() *pendingCall
		most int
	}{
		"sets":  {func() *pendingCall { return newSetCall("s") }, most},
		"takes": {func() *pendingCall { return s.newTakeCall(t.Context(), 0, requests) }, most / 2},
		"reservations": {func() *pendingCall {
			return s.newTakeCall(t.Context(), 0, []store.ZoneRequest{{ReservedID: "r", Ban: &store.Ban{ID: "b"}}})
		}, most * 2 / 3},
		"look-ups of overrides": {func() *pendingCall {
			return s.newTakeCall(t.Context(), 0, []store.ZoneRequest{{Override: new(store.Override)}})
		}, most},
		"takes with two limits": {func() *pendingCall {
			return s.newTakeCall(t.Context(), 0, []store.ZoneRequest{{Limits: []store.Limit{{Limit: log}, {Limit: log}}}})
		}, int(algorithms.MaxWork / (2 * log.Work(0)))},
	} {
		b := newBatch()
		s.keys.mu.Lock()
		s.queue.calls = nil
		for range 2 * most {
			s.queue.calls = append(s.queue.calls, test.make())
		}
		s.fillLocked(b)
		s.keys.mu.Unlock()
		if len(b.calls) != test.most {
			t.Errorf("%d %s share a batch, want %d", len(b.calls), name, test.most)
		}
	}
}

// A message has more takes than Options.Batch only if they would have to wait for its end.
func TestFullMessage(t *testing.T) {
	slots := &store.Slots{ID: "s", Limit: 1000}
	taken := func(key string) *store.ZoneRequest {
		r := &store.ZoneRequest{Key: key, Slots: slots}
		r.Outcome.Slots.Taken = true
		return r
	}
	for name, test := range map[string]struct {
		before func(s *Store)
		slots  *store.Slots
		want   int
	}{
		"takes alone":                {before: func(*Store) {}, want: DefaultBatch},
		"takes of slots alone":       {before: func(*Store) {}, slots: slots, want: DefaultBatch},
		"behind a give-back":         {before: func(s *Store) { s.queue.calls = []*pendingCall{givesBack("k")} }, want: 400},
		"behind one of another key":  {before: func(s *Store) { s.queue.calls = []*pendingCall{givesBack("other")} }, want: DefaultBatch},
		"when a count must be set":   {before: func(s *Store) { s.keys.countSlots([]store.ZoneRequest{*taken("k")}) }, slots: slots, want: 400},
		"when another one must be":   {before: func(s *Store) { s.keys.countSlots([]store.ZoneRequest{*taken("other")}) }, slots: slots, want: DefaultBatch},
		"when a count is set anyway": {before: func(s *Store) { s.queue.calls = []*pendingCall{newSetCall(s.names().Name("k", "s"))} }, slots: slots, want: DefaultBatch},
	} {
		s := MustNew(t, Options{Address: "127.0.0.1:1"})
		defer Kill(s)
		test.before(s)
		s.keys.mu.Lock() // after a while a timer sets the counts, in another goroutine
		for range 400 {
			s.queue.calls = append(s.queue.calls, s.newTakeCall(t.Context(), 0, []store.ZoneRequest{{Key: "k", Slots: test.slots}}))
		}
		for range 10 {
			s.queue.calls = append(s.queue.calls, s.newTakeCall(t.Context(), 0, []store.ZoneRequest{{Key: "last"}}))
		}
		b := newBatch()
		s.fillLocked(b)
		s.keys.mu.Unlock()
		takes := 0
		for _, c := range b.calls {
			if c.requests != nil {
				takes++
			}
		}
		if takes != test.want {
			t.Errorf("%s: %d takes share a batch, want %d", name, takes, test.want)
		}
	}
}

func givesBack(key string) *pendingCall {
	return &pendingCall{key: key, corrections: make([]store.Correction, 1), queued: time.Now()}
}
