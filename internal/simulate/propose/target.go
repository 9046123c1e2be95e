package propose

import (
	"fmt"
	"strconv"
	"strings"
)

// Target is the share of keys or requests that a proposed limit may deny.
type Target struct {
	Requests bool  // a share of the requests, and not of the keys
	Share    int64 // in billionths
}

// DefaultTarget is 0.1 % of the keys.
var DefaultTarget = Target{Share: 1_000_000}

const (
	whole           = 1_000_000_000
	percentFraction = 7 // digits of a percentage, after the point
)

// ParseTarget reads a target such as "0.1%" or "keys:0.1%", a share of the keys, or "requests:0.1%", a
// share of the requests. 0% stands for limits that deny nobody.
func ParseTarget(text string) (Target, error) {
	counted, percentage, found := strings.Cut(text, ":")
	if !found {
		counted, percentage = "keys", text
	}
	if counted != "keys" && counted != "requests" {
		return Target{}, fmt.Errorf("the target must be a share of keys or requests, not %q: write for example 0.1%% or requests:0.1%%", text)
	}
	number, isPercentage := strings.CutSuffix(strings.TrimSpace(percentage), "%")
	number = strings.TrimSpace(number)
	share, ok := parsePercentage(number)
	switch {
	case !ok:
		return Target{}, fmt.Errorf("the target must be a percentage with at most %d digits after the point, not %q: "+
			"write for example 0.1%% or requests:0.1%%", percentFraction, text)
	case !isPercentage:
		return Target{}, fmt.Errorf("the target must be a percentage, not %q: write %s%%", text, text)
	case share < 0 || share > whole:
		return Target{}, fmt.Errorf("the target must be from 0%% to 100%%, not %q: write for example 0.1%%", text)
	}
	return Target{Requests: counted == "requests", Share: share}, nil
}

// parsePercentage returns a percentage in billionths of the whole. It is above the whole if the number is
// above 100.
func parsePercentage(text string) (share int64, ok bool) {
	digits, negative := strings.CutPrefix(text, "-")
	before, after, _ := strings.Cut(digits, ".")
	if before+after == "" || strings.Trim(before+after, "0123456789") != "" || len(after) > percentFraction {
		return 0, false
	}
	share, err := strconv.ParseInt(before+after+strings.Repeat("0", percentFraction-len(after)), 10, 64)
	if err != nil { // a very large number
		share = 2 * whole
	}
	if negative && share > 0 {
		share = -share
	}
	return share, true
}

// String returns the target as [ParseTarget] reads it.
func (t Target) String() string {
	text := fmt.Sprintf("%08d", t.Share)
	whole, fraction := text[:len(text)-percentFraction], strings.TrimRight(text[len(text)-percentFraction:], "0")
	if text = whole; fraction != "" {
		text += "." + fraction
	}
	if t.Requests {
		return "requests:" + text + "%"
	}
	return text + "%"
}

// fewKeys are so few that one key is too large a part of them.
const fewKeys = 10

// isBelowOneOf reports whether the share of so few keys is less than one key. The proposed limits then deny
// nobody, so they depend on the single key that asks for most.
func (t Target) isBelowOneOf(keys int64) bool {
	return !t.Requests && t.Share > 0 && keys < min(fewKeys, (whole+t.Share-1)/t.Share)
}

// allows reports whether what is denied is at most the share of all. A share of keys is at least one key, unless there are
// few. Otherwise the single key that asks for most would decide.
func (t Target) allows(denied, all tally) bool {
	part, total := denied.keys, all.keys
	if t.Requests {
		part, total = denied.requests, all.requests
	}
	return part*whole <= t.Share*total || !t.Requests && t.Share > 0 && part == 1 && total >= fewKeys
}
