package ratelimit

import (
	"context"
	"errors"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// ServeHTTP charges a request to all zones that it belongs to, in one call of the store. Then it
// passes the request to next, at once or after a delay, or denies it.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) (err error) {
	repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	state := h.newRequestState(repl)
	state.trace = newRequestTrace(r.Context())
	defer func() { state.releaseBody(w, r, err) }()
	defer state.finish() // first, because releaseBody may wait for the body
	var storeError error
	for attempt := range maxAttempts {
		err := state.collect(r, repl, attempt)
		state.closeAfterLateBody(w, r)
		if err != nil {
			return h.handleCollectError(w, r, state, err)
		}
		if len(state.requests) == 0 {
			return state.passUndecided(w, r, state.watchLatePlaceholders(next, repl))
		}
		storeError = h.decide(r.Context(), state)
		if !state.rememberOverrides(storeError) {
			break
		}
	}
	if storeError != nil {
		return h.handleStoreError(w, r, next, state, storeError)
	}
	state.logShadowsAndBans(r)
	if h.headerForms.draft && state.hasEnforcedZone() {
		state.setDraftFields(w.Header())
	}
	if !state.allowed {
		return h.deny(w, r, state)
	}
	return state.passOn(w, r, repl, state.watchLatePlaceholders(next, repl))
}

// handleCollectError responds to a request whose zones could not be collected.
func (h *Handler) handleCollectError(w http.ResponseWriter, r *http.Request, state *requestState, err error) error {
	if denied, ok := err.(*deniedBody); ok {
		return h.denyBody(w, r, state, denied)
	}
	if errors.Is(err, errTooEarly) {
		return h.denyEarly(w, r)
	}
	return err
}

// decide takes the request from the budgets of all its zones. If a slot is missing, decide may wait
// for it. If the request is allowed, but too early, decide delays it until its time.
func (h *Handler) decide(ctx context.Context, state *requestState) error {
	hasPlaces := state.reservePlaces()
	if hasPlaces {
		defer state.releasePlaces()
	}
	takeCtx := ctx
	if hasPlaces || state.mayNeedCorrections() {
		state.keepBackendOpen()
		// If the client leaves, the charges must be known all the same, to be given back.
		takeCtx = context.WithoutCancel(ctx)
	}
	decisionCtx, span := state.trace.startDecision(ctx)
	allowed, took, err := state.take(decisionCtx, takeCtx)
	state.trace.endDecision(ctx, span, state, err)
	if err != nil {
		return err
	}
	state.decided, state.allowed = true, allowed
	if h.backend != nil && state.requests[0].Outcome.Local {
		h.backend.outageLog.local.Add(1)
	}
	state.countOutcomes(took)
	if delay := state.requiredDelay(); allowed && delay > 0 {
		return state.hold(ctx, delay)
	}
	return nil
}

// mayNeedCorrections reports whether the charges of the request may have to be corrected when
// it ends.
func (state *requestState) mayNeedCorrections() bool {
	for i := range state.entries {
		if e := &state.entries[i]; e.Slots != nil || e.zone.settle != nil && len(e.Limits) > 0 {
			return true
		}
	}
	return false
}

// keepBackendOpen keeps the handler's backend open until finish, also after a reload, so that
// the charges of the request can be corrected.
func (state *requestState) keepBackendOpen() {
	if b := state.handler.backend; b != nil && !state.usesBackend {
		state.usesBackend = true
		b.acquire()
	}
}

// finish ends the request.
func (state *requestState) finish() {
	state.sendCorrections()
	if !state.usesBackend {
		return
	}
	if err := state.handler.backend.release(); err != nil {
		state.handler.reportStoreFailure(err)
	}
}

// sendCorrections corrects the charges of the request by its response, and gives its slots
// back, in one call of the store. Later calls do nothing.
func (state *requestState) sendCorrections() {
	if !state.decided || state.corrected {
		return
	}
	state.corrected = true
	corrections := state.correctionRoom[:0]
	for i := range state.entries {
		e := &state.entries[i]
		c := store.Correction{Request: e.Request, Leave: e.Outcome.Slots.Taken}
		if e.settled {
			c.Refund, c.Charge = max(e.Cost-e.trueCost, 0), max(e.trueCost-e.Cost, 0)
		}
		if c.Leave || c.Refund > 0 || c.Charge > 0 {
			corrections = append(corrections, c)
		}
		if c.Leave {
			e.zone.metrics.countInFlight(-1)
		}
	}
	if len(corrections) > 0 {
		state.handler.store.Correct(corrections, state.handler.reportCorrectionFailure)
		state.wakeWaiting(corrections)
	}
}
