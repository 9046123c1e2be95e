package ratelimit

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// ServeHTTP takes from the budgets of all zones the request belongs to, in one
// call of the store, and passes the request on or refuses it.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	state := h.newRequestState(repl)
	defer state.end()
	var allowed bool
	var err error
	for try := range maxTries {
		if err = state.collect(r, repl, try); err != nil {
			if errors.Is(err, errTooEarly) {
				return h.respond(w, r, http.StatusTooEarly)
			}
			return err
		}
		if len(state.requests) == 0 {
			break
		}
		if allowed, err = h.decide(r.Context(), state); !state.applyOverrides(err) {
			break
		}
	}
	if len(state.requests) == 0 {
		return state.watchLatePlaceholders(next, repl).ServeHTTP(w, r)
	}
	if err != nil {
		return h.answerUndecided(w, r, next, state, err)
	}
	state.logShadowsAndBans(r)
	if h.headerForms.draft && state.enforced() {
		state.setDraftFields(w.Header())
	}
	if !allowed {
		return h.deny(w, r, state)
	}
	return state.passOn(w, r, repl, state.watchLatePlaceholders(next, repl))
}

// decide takes from the budgets of all zones, and holds the request if it has to wait.
func (h *Handler) decide(ctx context.Context, state *requestState) (allowed bool, err error) {
	began := time.Now()
	took := state.reservePlaces()
	held := false
	if took {
		defer func() {
			if !held { // a held request has turns in place of its places
				state.releasePlaces()
			}
		}()
	}
	if took || state.mayCorrect() {
		// If the client leaves, what was charged must be known, to be given back.
		state.keepBackendOpen()
		allowed, err = h.store.Take(context.WithoutCancel(ctx), state.requests)
	} else {
		allowed, err = h.store.Take(ctx, state.requests)
	}
	if err != nil {
		return false, err
	}
	if h.backend != nil && state.requests[0].Outcome.Local {
		h.backend.outageLog.local.Add(1)
	}
	state.recordDecision(allowed, time.Since(began))
	if wait := state.longestWait(); allowed && wait > 0 {
		held = true
		err = h.hold(ctx, state, wait)
	}
	return allowed, err
}
