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
	"limits":       {"burst", "limit", "limit_req", "qps", "rate", "requests", "rps"},
	"concurrency": {
		"amount", "conn_limit", "connections", "in_flight", "inflightreq", "limit_conn",
		"max_concurrent", "max_connections", "max_in_flight", "parallel",
	},
	"key":               {"client_ip", "ip", "remote_ip", "source", "sourcecriterion"},
	"key_case":          {"case", "fold_case", "ignore_case", "lowercase"},
	"window":            {"interval", "period"},
	"events":            {"max_events"},
	"max_events":        {"events"},
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
	for _, other := range names {
		if slices.Contains(synonyms[other], strings.ToLower(name)) {
			return other
		}
	}
	for _, other := range names { // fixed means fixed_window
		if len(name) >= 4 && strings.HasPrefix(other, strings.ToLower(name)+"_") {
			return other
		}
	}
	letters := strings.NewReplacer("_", "", "-", "")
	bare := make([]string, len(names))
	for i, other := range names {
		bare[i] = letters.Replace(other)
	}
	if i := closest.Index(letters.Replace(strings.ToLower(name)), bare); i >= 0 {
		return names[i]
	}
	return ""
}
