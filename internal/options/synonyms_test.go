package options_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	ratelimit "github.com/caddy-rate-limit/caddy-rate-limit"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/options"
)

// A block has each option that a synonym suggests. An error names the block.
func TestSynonyms(t *testing.T) {
	for option := range options.Synonyms {
		err := new(ratelimit.Handler).UnmarshalCaddyfile(caddyfile.NewTestDispenser("rate_limit {\n" + option + "\n}"))
		unknown := err != nil && strings.Contains(err.Error(), "unknown option") && !strings.Contains(err.Error(), "rate_limit: it belongs in")
		if onlyJSON := slices.Contains([]string{"limits", "max_events", "rate_limits"}, option); unknown != onlyJSON {
			t.Errorf("%s: %v", option, err)
		}
	}
}
