package limiter

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/lines"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// A shadow charges a request that waits for a slot of another zone once, in any mode. A ban of the shadow
// that stands keeps it from charging, before and after the wait.
func TestShadowsChargeWaitingRequestsOnce(t *testing.T) {
	limit := storetest.Limit(t, "shadow", algorithms.Quota{Algorithm: "fixed_window", Events: 10, Window: 1 << 40})
	ban := &store.Ban{ID: store.BanID("shadow", ""), Ban: &algorithms.Ban{After: 1, Window: 1 << 40, Duration: 1 << 40, Max: 1 << 40}}
	for _, test := range []struct {
		mode      algorithms.Mode
		ban       *store.Ban
		banned    bool
		allowed   bool
		remaining int64 // after the wait
	}{
		{mode: algorithms.Binary, remaining: 7},
		{mode: algorithms.Uniform, remaining: 7},
		{mode: algorithms.Nary, remaining: 7},
		{mode: algorithms.Force, remaining: 7},
		{mode: algorithms.Uniform, ban: ban, remaining: 7},
		{mode: algorithms.Binary, ban: ban, banned: true, remaining: 10},
		{mode: algorithms.Uniform, ban: ban, banned: true, remaining: 10},
	} {
		synctest.Test(t, func(t *testing.T) {
			budgets := inMemory()
			s := newSlotTest(budgets, time.Hour)
			s.addZone(t, "slots", time.Hour, 100)
			s.addZone(t, "shadow", time.Hour, 100)
			s.zones["shadow"].Delay = nil
			if test.banned {
				errtest.None(t, budgets.Change(t.Context(), store.Change{Zone: "shadow", Key: "k", Ban: []*store.Ban{ban}, BanFor: 1 << 40}))
			}
			slots := slotAsk{zone: "slots", key: "k", slots: 1}
			shadow := slotAsk{zone: "shadow", key: "k", limits: []store.Limit{limit}, mode: test.mode, ban: test.ban, shadow: true, cost: 3}
			first, _ := s.decide(t.Context(), slots)
			time.AfterFunc(time.Minute, first.sendCorrections)
			state, err := s.decide(t.Context(), slots, shadow)
			if err != nil || !state.Allowed {
				t.Fatalf("denied: %v", err)
			}
			state.sendCorrections()
			look := []store.ZoneRequest{{Zone: "shadow", Key: "k", Limits: shadow.limits}}
			if _, err := budgets.Take(t.Context(), look); err != nil || look[0].Outcome.Decisions[0].Remaining != test.remaining {
				t.Errorf("mode %v, banned %v: %d events remain, want %d; %v", test.mode, test.banned, look[0].Outcome.Decisions[0].Remaining, test.remaining, err)
			}
			if (state.Requests[1].Outcome.Verdict == store.Banned) != test.banned {
				t.Errorf("mode %v, banned %v: %+v", test.mode, test.banned, state.Requests[1].Outcome)
			}
			s.wantIdle(t)
		})
	}
}

// A peek at a request that would wait names the zone without a free slot, whichever zone that is, and takes nothing.
func TestPeekNamesZoneWithoutSlot(t *testing.T) {
	for full := range 2 {
		first, second := newQueueTest(t, inMemory(), "gcra 1 1000000 1", 10), newQueueTest(t, inMemory(), "gcra 1 1000000 1", 10)
		newState := func() *State {
			state := &State{Limiter: first.handler}
			for n, z := range []*Zone{first.zone, second.zone} {
				name, limit := []string{"a", "b"}[n], int64(2)
				if n == full {
					limit = 1
				}
				state.Requests = append(state.Requests, store.ZoneRequest{Zone: name, Slots: &store.Slots{ID: store.SlotsID(name, ""), Limit: limit}})
				state.Entries = append(state.Entries, Entry{Zone: z, LimitSet: &LimitSet{}})
			}
			for n := range state.Entries {
				state.Entries[n].ZoneRequest = &state.Requests[n]
			}
			return state
		}
		holder := newState()
		if err := first.handler.decide(t.Context(), holder); err != nil || !holder.Allowed {
			t.Fatal(holder.Allowed, err)
		}
		for range 2 {
			peek := newState()
			peek.Explained = true
			if waitsFor, err := peek.Peek(t.Context()); err != nil || waitsFor == nil || *waitsFor != (lines.Need{Zone: full}) {
				t.Errorf("a peek at zone %d without a slot returns %v, %v", full, waitsFor, err)
			}
		}
		holder.sendCorrections()
		wantNoPlaces(t, first.zone)
		wantNoPlaces(t, second.zone)
	}
}
