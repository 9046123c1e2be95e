package ratelimit

import (
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

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

// A limit that an error suggests can be read, whatever stands there instead.
func TestSuggestedLimits(t *testing.T) {
	words := strings.Fields("0 5 10/s 10/0s / 1s 7d 30d daily per s burst=0 burst=5 20 Europe/Berlin")
	read := func(line string) error {
		d := caddyfile.NewTestDispenser(strings.NewReplacer(" { ", " {\n", " }", "\n}").Replace(line))
		d.Next()
		_, err := unmarshalLimit(d, d.Val())
		return err
	}
	suggested := make(map[string]bool)
	try := func(line string) {
		err := read(line)
		if err == nil {
			return
		}
		message, _, _ := strings.Cut(err.Error(), ", because the burst")
		_, suggestion, _ := strings.Cut(message, ": write ")
		suggestion = strings.TrimPrefix(suggestion, "for example ")
		name, _, _ := strings.Cut(suggestion, " ")
		if !slices.Contains(limitOptions, name) || suggested[suggestion] {
			return
		}
		suggested[suggestion] = true
		if again := read(suggestion); again != nil {
			t.Errorf("%s: %v, and then: %v", line, err, again)
		}
	}
	for _, name := range limitOptions {
		for _, first := range append(words, "10") {
			try(name + " " + first)
			for _, second := range words {
				try(name + " " + first + " " + second)
				for _, third := range words {
					try(name + " " + first + " " + second + " " + third)
					try(name + " " + first + " " + second + " " + third + " 9")
				}
			}
		}
	}
	for _, want := range []string{
		"calendar 10 day", "calendar 10 week", "calendar 10 month", "calendar 10 day Europe/Berlin", "gcra 10 1s", "sliding_log 5 1s", "gcra 10 1s 6",
	} {
		if !suggested[want] {
			t.Errorf("%s is never suggested", want)
		}
	}
}
