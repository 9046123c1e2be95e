// Package keys makes the keys of requests from texts with placeholders. It never knows a zone or a limit:
// the same text, form and request give the same key.
package keys

import (
	"fmt"
	"strings"

	"github.com/caddyserver/caddy/v2"
)

// Template is a text with placeholders, prepared to be expanded: an alternative of a zone's key,
// or the value of a plan.
type Template struct {
	Text string
	// Single is the name of the only placeholder, if the text is one placeholder and nothing else.
	// This usual case needs no building of strings.
	Single string
	Plain  bool // without placeholders

	// For the keys of a zone only:
	Address bool // Single is an address placeholder
	masked  bool // the address placeholder gives networks
	form    Form
}

// Form is how a zone writes its keys.
type Form struct {
	IPv4Prefix, IPv6Prefix int  // the prefixes of addresses; 0 for whole addresses
	FoldCase               bool // see [FoldCase]
}

// NewTemplate returns the template of a text that is no key.
func NewTemplate(text string) Template {
	t := Template{Text: text, Plain: !strings.ContainsAny(text, "{}")}
	if name, ok := strings.CutPrefix(text, "{"); ok {
		if name, ok = strings.CutSuffix(name, "}"); ok && !strings.ContainsAny(name, `{}\`) {
			t.Single = name
		}
	}
	return t
}

// NewKey returns the template of an alternative of a zone's key.
func NewKey(text string, form Form) Template {
	t := NewTemplate(text)
	ipv4, ipv6, masked, _ := maskOf(t.Single) // the check of the placeholder reports the error
	t.Address = masked || t.Single == RemoteHost || t.Single == ClientAddress
	if t.masked = masked; masked { // Caddy masks the address
		form.IPv4Prefix, form.IPv6Prefix = ipv4, ipv6
	}
	t.form = form
	return t
}

// Expand returns the text with its placeholders replaced, and whether none of
// them was empty.
func (t *Template) Expand(repl *caddy.Replacer) (value string, complete bool) {
	switch {
	case t.Plain:
		return t.Text, true
	case t.Single != "":
		value, _ = repl.GetString(t.Single)
		return value, value != ""
	}
	complete = true
	value, err := repl.ReplaceFunc(t.Text, func(_ string, v any) (any, error) {
		complete = complete && caddy.ToString(v) != ""
		return v, nil
	})
	return value, complete && err == nil
}

// Fold returns a text with its case as in keys of the template.
func (t *Template) Fold(text string) string {
	if t.form.FoldCase {
		return FoldCase(text)
	}
	return text
}

// ManyPerClient reports whether the key is an address that counts as a whole in IPv6, of which one client has many.
func (t *Template) ManyPerClient() bool {
	return (t.Single == RemoteHost || t.Single == ClientAddress) && t.form.IPv6Prefix == 0
}

// HasPrefix reports whether the zone has a prefix for addresses.
func (t *Template) HasPrefix() bool { return t.form.IPv4Prefix+t.form.IPv6Prefix > 0 }

// Identity returns a text that is part of the names of the key's budgets. Alternatives of a zone's
// key with different texts have separate budgets.
func (t *Template) Identity() string {
	return fmt.Sprintf("%q ipv4 %d ipv6 %d", t.Text, t.form.IPv4Prefix, t.form.IPv6Prefix)
}

// AcceptsOverride reports whether an override can apply to the keys of this template. isAddress
// reports whether the override is for an address or a network.
func (t *Template) AcceptsOverride(isAddress bool) bool { return t.Address || !isAddress }
