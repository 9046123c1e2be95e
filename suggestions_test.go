package ratelimit

import (
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/options"
)

// Misspelled names are recognized, and names that are like none are not.
func TestMeant(t *testing.T) {
	names := append(append([]string{}, zoneOptions()...), handlerOptions...)
	for name, want := range map[string]string{
		"tokenbucket": "token_bucket", "token-bucket": "token_bucket", "TokenBucket": "token_bucket",
		"tocken_bucket": "token_bucket",
		"evnets":        "events", "kye": "key", "windows": "window", "concurrent": "concurrency",
		"ipv6prefix": "ipv6_prefix", "fixedwindow": "fixed_window",
		"limit": "token_bucket", "Rate": "token_bucket", "max_connections": "concurrency",
		"leaky": "leaky_bucket", "overrides": "runtime_overrides", "dry_run": "shadow",
		"max_requests": "events", "max-requests": "events", "dryRun": "shadow", "match_path": "match", "window_size": "window",
		"key_cases": "key_case", "concurrency_limit": "concurrency",
		"whitelist": "exempt", "allow": "exempt", "bypass": "exempt",
		"x": "", "frobnicate": "", "bandwidth": "", "": "",
	} {
		if got := options.Suggest(name, names); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}
