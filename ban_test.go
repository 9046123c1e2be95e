package ratelimit

import (
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// Zones of one name must agree on their ban.
func TestBanIdentity(t *testing.T) {
	handler := func(ban string) string {
		return `{"handler":"rate_limit","rate_limits":{"z":{"limits":[{"algorithm":"gcra","events":1,"window":"1s"}]` + ban + `}}}`
	}
	const hour = `,"ban":{"duration":"1h"}`
	for other, want := range map[string]string{
		`,"ban":{"duration":"60m","after":1,"max":"1h"}`: "",
		"": `ban is "1h0m0s after 1 max 1h0m0s" and not set`,
		`,"ban":{"duration":"1h","scope":"zone"}`:    "",
		`,"ban":{"duration":"1h","scope":"handler"}`: `ban is "1h0m0s after 1 max 1h0m0s" and "1h0m0s after 1 max 1h0m0s scope handler"`,
		`,"ban":{"duration":"1h","max":"2h"}`:        `ban is "1h0m0s after 1 max 1h0m0s" and "1h0m0s after 1 max 2h0m0s"`,
	} {
		err := caddytest.Validate(handlerConfig(handler(hour) + "," + handler(other)))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("ban %s: %v, want %q", other, err, want)
		}
	}
}
