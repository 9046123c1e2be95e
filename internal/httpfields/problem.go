package httpfields

import "net/http"

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
}

const problemTypes = "https://iana.org/assignments/http-problem-types#"

// QuotaExceeded returns the problem of a client with a budget that has no room for its request.
func QuotaExceeded(status int, policies []string) Problem {
	return Problem{problemTypes + "quota-exceeded", "The quota for such requests has been exceeded", status, policies}
}

// AbnormalUsage returns the problem of a banned client.
func AbnormalUsage(status int, policies []string) Problem {
	return Problem{problemTypes + "abnormal-usage-detected", "Too many such requests have been denied", status, policies}
}

// Plain returns a problem that has only the text of its status.
func Plain(status int) Problem {
	return Problem{"about:blank", http.StatusText(status), status, nil}
}

// ReducedCapacity returns the problem of a server that can't decide on requests at present.
func ReducedCapacity(status int) Problem {
	return Problem{problemTypes + "temporary-reduced-capacity", "The server cannot take such requests at present", status, nil}
}
