package ratelimit

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// problem is the body of a response that refuses a request, as RFC 9457 has it. Its
// types are those of draft-ietf-httpapi-ratelimit-headers.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	// Policies are the limits that refuse, by their names in RateLimit-Policy.
	Policies []string `json:"violated-policies,omitempty"`
}

const problemTypes = "https://iana.org/assignments/http-problem-types#"

// quotaExceeded says that some of a client's budgets have no room for its request.
func quotaExceeded(status int, policies []string) problem {
	return problem{problemTypes + "quota-exceeded", "The quota for such requests has been exceeded", status, policies}
}

// abnormalUsage says that a client is banned.
func abnormalUsage(status int, policies []string) problem {
	return problem{problemTypes + "abnormal-usage-detected", "Too many such requests have been refused", status, policies}
}

// reducedCapacity says that requests can't be decided on at present.
func reducedCapacity(status int) problem {
	return problem{problemTypes + "temporary-reduced-capacity", "The server cannot take such requests at present", status, nil}
}

// violated are the names of the limits that deny. A zone that denies by its ban alone
// goes by its own name.
func (a *answer) violated() (policies []string) {
	for i := range a.entries {
		e := &a.entries[i]
		if e.Shadow {
			continue
		}
		before := len(policies)
		for j, d := range e.Outcome.Decisions {
			if denies(d) {
				policies = append(policies, e.terms.labels[j])
			}
		}
		if e.lacksSlot() {
			policies = append(policies, e.terms.slotLabel)
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
		if !h.saidRoutes.Swap(true) {
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
