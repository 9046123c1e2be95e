package ratelimit

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// deny answers a request that some zone has no room for.
func (h *Handler) deny(w http.ResponseWriter, r *http.Request, state *requestState) error {
	state.setFamilies(w.Header(), h.headerForms.families)
	e, wait := state.longestDenial()
	setRetryAfter(w.Header(), wait, h.Jitter)
	state.exceededZone = e.zone.name
	state.countDeniedKeys()
	state.logDenial(r, e, denial{wait: wait})
	why := quotaExceeded
	if e.banned() {
		why = abnormalUsage
	}
	return h.respondProblem(w, r, why(e.zone.status, state.violatedPolicies()))
}

// answerUndecided deals with a request the store could not decide on.
func (h *Handler) answerUndecided(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler, state *requestState, err error) error {
	if r.Context().Err() != nil { // the client has left; nobody is to blame
		return h.respond(w, r, statusClientGone)
	}
	for i := range state.entries {
		state.entries[i].zone.metrics.count(outcomeError)
	}
	h.reportStoreFailure(err)
	allow := h.storeErrorPolicy.mode == "allow" || !state.enforced()
	if b := h.backend; b != nil && !store.IsBusy(err) {
		if allow {
			b.outageLog.allowed.Add(1)
		} else {
			b.outageLog.denied.Add(1)
		}
	}
	if allow {
		return next.ServeHTTP(w, r)
	}
	w.Header()[retryAfterHeader] = []string{"1"}
	return h.respondProblem(w, r, reducedCapacity(http.StatusServiceUnavailable))
}

// reportStoreFailure counts a failure of the store, and reports it unless the store wasn't asked.
func (h *Handler) reportStoreFailure(err error) {
	if !h.DisableMetrics {
		countFailure(err)
	}
	switch {
	case store.IsBusy(err): // Redis has not failed
		h.app.reportFailure("requests were shed", err)
	case !errors.Is(err, store.ErrOpen):
		h.app.reportFailure("a call to Redis failed", err)
	}
}

// statusClientGone is what Caddy writes to its access log for requests that nobody
// waits for any more.
const statusClientGone = 499

// respond ends the request with a status. If there are error routes to render
// it, they get an error, one without the random ID and the stack trace that
// caddyhttp.Error takes the time for; otherwise the status is written.
func (h *Handler) respond(w http.ResponseWriter, r *http.Request, status int) error {
	if h.hasErrorRoutes(r) {
		return caddyhttp.HandlerError{StatusCode: status}
	}
	w.WriteHeader(status)
	return nil
}

func (h *Handler) hasErrorRoutes(r *http.Request) bool {
	if h.ReturnErrors {
		return true
	}
	if r.Context().Value(caddyhttp.ErrorCtxKey) != nil {
		return false // we are in them
	}
	server, ok := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	return ok && server != nil && server.Errors != nil && len(server.Errors.Routes) > 0
}

// violatedPolicies are the names of the limits that deny. A zone that denies by its ban alone
// goes by its own name.
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
		if len(policies) == before && e.Outcome.Verdict == store.Banned {
			policies = append(policies, e.zone.name)
		}
	}
	return policies
}

// respondProblem ends the request like respond, but says in the body why, if that is
// wanted and no error routes have the say.
func (h *Handler) respondProblem(w http.ResponseWriter, r *http.Request, p problem) error {
	if h.ProblemJSON == nil || !*h.ProblemJSON {
		return h.respond(w, r, p.Status)
	}
	if h.hasErrorRoutes(r) {
		if !h.warnedOfErrorRoutes.Swap(true) {
			h.logger.Warn("problem_json has no effect here: the server has error routes, such as handle_errors of any of its sites, and they answer refused requests (said once)")
		}
		return h.respond(w, r, p.Status)
	}
	body, err := json.Marshal(p)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(p.Status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // who has left needs no body
	}
	return nil
}
