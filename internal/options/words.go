package options

import (
	"slices"
	"strings"
)

// synonyms are words of other limiters, and of the JSON configuration, by the option or field that was
// probably meant.
var synonyms = map[string][]string{
	"token_bucket":      {"algorithm", "limit", "limit_req", "average", "rate", "requests", "rps"},
	"limits":            {"limit_req", "rate", "requests", "rps"},
	"concurrency":       {"amount", "connections", "in_flight", "inflightreq", "limit_conn", "max_concurrent", "share"},
	"key":               {"client_ip", "ip", "remote_ip", "source", "sourcecriterion"},
	"key_case":          {"ignore_case", "lowercase"},
	"window":            {"interval", "period"},
	"events":            {"max_events", "max_requests"},
	"max_events":        {"events", "max_requests"},
	"runtime_overrides": {"overrides"},
	"exempt":            {"allow", "allowlist", "bypass", "except", "skip", "whitelist"},
	"shadow":            {"dry_run", "log_only"},
	"delay":             {"queue", "wait"},
	"status":            {"code", "limit_req_status"},
	"match":             {"location", "method", "path"},
	"rate_limits":       {"zone", "zones"},
	"client_ip":         {"address", "ip", "remote_addr"},
	"json":              {"body"},
}

// maxLength is the length from which on a name is no misspelling, and a comparison would take long.
const maxLength = 40

// Suggest returns the name in names that was probably meant, or "". Up to a third of the letters may be wrong, but at
// most three. Berlin means Europe/Berlin.
func Suggest(name string, names []string) (near string) {
	bare := letters(name)
	allowed := min((len(bare)+1)/3, 3)
	for _, other := range names {
		if slices.ContainsFunc(synonyms[other], func(word string) bool { return letters(word) == bare }) ||
			strings.HasSuffix(letters(other), "/"+bare) {
			return other
		}
		if len(bare) > maxLength {
			continue
		}
		if d := distance(bare, letters(other)); d <= allowed {
			near, allowed = other, d-1
		}
	}
	for _, other := range names { // window_size means window, and fixed means fixed_window
		if near == "" && (strings.HasPrefix(name, other+"_") || len(name) >= 4 && strings.HasPrefix(other, name+"_")) {
			return other
		}
	}
	return near
}

// distance returns the edit distance of two texts: how many letters have to be inserted, left
// out, replaced, or swapped with the next one.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		for j := range rows[i] {
			switch {
			case i == 0 || j == 0:
				rows[i][j] = i + j
				continue
			case a[i-1] == b[j-1]:
				rows[i][j] = rows[i-1][j-1]
			default:
				rows[i][j] = 1 + min(rows[i-1][j], rows[i][j-1], rows[i-1][j-1])
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}

// letters removes what separates the words of a name: max_events and maxEvents are the same word.
func letters(name string) string { return separators.Replace(strings.ToLower(name)) }

var separators = strings.NewReplacer("_", "", "-", "", " ", "")
