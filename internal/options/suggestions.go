package options

import (
	"slices"
	"strings"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/closest"
)

// synonyms are words of other limiters, and of the JSON configuration, by the option or field that was
// probably meant. A block has at most one of the options with a common word.
var synonyms = map[string][]string{
	"token_bucket": {"algorithm", "average", "bucket", "limit", "limits", "qps", "rate", "requests", "rps"},
	"gcra":         {"limit_req"},
	"limits":       {"limit", "limit_req", "qps", "rate", "requests", "rps"},
	"concurrency": {
		"amount", "conn_limit", "connections", "in_flight", "inflightreq", "limit_conn",
		"max_concurrent", "max_connections", "max_in_flight", "parallel",
	},
	"key":               {"client_ip", "ip", "remote_ip", "source", "sourcecriterion"},
	"key_case":          {"case", "fold_case", "ignore_case", "lowercase"},
	"window":            {"interval", "period"},
	"events":            {"max_events", "max_requests", "hits", "calls"},
	"max_events":        {"events", "max_requests", "hits", "calls"},
	"runtime_overrides": {"overrides"},
	"exempt":            {"allow", "allowlist", "bypass", "except", "ignore", "skip", "whitelist"},
	"shadow":            {"dry_run", "log_only"},
	"delay":             {"queue", "wait"},
	"cost":              {"weight"},
	"status":            {"code", "limit_req_status", "reject_status", "status_code"},
	"match":             {"location"},
	"settle":            {"count"},
	"zone":              {"rate_limits", "zones"},
	"rate_limits":       {"zone", "zones"},
	"address":           {"addr", "host", "url"},
	"db":                {"database"},
	"username":          {"user"},
	"key_prefix":        {"prefix"},
	"master_name":       {"master", "sentinel"},
}

// corrections are corrections for words of other limiters that stand for no option of the block.
var corrections = map[string]string{
	"fail_open": "write on_store_error allow in the directive rate_limit, outside of zones",
	"nodelay":   "leave it out, because requests are delayed only with delay",
	"period":    "the window is the second value of a limit, as in token_bucket 100 1m 50",
}

// directives often stand below a block. If the block isn't closed, they stand among its options.
var directives = []string{
	"encode", "file_server", "forward_auth", "handle", "handle_path", "php_fastcgi", "redir", "respond",
	"reverse_proxy", "rewrite", "root", "route",
}

// Suggest returns the name in names that was probably meant, or "".
func Suggest(name string, names []string) string {
	name = strings.ToLower(name)
	bare, bareNames := letters.Replace(name), make([]string, len(names))
	for i, other := range names {
		bareNames[i] = letters.Replace(other)
		if slices.ContainsFunc(synonyms[other], func(word string) bool { return letters.Replace(word) == bare }) {
			return other
		}
	}
	for _, other := range names { // fixed means fixed_window
		if len(name) >= 4 && strings.HasPrefix(other, name+"_") {
			return other
		}
	}
	if i := closest.Index(bare, bareNames); i >= 0 {
		return names[i]
	}
	for _, other := range names { // window_size means window
		if strings.HasPrefix(name, other+"_") {
			return other
		}
	}
	return ""
}

// letters leaves out what separates the words of a name: max_events and maxEvents are the same word.
var letters = strings.NewReplacer("_", "", "-", "")
