package httpfields

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// Family is a set of header fields with one value each. They report on one limit. The zero
// value is not usable; see [FamilyByName].
type Family struct {
	limit, remaining, reset, clear string // the names of the fields; Set deletes also those that it doesn't send
	units                          units
}

// units says which fields of a family are sent, and in which unit.
type units int

const (
	deltaSeconds units = iota // limit, remaining, and reset in seconds from now
	epochSeconds              // limit, remaining, and reset in seconds since the Unix epoch
	milliseconds              // remaining, clear, and for a denied request reset; seconds with three decimals
)

var families = map[string]Family{
	"draft_06":          {"Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset", "", deltaSeconds},
	"x_ratelimit":       xRateLimit(deltaSeconds),
	"x_ratelimit_epoch": xRateLimit(epochSeconds),
	"sharkey":           xRateLimit(milliseconds),
}

func xRateLimit(u units) Family {
	return Family{"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset", "X-Ratelimit-Clear", u}
}

// FamilyByName returns the family draft_06, x_ratelimit, x_ratelimit_epoch or sharkey.
func FamilyByName(name string) (f Family, ok bool) {
	f, ok = families[name]
	return f, ok
}

// SharesFields reports whether two families have fields of the same names.
func (f Family) SharesFields(other Family) bool { return f.remaining == other.remaining }

// Report is the state of one limit after a request, for [Family.Set].
type Report struct {
	Limit      int64 // how many events the limit grants at once
	Remaining  int64 // how many events of cost 1 could be taken now
	ResetAfter algorithms.Micros
	Now        algorithms.Micros // the time, since the Unix epoch
	Denied     bool              // the request is denied
	RetryAfter algorithms.Micros // of a denied request
}

// Set sets the family's fields. If the header has these fields already, Set either keeps
// all of them or replaces all of them: the fields with less remaining win. If both have the same
// remaining, the new fields win for a denied request, and the present ones otherwise.
func (f Family) Set(h http.Header, r Report) {
	remaining, limit := min(r.Remaining, MaxInteger), min(r.Limit, MaxInteger)
	if present := h[f.remaining]; len(present) > 0 {
		n, err := strconv.ParseInt(strings.TrimSpace(present[0]), 10, 64)
		if err == nil && (n < remaining || n == remaining && !r.Denied) {
			return
		}
	}
	for _, name := range []string{f.limit, f.reset, f.clear} {
		delete(h, name)
	}
	h[f.remaining] = []string{strconv.FormatInt(remaining, 10)}
	switch f.units {
	case deltaSeconds:
		h[f.limit] = []string{strconv.FormatInt(limit, 10)}
		h[f.reset] = []string{strconv.FormatInt(Seconds(r.ResetAfter), 10)}
	case epochSeconds:
		h[f.limit] = []string{strconv.FormatInt(limit, 10)}
		h[f.reset] = []string{strconv.FormatInt(Seconds(r.Now+r.ResetAfter), 10)}
	case milliseconds:
		h[f.clear] = []string{formatMilliseconds(r.ResetAfter)}
		if r.Denied && r.RetryAfter < algorithms.Forever {
			h[f.reset] = []string{formatMilliseconds(r.RetryAfter)}
		}
	}
}

// formatMilliseconds returns a span of time in seconds with three decimals, rounded up.
func formatMilliseconds(span algorithms.Micros) string {
	const millisecond = 1000
	ms := span/millisecond + min(span%millisecond, 1)
	return fmt.Sprintf("%d.%03d", ms/1000, ms%1000)
}

// FormatRetryAfter returns the value of Retry-After: whole seconds, rounded up, at least 1. For
// [algorithms.Forever] it returns "", because waiting won't help.
func FormatRetryAfter(wait algorithms.Micros) string {
	if wait >= algorithms.Forever {
		return ""
	}
	return strconv.FormatInt(max(Seconds(wait), 1), 10)
}

// SetRetryAfter sets Retry-After, unless waiting won't help.
func SetRetryAfter(h http.Header, wait algorithms.Micros) {
	if value := FormatRetryAfter(wait); value != "" {
		h[RetryAfter] = []string{value}
	}
}
