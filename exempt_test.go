package ratelimit

import (
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// Zones of one name can exempt other requests.
func TestExemptIdentity(t *testing.T) {
	handler := func(exempt string) string {
		return `{"handler":"rate_limit","rate_limits":{"z":{"limits":[{"algorithm":"gcra","events":1,"window":"1s"}]` + exempt + `}}}`
	}
	if err := caddytest.Validate(handlerConfig(handler(`,"exempt":[{"path":["/a"]}]`) + "," + handler(""))); err != nil {
		t.Error(err)
	}
}
