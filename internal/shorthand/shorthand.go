// Package shorthand knows the short placeholders of Caddyfiles, such as {path} for {http.request.uri.path}. Caddy
// replaces them in sites before it calls this module. This package never knows whether a placeholder exists.
package shorthand

import (
	"strings"
	"sync"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
)

var replacer = sync.OnceValue(httpcaddyfile.NewShorthandReplacer)

// Apply replaces short placeholders by their full names.
func Apply(tokens *caddyfile.Segment) { replacer().ApplyToSegment(tokens) }

// Expand returns the full name of a placeholder, and whether the given name is a short one.
func Expand(name string) (long string, isShort bool) {
	braced := "{" + name + "}"
	tokens := caddyfile.Segment{{Text: braced}}
	Apply(&tokens)
	return strings.Trim(tokens[0].Text, "{}"), tokens[0].Text != braced
}

// LacksBraces reports whether a text is the name of a placeholder without its braces.
func LacksBraces(text string) bool {
	_, short := Expand(text)
	return short || strings.HasPrefix(text, "http.")
}
