package limiter

import (
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"strconv"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/denials"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/httpfields"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/telemetry"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// deny responds to a request that at least one zone denies.
func (l *Limiter) deny(w http.ResponseWriter, r *http.Request, state *State) error {
	state.setFamilies(w.Header(), l.HeaderForms.families)
	e, wait := state.LongestDenial()
	state.denying, state.retryAfter = e, l.addJitter(wait)
	httpfields.SetRetryAfter(w.Header(), state.retryAfter)
	state.denialID = state.logDenial(r, e, denials.Denial{Cause: e.denialCause(), Wait: wait})
	reason, _ := e.DenialReason()
	state.trace.SetDenial(e.Zone.Name, reason)
	clientReason := e.ClientReason()
	if respondToGRPC(w, r, grpcResourceExhausted, grpcDenialMessages[clientReason], state.retryAfter) {
		return nil
	}
	if !l.ProblemJSON { // nobody reads which limits denied the request
		return l.respondWithStatus(w, r, e.Zone.Status)
	}
	return l.respondWithProblem(w, r, httpfields.Denied(httpfields.Problem{
		Status: e.Zone.Status, Policies: state.violatedPolicies(), Denial: state.denialID,
		Reason: clientReason, RetryAfter: json.Number(httpfields.FormatRetryAfter(state.retryAfter)),
	}))
}

// ClientReason returns the reason of a denial as clients see it. A denial that begins a ban counts as
// one by the ban, because its retry after is that of the ban.
func (e *Entry) ClientReason() string {
	reason, _ := e.DenialReason()
	if e.IsBanned() && reason != store.DeniedByHold {
		return store.DeniedByBan
	}
	return reason
}

// addJitter makes the retry after of a denied request later, by a random part of the option jitter.
func (l *Limiter) addJitter(wait algorithms.Micros) algorithms.Micros {
	if l.Jitter == 0 || wait >= algorithms.Forever {
		return wait
	}
	jitter := rand.Float64() * l.Jitter * float64(wait)
	return wait + algorithms.Micros(min(jitter, float64(algorithms.Forever-1-wait)))
}

// LongestDenial returns the zone that denies the request for the longest time, and the longest
// retry after of all zones. The two can be of different zones: a zone with mode uniform may have
// allowed the request, but has no room left after the charge. Shadows don't count.
func (state *State) LongestDenial() (denying *Entry, wait algorithms.Micros) {
	longest := algorithms.Micros(-1)
	for i := range state.Entries {
		e := &state.Entries[i]
		if e.Shadow {
			continue
		}
		retryAfter := e.RetryAfter()
		wait = max(wait, retryAfter)
		if e.Denies() && retryAfter > longest {
			denying, longest = e, retryAfter
		}
	}
	return denying, wait
}

// violatedPolicies returns the names of the limits that deny the request, as in
// RateLimit-Policy. If only a ban denies it, that is the name of the zone.
func (state *State) violatedPolicies() (policies []string) {
	for i := range state.Entries {
		e := &state.Entries[i]
		if e.isHidden() {
			continue
		}
		before := len(policies)
		for j := range len(e.Limits) + 1 {
			if d, _ := e.decisionOf(j); d.Denies() || d.Reserved {
				policies = append(policies, e.LimitSet.labels[j])
			}
		}
		if len(policies) == before && e.Outcome.Verdict == store.Banned {
			policies = append(policies, e.Zone.Name)
		}
	}
	return policies
}

// handleStoreError responds to a request that the store could not decide on, or passes it to
// next, as on_store_error says.
func (l *Limiter) handleStoreError(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler, state *State, err error) error {
	if r.Context().Err() != nil { // the client has disconnected, which is no failure of the store
		return l.respondWithStatus(w, r, statusClientClosedRequest)
	}
	for i := range state.Entries {
		state.countOutcome(state.Entries[i].Zone, telemetry.OutcomeError)
	}
	l.ReportStoreFailure(err)
	allow := l.StoreErrorPolicy.Mode == "allow" || !state.HasEnforcedZone()
	if b := l.Backend; b != nil && !store.IsBusy(err) {
		if allow {
			b.DecidedWithout().Allowed.Add(1)
		} else {
			b.DecidedWithout().Denied.Add(1)
		}
	}
	if allow {
		return state.passUndecided(w, r, next)
	}
	httpfields.SetRetryAfter(w.Header(), OutageRetryAfter)
	if respondToGRPC(w, r, grpcUnavailable, "rate limits are unavailable", OutageRetryAfter) {
		return nil
	}
	return l.respondWithProblem(w, r, httpfields.ReducedCapacity(http.StatusServiceUnavailable))
}

// OutageRetryAfter is the retry after of a request that the store could not decide on.
const OutageRetryAfter algorithms.Micros = 1_000_000

// denyEarly responds to early data of a zone whose key is an address.
func (l *Limiter) denyEarly(w http.ResponseWriter, r *http.Request) error {
	if respondToGRPC(w, r, grpcUnavailable, "the request came before the end of the TLS handshake", 0) {
		return nil
	}
	return l.respondWithStatus(w, r, http.StatusTooEarly)
}

// statusClientClosedRequest is the status that Caddy writes to its access log for a request
// whose client has left.
const statusClientClosedRequest = 499

// respondWithProblem ends the request with a problem document. Without problem_json, or if
// there are error routes, it ends the request with the status alone, like [Limiter.respondWithStatus].
func (l *Limiter) respondWithProblem(w http.ResponseWriter, r *http.Request, p httpfields.Problem) error {
	if !l.ProblemJSON {
		return l.respondWithStatus(w, r, p.Status)
	}
	if l.hasErrorRoutes(r) {
		if !l.warnedOfErrorRoutes.Swap(true) {
			l.Logger.Warn("problem_json has no effect here: the server has error routes, such as handle_errors of any of its sites, " +
				"and they answer denied requests (logged once)")
		}
		return l.respondWithStatus(w, r, p.Status)
	}
	body, err := json.Marshal(p)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", httpfields.ProblemContentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(p.Status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // an error means that the client has disconnected
	}
	return nil
}

// respondWithStatus ends the request with a status. If there are error routes, it returns an error
// that they render. Unlike caddyhttp.Error, this error has no random ID and no stack trace, because
// both take time.
func (l *Limiter) respondWithStatus(w http.ResponseWriter, r *http.Request, status int) error {
	if l.hasErrorRoutes(r) {
		return caddyhttp.HandlerError{StatusCode: status}
	}
	w.WriteHeader(status)
	return nil
}

// hasErrorRoutes reports whether error routes render an error that the limiter returns.
func (l *Limiter) hasErrorRoutes(r *http.Request) bool {
	if l.ReturnErrors {
		return true
	}
	if r.Context().Value(caddyhttp.ErrorCtxKey) != nil {
		return false // this limiter is in the error routes
	}
	server, ok := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	return ok && server != nil && server.Errors != nil && len(server.Errors.Routes) > 0
}
