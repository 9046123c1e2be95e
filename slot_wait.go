package ratelimit

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// In a zone with concurrency and delay, a request without a free slot waits for one. It holds no
// slot of the handler meanwhile, not even in another zone, because the store takes all slots of a
// request or none. So requests of one handler never wait for each other in a circle. With slots of
// several handlers they can, until the longest delay is over.

// take lets the store decide the request. A request that lacks nothing but slots waits for them,
// and then the store decides again. took is how long the last decision took.
func (state *requestState) take(ctx, takeCtx context.Context) (allowed bool, took time.Duration, err error) {
	h := state.handler
	asked := time.Now()
	if state.came.IsZero() { // else the store knew another override
		state.came = asked
	}
	var waiter *slotWaiter
	if e := state.occupiedLine(); e != nil { // a newcomer doesn't overtake the requests that wait
		if !state.canWaitIn(e) {
			state.denyForSlot(e)
			return false, 0, nil
		}
		waiter = state.waitFor(e, nil)
	}
	for {
		if waiter != nil {
			err := state.awaitTurn(ctx, waiter)
			switch hasOutcome := took > 0; {
			case err == nil && hasOutcome:
				state.prepareShadows()
			case errors.Is(err, errNoSlotInTime) && hasOutcome:
				state.ageDecisions(time.Since(asked).Microseconds())
				return false, took, nil
			case errors.Is(err, errNoSlotInTime):
				state.denyForSlot(state.entryOf(waiter))
				return false, took, nil
			case err != nil:
				return false, took, err
			}
			state.renewSlots()
			asked = time.Now()
		}
		allowed, err = h.store.Take(takeCtx, state.requests)
		took = max(time.Since(asked), 1)
		if err == nil && !allowed {
			if e := state.missingSlot(waiter); e != nil {
				waiter = state.waitFor(e, waiter)
				continue
			}
		}
		if waiter != nil {
			slotsRemain := !allowed || state.entryOf(waiter).slotsDecision().Remaining > 0
			h.slotLines.leave(waiter, slotsRemain)
		}
		return allowed, took, err
	}
}

// occupiedLine returns a zone of the request in which other requests wait for a slot of its key, or
// nil.
func (state *requestState) occupiedLine() *zoneEntry {
	for i := range state.entries {
		e := &state.entries[i]
		if e.zone.delay == nil || e.Slots == nil || e.Shadow {
			continue
		}
		if state.handler.slotLines.isOccupied(state.slotKeyOf(e)) && !state.chargesDenials() {
			return e
		}
	}
	return nil
}

// slotKeyOf returns the name of the slots that a request needs in a zone.
func (state *requestState) slotKeyOf(e *zoneEntry) slotKey {
	return slotKey{state.handler.backend, e.Slots.ID, e.Key}
}

// missingSlot returns a zone without a free slot for the request, if the request can wait for all
// the slots that it lacks, and nothing else denies it. The zone in whose line the request stands
// comes first.
func (state *requestState) missingSlot(w *slotWaiter) (missing *zoneEntry) {
	for i := range state.entries {
		e := &state.entries[i]
		if e.Shadow || !e.denies() {
			continue
		}
		lacksMore := e.Outcome.Verdict == store.Banned || slices.ContainsFunc(e.Outcome.Decisions, limitDenies)
		if !e.lacksSlot() || lacksMore || !state.canWaitIn(e) {
			return nil
		}
		if missing == nil || w != nil && w.needs[w.at].entry == i {
			missing = e
		}
	}
	if missing == nil || state.chargesDenials() {
		return nil
	}
	return missing
}

// canWaitIn reports whether the request can wait for a slot of the zone now.
func (state *requestState) canWaitIn(e *zoneEntry) bool {
	return e.hasPlace && time.Since(state.came) < e.zone.delay.longestDelay()
}

// chargesDenials reports whether a zone charges the request even if it is denied. Such a request
// doesn't wait for slots, because each decision would charge it again.
func (state *requestState) chargesDenials() bool {
	return slices.ContainsFunc(state.entries, func(e zoneEntry) bool { return e.Mode == algorithms.Uniform && !e.Shadow })
}

// entryOf returns the zone in whose line the request stands, or has stood last.
func (state *requestState) entryOf(w *slotWaiter) *zoneEntry {
	return &state.entries[w.needs[w.at].entry]
}

// waitFor puts the request, which has a place, into the line of a zone. w is nil if the request stands
// in no line yet.
func (state *requestState) waitFor(e *zoneEntry, w *slotWaiter) *slotWaiter {
	if w == nil {
		w = &slotWaiter{came: state.came, changed: make(chan struct{}, 1)}
		for i := range state.entries {
			if e := &state.entries[i]; e.hasPlace && e.Slots != nil {
				w.needs = append(w.needs, slotNeed{state.slotKeyOf(e), i, state.came.Add(e.zone.delay.longestDelay()), e.zone.metrics.waitingForSlot()})
			}
		}
	}
	at := slices.IndexFunc(w.needs, func(n slotNeed) bool { return &state.entries[n.entry] == e })
	state.handler.slotLines.join(w, at)
	return w
}

// awaitTurn waits until the request is the first in its line, and a slot may be free.
func (state *requestState) awaitTurn(ctx context.Context, w *slotWaiter) error {
	for i := range state.entries {
		if e := &state.entries[i]; e.hasPlace {
			e.zone.delay.queue().awaitSlot(e.Key)
		}
	}
	state.trace.waitForSlot(ctx)
	err := state.handler.slotLines.awaitTurn(ctx, w)
	waited := time.Since(state.came).Microseconds()
	for i := range state.entries {
		if e := &state.entries[i]; e.hasPlace {
			e.zone.delay.queue().endSlotWait(e.Key)
			e.MaxWait = e.longestLimitDelay(waited)
		}
	}
	state.entryOf(w).waited = true
	return err
}

// renewSlots gives the request the slots of the configuration in force. A reload may have changed their
// number while the request waited, and requests of all configurations stand in one line. If that
// configuration doesn't have these slots, the request keeps its own.
func (state *requestState) renewSlots() {
	app, err := activeApp()
	if err != nil || app == state.handler.app {
		return
	}
	for i := range state.entries {
		e := &state.entries[i]
		zones := app.zonesByName[e.zone.name] // all of them have the same slots
		if e.Slots == nil || len(zones) == 0 || zones[0].handler.backend != state.handler.backend {
			continue
		}
		if all := zones[0].defaultSet.budgets; e.alternative < len(all) && all[e.alternative].slots != nil {
			e.Slots = all[e.alternative].slots
		}
	}
}

// denyForSlot denies the request because no slot of a zone is free, without asking the store.
func (state *requestState) denyForSlot(e *zoneEntry) {
	for i := range state.requests {
		r := &state.requests[i]
		decisions := r.Outcome.Decisions[:0]
		for range r.Limits {
			decisions = append(decisions, algorithms.Decision{NotAsked: true})
		}
		r.Outcome = store.Outcome{Decisions: decisions, Slots: store.SlotsOutcome{Free: true}}
	}
	e.Outcome.Verdict, e.Outcome.Slots = store.Denied, store.SlotsOutcome{InFlight: e.Slots.Limit}
}

// prepareShadows prepares the shadow zones for another decision about the request. The last one has
// charged those in mode uniform, which get their charges back. It has also counted the denials of their
// limits, which must not be counted again.
func (state *requestState) prepareShadows() {
	var charged []store.Correction
	for i := range state.entries {
		e := &state.entries[i]
		if !e.Shadow {
			continue
		}
		if e.Mode == algorithms.Uniform {
			charged = append(charged, store.Correction{Request: e.Request, Refund: e.Cost})
		}
		if e.Outcome.Verdict == store.Denied && !e.banned() {
			e.Ban = nil
		}
	}
	if len(charged) > 0 {
		state.handler.store.Correct(charged, state.handler.reportCorrectionFailure)
	}
}

// wakeWaiting wakes the requests that wait for the slots that corrections have given back.
func (state *requestState) wakeWaiting(corrections []store.Correction) {
	for i := range corrections {
		if r := corrections[i].Request; corrections[i].Leave {
			state.handler.slotLines.wake(slotKey{state.handler.backend, r.Slots.ID, r.Key})
		}
	}
}
