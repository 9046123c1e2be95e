package options

import (
	"slices"
	"strings"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/closest"
)

// synonyms are words of other limiters, and of the JSON configuration, by the option or field that was
// probably meant.
var synonyms = map[string][]string{
	"token_bucket":      {"algorithm", "limit", "limit_req", "average", "rate", "requests", "rps"},
	"limits":            {"limit_req", "rate", "requests", "rps"},
	"concurrency":       {"amount", "connections", "in_flight", "inflightreq", "limit_conn", "max_concurrent"},
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
}

// Suggest returns the name in names that was probably meant, or "".
func Suggest(name string, names []string) string {
	bare, bareNames := letters(name), make([]string, len(names))
	for i, other := range names {
		bareNames[i] = letters(other)
		if slices.ContainsFunc(synonyms[other], func(word string) bool { return letters(word) == bare }) {
			return other
		}
	}
	if i := closest.Index(bare, bareNames); i >= 0 {
		return names[i]
	}
	for _, other := range names { // window_size means window, and fixed means fixed_window
		if strings.HasPrefix(name, other+"_") || len(name) >= 4 && strings.HasPrefix(other, name+"_") {
			return other
		}
	}
	return ""
}

// letters leaves out what separates the words of a name: max_events and maxEvents are the same word.
func letters(name string) string {
	return strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(name))
}
