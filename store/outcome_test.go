package store_test

import (
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// The outcome of a request says whether its zone denies it, for which reason and for how long.
func TestDenial(t *testing.T) {
	allowed, notAsked := algorithms.Decision{Allowed: true}, algorithms.Decision{NotAsked: true, RetryAfter: 7_000_000}
	deniedFor := func(wait algorithms.Micros) algorithms.Decision { return algorithms.Decision{RetryAfter: wait} }
	slots, free := &store.Slots{Limit: 4}, store.SlotsOutcome{Free: true}
	for name, c := range map[string]struct {
		slots      *store.Slots
		outcome    store.Outcome
		denies     bool
		reason     string
		limit      int
		retryAfter algorithms.Micros
	}{
		"not asked": {outcome: store.Outcome{Slots: free, Decisions: []algorithms.Decision{notAsked}}, retryAfter: 7_000_000},
		"allowed":   {outcome: store.Outcome{Verdict: store.Allowed, Slots: free, Decisions: []algorithms.Decision{allowed}}},
		"the longest of two limits": {
			outcome: store.Outcome{Verdict: store.Denied, Slots: free, Decisions: []algorithms.Decision{deniedFor(1), deniedFor(9), allowed}},
			denies:  true, reason: store.DeniedByLimit, limit: 1, retryAfter: 9,
		},
		"no slot": {
			slots: slots, outcome: store.Outcome{Verdict: store.Denied, Decisions: []algorithms.Decision{allowed}},
			denies: true, reason: store.DeniedByConcurrency, retryAfter: store.SlotRetryAfter,
		},
		"no slot, and a limit for longer": {
			slots: slots, outcome: store.Outcome{Verdict: store.Denied, Decisions: []algorithms.Decision{deniedFor(1_000_000)}},
			denies: true, reason: store.DeniedByLimit, retryAfter: 1_000_000,
		},
		"no slot, and a limit for less long": {
			slots: slots, outcome: store.Outcome{Verdict: store.Denied, Decisions: []algorithms.Decision{deniedFor(999_999)}},
			denies: true, reason: store.DeniedByConcurrency, retryAfter: store.SlotRetryAfter,
		},
		"a ban stands": {
			slots: slots, outcome: store.Outcome{
				Verdict: store.Banned, Decisions: []algorithms.Decision{deniedFor(1)}, Ban: store.BanOutcome{Stands: true, EndsAfter: 3_000_000},
			},
			denies: true, reason: store.DeniedByBan, retryAfter: 3_000_000,
		},
		"a ban begins": {
			outcome: store.Outcome{
				Verdict: store.Denied, Slots: free, Decisions: []algorithms.Decision{deniedFor(1)}, Ban: store.BanOutcome{Began: true, EndsAfter: 3_000_000},
			},
			denies: true, reason: store.DeniedByLimit, retryAfter: 3_000_000,
		},
	} {
		r := store.ZoneRequest{Slots: c.slots, Outcome: c.outcome}
		reason, limit := r.DenialReason()
		if r.Denies() != c.denies || reason != c.reason || limit != c.limit || r.RetryAfter() != c.retryAfter {
			t.Errorf("%s: denies %v because of %q, limit %d, retry after %d",
				name, r.Denies(), reason, limit, r.RetryAfter())
		}
		if want := c.outcome.Ban.EndsAfter > 0; r.IsBanned() != want {
			t.Errorf("%s: banned is %v", name, r.IsBanned())
		}
	}
}

// The longest wait of a limit delays a request, except in shadow mode.
func TestRequiredDelay(t *testing.T) {
	r := store.ZoneRequest{Outcome: store.Outcome{Decisions: []algorithms.Decision{{Allowed: true, Wait: 5}, {Allowed: true, Wait: 8}, {Allowed: true}}}}
	if got := r.RequiredDelay(); got != 8 {
		t.Errorf("a delay of %d, want 8", got)
	}
	if r.Shadow = true; r.RequiredDelay() != 0 {
		t.Errorf("a shadow requires a delay of %d", r.RequiredDelay())
	}
}

// Local budgets decide by the shares of limits and slots.
func TestGranted(t *testing.T) {
	whole := fixedWindow(t, 6, time.Hour)
	shared := whole
	shared.Share, _ = whole.Limit.Share(1, 3)
	r := store.ZoneRequest{Limits: []store.Limit{whole, shared}, Slots: &store.Slots{Limit: 10, Share: 3}}
	for _, local := range []bool{false, true} {
		r.Outcome.Local = local
		limit, slots := whole.Limit, int64(10)
		if local {
			limit, slots = shared.Share, 3
		}
		if r.GrantedLimit(0) != whole.Limit || r.GrantedLimit(1) != limit || r.GrantedSlots() != slots {
			t.Errorf("local %v: %v, %v and %d slots", local, r.GrantedLimit(0), r.GrantedLimit(1), r.GrantedSlots())
		}
	}
	r.Slots.Share = 0
	if got := r.GrantedSlots(); got != 10 {
		t.Errorf("%d slots without a share, want 10", got)
	}
}

// Slots have the form of a limit with a guessed retry after.
func TestSlotsDecision(t *testing.T) {
	const soon = store.SlotRetryAfter
	for _, c := range []struct {
		outcome store.SlotsOutcome
		want    algorithms.Decision
	}{
		{store.SlotsOutcome{Free: true}, algorithms.Decision{Allowed: true, Remaining: 2}},
		{store.SlotsOutcome{Free: true, Taken: true, InFlight: 1}, algorithms.Decision{Allowed: true, Charged: 1, Remaining: 1, ResetAfter: soon}},
		{store.SlotsOutcome{InFlight: 3}, algorithms.Decision{MoreAfter: soon, RetryAfter: soon, ResetAfter: soon}},
	} {
		r := store.ZoneRequest{Slots: &store.Slots{Limit: 2}, Outcome: store.Outcome{Verdict: store.Allowed, Slots: c.outcome}}
		if got := r.SlotsDecision(); got != c.want {
			t.Errorf("%+v: %+v, want %+v", c.outcome, got, c.want)
		}
		if !r.AskedForSlot() {
			t.Errorf("%+v: not asked for a slot", c.outcome)
		}
		for _, o := range []store.Outcome{{Verdict: store.NotAsked}, {Verdict: store.Denied, Cached: true}} {
			if r.Outcome = o; r.AskedForSlot() {
				t.Errorf("%+v: asked for a slot", o)
			}
		}
	}
}
