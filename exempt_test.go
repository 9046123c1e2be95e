package ratelimit

import (
	"slices"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

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

// Lines of match or exempt that were meant as one block get a warning. Alternatives don't.
func TestMatchersOfOneBlock(t *testing.T) {
	for matchers, want := range map[string][]string{
		"match method POST\nmatch path /login":                         {"method", "path"},
		"match path /login\nmatch method POST":                         {"method", "path"},
		"match path /a\nmatch path /b\nmatch not client_ip 10.0.0.0/8": {"not", "path"},
		"match not path /a\nmatch not path /b":                         {"not", "not"},
		"match protocol https\nmatch method POST":                      {"protocol", "method"},
		"match method POST\nmatch method PUT":                          nil,
		"match path /a\nmatch path /b":                                 nil,
		"match path /a\nmatch host example.com\nmatch header A b":      nil,
		"match {\n method POST\n path /login\n}\nmatch path /signup":   nil,
		"match {\n method POST\n path /login\n}\nmatch method PUT":     nil,
		"match not path /a":                                            nil,
		"exempt method GET\nexempt path /health":                       {"method", "path"},
		"exempt method GET\nmatch path /health":                        nil,
		"exempt client_ip 10.0.0.0/8\nexempt path /health":             nil,
		"exempt method OPTIONS GET\nexempt path /health":               {"method", "path"},
		"exempt protocol http/1.1\nexempt path /health":                {"protocol", "path"},
		"exempt method OPTIONS\nexempt path /health":                   nil,
		"exempt path /health\nexempt method OPTIONS":                   nil,
		"exempt method OPTIONS HEAD\nexempt client_ip 10.0.0.0/8":      nil,
		"exempt method HEAD\nexempt header X-Probe *":                  nil,
		"match method DELETE\nmatch path /export":                      nil,
		"match method PROPFIND REPORT\nmatch path /dav/*":              nil,
		"match protocol grpc\nmatch path /api/*":                       nil,
	} {
		tokens, err := caddyfile.Tokenize([]byte("rate_limit {\n zone api {\n "+matchers+"\n gcra 1 1s\n}\n}"), "Caddyfile")
		if err != nil {
			t.Fatal(err)
		}
		var h Handler
		if err := h.UnmarshalCaddyfile(caddyfile.NewDispenser(tokens)); err != nil {
			t.Fatal(err)
		}
		z := h.RateLimits["api"]
		if got := append(matchersOfOneBlock(z.MatcherSetsRaw), matchersOfOneBlock(z.ExemptRaw)...); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", matchers, got, want)
		}
	}
}
