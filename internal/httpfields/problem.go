package httpfields

import (
	"encoding/json"
	"net/http"
)

// ProblemContentType is the content type of a [Problem] in JSON.
const ProblemContentType = "application/problem+json"

// Problem is the body of a response that denies a request, as in RFC 9457. Its types come
// from draft-ietf-httpapi-ratelimit-headers.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	// Policies are the limits that deny the request, by their names in RateLimit-Policy.
	Policies []string `json:"violated-policies,omitempty"`
	// Reason is why: limit, concurrency, reserved, ban or hold.
	Reason string `json:"reason,omitempty"`
	// RetryAfter is in seconds, as in the field Retry-After.
	RetryAfter json.Number `json:"retry-after,omitempty"`
	// Denial is the ID of the denial, for operators.
	Denial string `json:"denial,omitempty"`
}

const problemTypes = "https://iana.org/assignments/http-problem-types#"

// Denied completes the problem of a client whose request is denied, by its reason.
func Denied(p Problem) Problem {
	p.Type, p.Title = problemTypes+"quota-exceeded", "The quota for such requests has been exceeded"
	switch p.Reason {
	case "reserved":
		p.Title = "The rest of the quota for such requests is reserved by other requests at present"
	case "ban":
		p.Type, p.Title = problemTypes+"abnormal-usage-detected", "Too many such requests have been denied"
	case "hold":
		p.Type, p.Title = problemTypes+"temporary-reduced-capacity", "An earlier response asks to wait before the next such request"
	}
	return p
}

// Plain returns a problem that has only the text of its status.
func Plain(status int) Problem {
	return Problem{Type: "about:blank", Title: http.StatusText(status), Status: status}
}

// ReducedCapacity returns the problem of a server that can't decide on requests at present.
func ReducedCapacity(status int) Problem {
	return Problem{Type: problemTypes + "temporary-reduced-capacity", Title: "The server cannot take such requests at present", Status: status}
}
