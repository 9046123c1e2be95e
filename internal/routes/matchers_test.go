package routes

import (
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/options"
)

// An error of one of Caddy's matchers has one place, also in an imported file.
func TestPlaceOfMatchersError(t *testing.T) {
	tokens, _ := caddyfile.Tokenize([]byte("match {"), "Caddyfile")
	imported, _ := caddyfile.Tokenize([]byte("remote_ip {\nfoo\n}\n}"), "opts.conf")
	d := caddyfile.NewDispenser(append(tokens, imported...))
	at := *d
	d.Next()
	o := Matchers("match", "path /", new(caddyhttp.RawMatcherSets), nil)
	err := options.WithPosition(&at, o.Read(d))
	if text := err.Error(); strings.Count(text, ", at ") != 1 || !strings.Contains(text, ", at opts.conf:") {
		t.Errorf("%s: want one place", text)
	}
}
