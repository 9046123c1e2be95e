package ratelimit

import (
	"net/http"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// requestState is one handler's evaluation of one request. Placeholders refer to it, so it
// lives as long as the request.
type requestState struct {
	handler      *Handler
	entries      []zoneEntry     // one per zone that the request belongs to
	requests     []store.Request // one per entry
	decided      bool            // the store has decided
	allowed      bool            // by all zones
	corrected    bool            // the corrections are sent
	usesBackend  bool            // the handler's backend stays open for this request
	exceededZone string          // the zone that denied the request; see [requestState.longestDenial]
	watchedZones uint64          // bit i: the handler's zone i has placeholders that later handlers may set

	// Several handlers can evaluate a request. The replacer of the request knows the state of
	// the outermost handler. From there the others are found.
	outer     *requestState // of the handler around this one
	innermost *requestState // of the last handler so far; set in the outermost state

	// Space for the usual number of zones, so that a request needs only one allocation.
	entryRoom      [1]zoneEntry
	requestRoom    [1]store.Request
	correctionRoom [1]store.Correction
	decisionRoom   [2]algorithms.Decision
	fieldRoom      [2]string
}

// zoneEntry is the part of a requestState about one zone that the request belongs to.
type zoneEntry struct {
	zone     *zone
	limitSet *limitSet // the limits of the request's key in the zone
	*store.Request
	settled  bool  // the response tells the true cost; see [Settle]
	trueCost int64 // how many events that is
}

// newRequestState returns the state of a request that comes to the handler.
func (h *Handler) newRequestState(repl *caddy.Replacer) *requestState {
	state := &requestState{handler: h}
	state.entries, state.requests = state.entryRoom[:0], state.requestRoom[:0]
	v, _ := repl.Get(placeholderPrefix)
	outermost, ok := v.(*requestState)
	if !ok {
		outermost = state
		repl.Map(state.lookUpPlaceholder)
	}
	state.outer, outermost.innermost = outermost.innermost, state
	return state
}

// collect fills in the zones that the request belongs to, and one store request per zone. It is
// called again if the store knows other overrides than this instance; attempt counts the calls
// from 0.
func (state *requestState) collect(r *http.Request, repl *caddy.Replacer, attempt int) error {
	state.entries, state.requests, state.watchedZones = state.entries[:0], state.requests[:0], 0
	for i, z := range state.handler.zones {
		matches, err := z.matches(r)
		if err != nil {
			return err
		}
		if !matches {
			continue
		}
		state.checkKeySource(i, r)
		factor := z.factorOf(repl)
		if factor == 0 {
			continue // unlimited
		}
		if z.tooEarly(r, repl) {
			if z.enforce == 0 {
				continue
			}
			return errTooEarly
		}
		key := z.keyOf(repl)
		if attempt == 0 {
			z.warnOfEmptyKey(key)
		}
		limits, override := z.limitSetFor(key, repl)
		if attempt == maxAttempts-1 {
			override = nil
		}
		request := store.Request{Zone: z.name, Key: key.text, Override: override}
		switch {
		case !limits.unlimited:
			b := &limits.budgets[key.alternative]
			request.Limits, request.Slots, request.Ban = scaleLimits(b.limits, factor), b.slots, b.ban
			request.Mode, request.Cost, request.Shadow = z.mode, z.costOf(repl), !z.enforces(key.text)
		case z.mayHaveRuntimeOverride(key): // the store may know a run-time override with limits
			request.Shadow = true
		default:
			if attempt == 0 {
				z.metrics.countOutcome(outcomeOverridden)
			}
			continue
		}
		state.entries = append(state.entries, zoneEntry{zone: z, limitSet: limits})
		state.requests = append(state.requests, request)
	}
	for i := range state.entries {
		state.entries[i].Request = &state.requests[i]
	}
	if len(state.requests) > 0 {
		state.requests[0].Outcome.Decisions = state.decisionRoom[:0]
	}
	return nil
}

// denies reports whether the zone denies the request, or would without shadow mode.
func (e *zoneEntry) denies() bool {
	return e.Outcome.Verdict == store.Denied || e.Outcome.Verdict == store.Banned
}

// limitDenies reports whether a limit denies a request.
func limitDenies(d algorithms.Decision) bool { return !d.Allowed && !d.NotAsked }

// retryAfter returns how long it takes until the zone has room for the request, as far as is
// known.
func (e *zoneEntry) retryAfter() algorithms.Micros {
	wait := e.Outcome.Ban.EndsAfter
	for _, d := range e.Outcome.Decisions {
		wait = max(wait, d.RetryAfter)
	}
	if e.lacksSlot() {
		wait = max(wait, slotRetryAfter)
	}
	return wait
}
