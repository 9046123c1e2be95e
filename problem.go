package ratelimit

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
