package ratelimit

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/httpfields"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// deny responds to a request that at least one zone denies.
func (h *Handler) deny(w http.ResponseWriter, r *http.Request, state *requestState) error {
	state.setFamilies(w.Header(), h.headerForms.families)
	e, wait := state.longestDenial()
	state.denying, state.retryAfter = e, h.addJitter(wait)
	httpfields.SetRetryAfter(w.Header(), state.retryAfter)
	state.countDeniedKeys()
	state.denialID = state.logDenial(r, e, denial{wait: wait})
	reason, _ := e.denialReason()
	state.trace.setDenial(e.zone, reason)
	if respondToGRPC(w, r, grpcResourceExhausted, grpcDenialMessages[e.clientReason()], state.retryAfter) {
		return nil
	}
	newProblem := httpfields.QuotaExceeded
	if e.banned() {
		newProblem = httpfields.AbnormalUsage
	}
	problem := newProblem(e.zone.status, state.violatedPolicies())
	problem.Denial = state.denialID
	return h.respondWithProblem(w, r, problem)
}

// clientReason returns the reason of a denial as clients see it. A denial that begins a ban counts as
// one by the ban, because its retry after is that of the ban.
func (e *zoneEntry) clientReason() string {
	if e.banned() {
		return reasonBan
	}
	reason, _ := e.denialReason()
	return reason
}

// longestDenial returns the zone that denies the request for the longest time, and the longest
// retry after of all zones. The two can be of different zones: a zone with mode uniform may have
// allowed the request, but has no room left after the charge. Shadows don't count.
func (state *requestState) longestDenial() (denying *zoneEntry, wait algorithms.Micros) {
	longest := algorithms.Micros(-1)
	for i := range state.entries {
		e := &state.entries[i]
		if e.Shadow {
			continue
		}
		retryAfter := e.retryAfter()
		wait = max(wait, retryAfter)
		if e.denies() && retryAfter > longest {
			denying, longest = e, retryAfter
		}
	}
	return denying, wait
}

// violatedPolicies returns the names of the limits that deny the request, as in
// RateLimit-Policy. If only a ban denies it, that is the name of the zone.
func (state *requestState) violatedPolicies() (policies []string) {
	for i := range state.entries {
		e := &state.entries[i]
		if e.Shadow {
			continue
		}
		before := len(policies)
		for j, d := range e.Outcome.Decisions {
			if limitDenies(d) {
				policies = append(policies, e.limitSet.labels[j])
			}
		}
		if e.lacksSlot() {
			policies = append(policies, e.limitSet.slotLabel)
		}
		if len(policies) == before && e.deniedByBan() {
			policies = append(policies, e.zone.name)
		}
	}
	return policies
}

// handleStoreError responds to a request that the store could not decide on, or passes it to
// next, as on_store_error says.
func (h *Handler) handleStoreError(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler, state *requestState, err error) error {
	if r.Context().Err() != nil { // the client has left, which is no failure of the store
		return h.respondWithStatus(w, r, statusClientClosedRequest)
	}
	for i := range state.entries {
		state.countOutcome(state.entries[i].zone, outcomeError)
	}
	h.reportStoreFailure(err)
	allow := h.storeErrorPolicy.mode == "allow" || !state.hasEnforcedZone()
	if b := h.backend; b != nil && !store.IsBusy(err) {
		if allow {
			b.outageLog.allowed.Add(1)
		} else {
			b.outageLog.denied.Add(1)
		}
	}
	if allow {
		return state.passUndecided(w, r, next)
	}
	httpfields.SetRetryAfter(w.Header(), outageRetryAfter)
	if respondToGRPC(w, r, grpcUnavailable, "rate limits are unavailable", outageRetryAfter) {
		return nil
	}
	return h.respondWithProblem(w, r, httpfields.ReducedCapacity(http.StatusServiceUnavailable))
}

// reportStoreFailure counts a failure of the store, and logs it unless the circuit breaker kept
// the request from the store.
func (h *Handler) reportStoreFailure(err error) {
	if !h.DisableMetrics {
		countStoreError(err)
	}
	switch {
	case store.IsBusy(err): // Redis has not failed
		h.app.reportShed(err)
	case !errors.Is(err, store.ErrOpen):
		h.app.reportFailure(err)
	}
}

// outageRetryAfter is the retry after of a request that the store could not decide on.
const outageRetryAfter algorithms.Micros = 1_000_000

// denyEarly responds to early data of a zone whose key is an address.
func (h *Handler) denyEarly(w http.ResponseWriter, r *http.Request) error {
	if respondToGRPC(w, r, grpcUnavailable, "the request came before the end of the TLS handshake", 0) {
		return nil
	}
	return h.respondWithStatus(w, r, http.StatusTooEarly)
}

// statusClientClosedRequest is the status that Caddy writes to its access log for a request
// whose client has left.
const statusClientClosedRequest = 499

// respondWithProblem ends the request with a problem document. Without problem_json, or if
// there are error routes, it ends the request with the status alone, like [Handler.respondWithStatus].
func (h *Handler) respondWithProblem(w http.ResponseWriter, r *http.Request, p httpfields.Problem) error {
	if h.ProblemJSON == nil || !*h.ProblemJSON {
		return h.respondWithStatus(w, r, p.Status)
	}
	if h.hasErrorRoutes(r) {
		if !h.warnedOfErrorRoutes.Swap(true) {
			h.logger.Warn("problem_json has no effect here: the server has error routes, such as handle_errors of any of its sites, " +
				"and they answer denied requests (said once)")
		}
		return h.respondWithStatus(w, r, p.Status)
	}
	body, err := json.Marshal(p)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", httpfields.ProblemContentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(p.Status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // an error means that the client has left
	}
	return nil
}

// respondWithStatus ends the request with a status. If there are error routes, it returns an error
// that they render. Unlike caddyhttp.Error, this error has no random ID and no stack trace, because
// both take time.
func (h *Handler) respondWithStatus(w http.ResponseWriter, r *http.Request, status int) error {
	if h.hasErrorRoutes(r) {
		return caddyhttp.HandlerError{StatusCode: status}
	}
	w.WriteHeader(status)
	return nil
}

// hasErrorRoutes reports whether error routes render an error that the handler returns.
func (h *Handler) hasErrorRoutes(r *http.Request) bool {
	if h.ReturnErrors {
		return true
	}
	if r.Context().Value(caddyhttp.ErrorCtxKey) != nil {
		return false // this handler is in the error routes
	}
	server, ok := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	return ok && server != nil && server.Errors != nil && len(server.Errors.Routes) > 0
}
