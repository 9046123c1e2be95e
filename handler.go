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
	a := h.newAnswer(repl)
	defer a.end()
	var allowed bool
	var err error
	for try := range mostTries {
		if err = a.ask(r, repl, try); err != nil {
			if errors.Is(err, errTooEarly) {
				return h.respond(w, r, http.StatusTooEarly)
			}
			return err
		}
		if len(a.requests) == 0 {
			break
		}
		if allowed, err = h.decide(r.Context(), a); !a.learn(err) {
			break
		}
	}
	if len(a.requests) == 0 {
		return a.watch(next, repl).ServeHTTP(w, r)
	}
	if err != nil {
		return h.undecided(w, r, next, a, err)
	}
	a.noteDenials(r)
	if h.forms.draft && a.enforced() {
		a.setDraft(w.Header())
	}
	if !allowed {
		return h.refuse(w, r, a)
	}
	return a.pass(w, r, repl, a.watch(next, repl))
}

// decide takes from the budgets of all zones, and holds the request if it has to wait.
func (h *Handler) decide(ctx context.Context, a *answer) (allowed bool, err error) {
	began := time.Now()
	took := a.takePlaces()
	held := false
	if took {
		defer func() {
			if !held { // a held request has turns in place of its places
				a.leavePlaces()
			}
		}()
	}
	if took || a.mayCorrect() {
		// If the client leaves, what was charged must be known, to be given back.
		a.useBackend()
		allowed, err = h.store.Take(context.WithoutCancel(ctx), a.requests)
	} else {
		allowed, err = h.store.Take(ctx, a.requests)
	}
	if err != nil {
		return false, err
	}
	if h.backend != nil && a.requests[0].Outcome.Local {
		h.backend.outages.local.Add(1)
	}
	a.decided(allowed, time.Since(began))
	if wait := a.wait(); allowed && wait > 0 {
		held = true
		err = h.hold(ctx, a, wait)
	}
	return allowed, err
}

