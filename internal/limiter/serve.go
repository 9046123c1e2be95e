package limiter

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/telemetry"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Serve charges a request to all zones that it belongs to, at one instant. Then it
// passes the request to next, at once or after a delay, or denies it.
func (l *Limiter) Serve(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) (err error) {
	repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	state := l.NewState(repl)
	state.trace = telemetry.NewTrace(r.Context())
	state.response = w
	defer func() { state.Body.ReleaseAfter(err) }()
	defer state.logCharges(r)
	defer state.sendCorrections()
	collectError, decideError := state.WithOverrides(
		func(a Attempt) error { return state.Collect(r, repl, a) },
		func() error { return l.decide(r.Context(), state) })
	switch {
	case collectError != nil:
		return l.handleCollectError(w, r, state, collectError)
	case len(state.Requests) == 0:
		return state.passUndecided(w, r, state.watchLatePlaceholders(next, repl))
	case decideError != nil:
		return l.handleStoreError(w, r, next, state, decideError)
	}
	state.recordDenials(r)
	if l.HeaderForms.draft && state.HasEnforcedZone() {
		state.setDraftFields(w.Header())
	}
	if !state.Allowed {
		return l.deny(w, r, state)
	}
	return state.passOn(w, r, repl, state.watchLatePlaceholders(next, repl))
}

// handleCollectError responds to a request whose zones could not be collected.
func (l *Limiter) handleCollectError(w http.ResponseWriter, r *http.Request, state *State, err error) error {
	if denied, ok := err.(*DeniedBody); ok {
		return l.denyBody(w, r, state, denied)
	}
	if errors.Is(err, errTooEarly) {
		return l.denyEarly(w, r)
	}
	return err
}

// decide takes the request from the budgets of all its zones. If a slot is missing, decide may wait
// for it. If the request is allowed, but too early, decide delays it until its time.
func (l *Limiter) decide(ctx context.Context, state *State) error {
	hasPlaces := state.reservePlaces()
	if hasPlaces {
		defer state.Wait.Release()
	}
	storeCtx := ctx
	if hasPlaces || state.mayNeedCorrections() {
		// If the client disconnects, the charges must still be known, to be given back.
		storeCtx = context.WithoutCancel(ctx)
	}
	decisionCtx, span := state.trace.StartDecision(ctx)
	allowed, took, err := state.take(decisionCtx, storeCtx)
	state.trace.EndDecision(ctx, span, telemetry.Decision{Requests: state.Requests, WithRedis: l.Backend != nil, Err: err})
	if err != nil {
		return err
	}
	state.Decided, state.Allowed = true, allowed
	if l.Backend != nil && state.Requests[0].Outcome.Local {
		l.Backend.DecidedWithout().Local.Add(1)
	}
	state.countOutcomes(took)
	if delay := state.RequiredDelay(); allowed && delay > 0 {
		err = state.hold(ctx, delay)
	}
	if err == nil { // otherwise the charges are given back
		state.notify()
	}
	return err
}

// mayNeedCorrections reports whether the charges of the request may have to be corrected when
// it ends.
func (state *State) mayNeedCorrections() bool {
	return slices.ContainsFunc(state.Entries, func(e Entry) bool { return e.Slots != nil || e.Zone.Settle != nil && len(e.Limits) > 0 })
}

// sendCorrections corrects the charges of the request by its response, and gives its slots
// back, in one call of the store. Later calls do nothing.
func (state *State) sendCorrections() {
	if state.Decided && !state.corrected {
		state.corrected = true
		state.correct(true)
	}
}

// correct corrects the charges that are final. At the end of the request all are, and its slots are given back.
func (state *State) correct(ends bool) {
	corrections := state.correctionRoom[:0]
	for i := range state.Entries {
		e := &state.Entries[i]
		c := store.Correction{Request: e.ZoneRequest, Leave: ends && e.Outcome.Slots.Taken}
		if (e.final || ends) && !e.corrected {
			e.corrected = true
			if e.Settled {
				c.Refund, c.Charge = max(e.Cost-e.TrueCost, 0), max(e.TrueCost-e.Cost, 0)
			}
			c.Settled = e.Outcome.Reserved.Added > 0 && (e.reservation == nil || e.reservation.Stop())
			if c.Settled || c.Charge > 0 { // more is used
				c.Charged = state.reporter(e, e.Limits)
			}
			if e.Zone.Settle != nil {
				reserved, _ := e.reserved()
				charged, _ := e.charged()
				e.Zone.Metrics.CountCharge(reserved, charged)
			}
		}
		if c.Corrects() {
			corrections = append(corrections, c)
		}
		if c.Leave {
			e.Zone.Metrics.CountInFlight(-1)
		}
	}
	if len(corrections) > 0 {
		state.Limiter.Store.Correct(corrections, state.Limiter.ReportCorrectionFailure)
		state.Limiter.SlotLines.Wake(corrections)
	}
}
