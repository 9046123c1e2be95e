package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
)

// This file finds placeholders that nothing provides. Caddy replaces such a placeholder by
// an empty text, so a key made of one is the same for every client.

// template is the text of a zone's option, which may hold placeholders.
type template struct{ option, text string }

// decidingTemplates returns the templates that a request is decided by, first those that say how much
// it gets.
func (c *Zone) decidingTemplates() []template {
	all := []template{{"cost", string(c.Cost)}, {"factor", string(c.Factor)}}
	if c.Plan != nil {
		all = append([]template{{"plan", c.Plan.By}}, all...)
	}
	for _, key := range c.Key {
		all = append(all, template{"key", key})
	}
	return all
}

// placeholderNames returns the names of the placeholders in a text, as a [caddy.Replacer]
// finds them.
func placeholderNames(text string) (names []string, err error) {
	begin := -1 // of a name
	for i := 0; i < len(text) && err == nil; i++ {
		switch {
		case text[i] == '\\' && i+1 < len(text) && (text[i+1] == '{' || text[i+1] == '}'):
			i++ // an escaped brace
		case text[i] == '{' && begin < 0:
			begin = i + 1
		case text[i] == '}' && begin >= 0:
			names, begin = append(names, text[begin:i]), -1
		case text[i] == '{' || text[i] == '}':
			err = errBraces
		}
	}
	if begin >= 0 {
		err = errBraces
	}
	return names, err
}

var errBraces = errors.New(`has a brace without its counterpart: write placeholders as {name}, and a brace itself as \{`)

// checkBraces returns an error if the braces in an option's text don't match.
func checkBraces(option, text string) error {
	if _, err := placeholderNames(text); err != nil {
		return fmt.Errorf("%s %q %w", option, text, err)
	}
	return nil
}

// checkKeyText checks an alternative of a key.
func checkKeyText(text string) error {
	if strings.ContainsAny(text, "{}") {
		return checkBraces("key", text)
	}
	if _, short := shorthand(text); short || strings.HasPrefix(text, "http.") {
		return fmt.Errorf("key %q is the name of a placeholder, and without braces the same for all requests: write {%s}", text, text)
	}
	return nil
}

func (k Key) check() error {
	var errs []error
	for i, text := range k {
		errs = append(errs, checkKeyText(text))
		if i < len(k)-1 && strings.HasSuffix(text, ",") {
			errs = append(errs, fmt.Errorf("key %q ends in a comma: write a space alone between alternatives, or one text that combines values, as in \"{client_ip}|{path}\"", text))
		}
	}
	return errors.Join(errs...)
}

// checkLiteral returns an error if the key of an override has a placeholder.
func checkLiteral(key string) error {
	if open := strings.IndexByte(key, '{'); open >= 0 && strings.IndexByte(key[open:], '}') > 0 {
		return fmt.Errorf("override %q has a placeholder, which is not replaced here: write one key as it is, such as 203.0.113.7", key)
	}
	return nil
}

var shorthands = sync.OnceValue(httpcaddyfile.NewShorthandReplacer)

// shorthand returns the full name of a placeholder that is short in a Caddyfile, and whether
// it is.
func shorthand(name string) (long string, ok bool) {
	braced := "{" + name + "}"
	tokens := caddyfile.Segment{{Text: braced}}
	shorthands().ApplyToSegment(&tokens)
	return strings.Trim(tokens[0].Text, "{}"), tokens[0].Text != braced
}

// openPrefixes are the prefixes of names that end in a text of the user's choice.
var openPrefixes = []struct {
	prefix string
	header bool // the name ends in a header field
}{
	{"http.request.header.", true},
	{"http.response.header.", true},
	{"http.reverse_proxy.header.", true},
	{"http.intercept.header.", true},
	{"http.request.cookie.", false},
	{"http.request.uri.query.", false},
	{"http.auth.", false},
	{"http.url_pattern.", false},
	{"http.rate_limit.", false},
	{"env.", false},
	{"file.", false},
}

// runtimePlaceholders are the names that Caddy's handlers and matchers set while they handle a request.
// caddysReplacer knows the names that every request has from the beginning.
var runtimePlaceholders = strings.Fields(`
	http.error http.error.status_code http.error.status_text http.error.message http.error.trace http.error.id
	http.intercept.status_code
	http.matchers.file.relative http.matchers.file.absolute http.matchers.file.remainder http.matchers.file.type
	http.response.status http.response.size http.response.duration http.response.duration_ms
	http.reverse_proxy.duration http.reverse_proxy.duration_ms http.reverse_proxy.retries http.reverse_proxy.is_transport_error
	http.reverse_proxy.status_code http.reverse_proxy.status_text
	http.reverse_proxy.upstream.address http.reverse_proxy.upstream.hostport http.reverse_proxy.upstream.host
	http.reverse_proxy.upstream.port http.reverse_proxy.upstream.requests http.reverse_proxy.upstream.max_requests
	http.reverse_proxy.upstream.fails http.reverse_proxy.upstream.latency http.reverse_proxy.upstream.latency_ms
	http.reverse_proxy.upstream.duration http.reverse_proxy.upstream.duration_ms
	http.vars.client_ip http.vars.trusted_proxy http.vars.start_time http.vars.uuid http.vars.trace_id http.vars.span_id
	http.vars.matchers.error http.vars.access_logger_names`)

// caddyPrefixes are the prefixes of names that plugins leave to Caddy.
var caddyPrefixes = []string{
	"http.request.", "http.response.", "http.vars.", "http.regexp.", "http.matchers.file.", "http.error.", "http.intercept.", "system.", "time.",
}

// newCaddyReplacer returns a replacer with the placeholders that every request has.
func newCaddyReplacer() *caddy.Replacer {
	repl := caddy.NewReplacer()
	ctx := context.WithValue(context.Background(), http.LocalAddrContextKey, new(net.TCPAddr))
	r := (&http.Request{URL: new(url.URL), Header: make(http.Header)}).WithContext(ctx)
	caddyhttp.PrepareRequest(r, repl, nil, new(caddyhttp.Server))
	return repl
}

// provides reports whether Caddy or the configuration provides a placeholder.
func (n *placeholderSources) provides(name string) bool {
	for _, open := range openPrefixes {
		if rest, ok := strings.CutPrefix(name, open.prefix); ok {
			return rest != "" && (!open.header || isFieldName(rest))
		}
	}
	if n.names[name] || slices.Contains(runtimePlaceholders, name) {
		return true
	}
	if strings.HasPrefix(name, "http.vars.") { // a replacer takes any such name for known
		return n.anyVariable
	}
	if n.expressions && strings.HasPrefix(name, "http.regexp.") { // they are not looked into
		return true
	}
	_, known := n.caddys.Get(name)
	return known
}

// isFieldName reports whether a header field can have this name.
func isFieldName(name string) bool {
	return !strings.ContainsFunc(name, func(c rune) bool { return c <= ' ' || c > '~' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, c) })
}

// pluginMay reports whether a plugin may provide a placeholder that Caddy doesn't.
func (n *placeholderSources) pluginMay(name string) bool {
	_, short := shorthand(name)
	if n.unseen || short {
		return n.unseen
	}
	if n.plugins {
		return true
	}
	namespace, _, dotted := strings.Cut(name, ".")
	_, short = shorthand(namespace + ".x")
	return dotted && !short && !slices.ContainsFunc(caddyPrefixes, func(own string) bool { return strings.HasPrefix(name, own) })
}

// checkPlaceholders returns an error for a placeholder of the zone that nothing provides. It
// warns of a placeholder that only a plugin may provide.
func (c *Zone) checkPlaceholders(zone string, n *placeholderSources, logger *zap.Logger) error {
	all := c.decidingTemplates()
	if c.Settle != nil {
		all = append(all, template{"cost of settle", string(c.Settle.Cost)})
	}
	for _, t := range all {
		names, err := placeholderNames(t.text)
		if err != nil {
			return fmt.Errorf("%s %q %w", t.option, t.text, err)
		}
		for _, name := range names {
			if _, _, _, err := maskOf(name); err != nil {
				return fmt.Errorf("%s: {%s} %w", t.option, name, err)
			}
			long, short := shorthand(name)
			switch {
			case n.provides(name):
			case n.pluginMay(name):
				logger.Warn("a zone has a placeholder that neither Caddy nor this configuration provides: unless a plugin provides it, it is always empty"+n.suggestion(name),
					zap.String("zone", zone), zap.String("option", t.option), zap.String("placeholder", "{"+name+"}"))
			case short:
				return fmt.Errorf("%s: the short placeholder {%s} works only in a Caddyfile, and is empty in JSON: write {%s}", t.option, name, long)
			default:
				return fmt.Errorf("%s: nothing provides the placeholder {%s}, so it would always be empty%s", t.option, name, n.suggestion(name))
			}
		}
	}
	return nil
}

// commonNames are the usual placeholders of keys, plans, costs and factors.
var commonNames = strings.Fields(`
	client_ip remote_host remote host hostport method path uri query scheme dir file uuid labels.0 path.0
	tls_client_fingerprint tls_client_issuer tls_client_serial tls_client_subject tls_version
	http.auth.user.id http.auth.user.plan`)

// suggestion returns the placeholder that was probably meant by one that nothing provides, as
// the end of a sentence.
func (n *placeholderSources) suggestion(name string) string {
	for _, open := range openPrefixes {
		if strings.HasPrefix(name, open.prefix) {
			return ": nothing has such a name"
		}
	}
	namespace, rest, _ := strings.Cut(name, ".")
	if long, short := shorthand(namespace + ".x"); short && rest != "" {
		return ": did you mean {" + strings.TrimSuffix(long, "x") + rest + "}?"
	}
	candidates := slices.Clone(commonNames)
	for _, common := range commonNames {
		if long, short := shorthand(common); short {
			candidates = append(candidates, long)
		}
	}
	for known := range n.names {
		candidates = append(candidates, known)
	}
	slices.Sort(candidates[len(commonNames):])
	candidates = slices.DeleteFunc(candidates, func(candidate string) bool { return !strings.HasPrefix(candidate, name[:min(len(name), 1)]) })
	best := ""
	if i := closest(name, candidates, min(len(name)/3, 2)); i >= 0 {
		best = candidates[i]
	} else {
		words := strings.FieldsFunc(strings.ToLower(name), func(c rune) bool { return c == '_' || c == '.' || c == '-' })
		switch {
		case slices.ContainsFunc(words, func(word string) bool { return slices.Contains(addressWords, word) }):
			best = "client_ip"
		case slices.Contains(words, "user") && words[0] != "http":
			best = "http.auth.user.id"
		default:
			return ": write a placeholder of Caddy, or one that map or vars defines"
		}
	}
	if long, short := shorthand(best); short {
		return fmt.Sprintf(": did you mean {%s} (in JSON {%s})?", best, long)
	}
	return ": did you mean {" + best + "}?"
}

var addressWords = []string{"ip", "ipaddr", "addr", "address", "client", "remoteip", "realip", "clientip"}
