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
	// Denial is the ID of the denial, for operators.
	Denial string `json:"denial,omitempty"`
}

const problemTypes = "https://iana.org/assignments/http-problem-types#"

// QuotaExceeded returns the problem of a client with a budget that has no room for its request.
func QuotaExceeded(status int, policies []string) Problem {
	const title = "The quota for such requests has been exceeded"
	return Problem{Type: problemTypes + "quota-exceeded", Title: title, Status: status, Policies: policies}
}

// AbnormalUsage returns the problem of a banned client.
func AbnormalUsage(status int, policies []string) Problem {
	const title = "Too many such requests have been denied"
	return Problem{Type: problemTypes + "abnormal-usage-detected", Title: title, Status: status, Policies: policies}
}

// Plain returns a problem that has only the text of its status.
func Plain(status int) Problem {
	return Problem{Type: "about:blank", Title: http.StatusText(status), Status: status}
}

// ReducedCapacity returns the problem of a server that can't decide on requests at present.
func ReducedCapacity(status int) Problem {
	return Problem{Type: problemTypes + "temporary-reduced-capacity", Title: "The server cannot take such requests at present", Status: status}
}
