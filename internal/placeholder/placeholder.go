// Package placeholder finds out which placeholders requests can have in a configuration, and checks those of
// zones. It never looks at a request.
package placeholder

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"golang.org/x/net/http/httpguts"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
)

// Sources knows which placeholders a request can have. It collects those that the
// routes of a configuration define: destinations of map, variables of vars, and captures of
// regular expressions.
type Sources struct {
	names             map[string]bool
	zones             map[string]bool // the names of all zones
	anyVariable       bool            // a variable has a placeholder in its name
	regexpExpressions bool            // a CEL expression has a regular expression, whose captures are unknown
	plugins           bool            // a handler or matcher isn't Caddy's, and may set any placeholder
	routesUnknown     bool            // there is no http app whose routes could be read
	caddyReplacer     *caddy.Replacer // has the placeholders of every request
	handlerZones      func(module any) (names []string, ok bool)
}

// openPrefixes are the prefixes of placeholders whose names end in a text of the user's choice.
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
	{"env.", false},
	{"file.", false},
}

// runtimePlaceholders are the placeholders that Caddy's handlers and matchers set while they handle
// a request. The replacer of [newCaddyReplacer] knows those that every request has from the
// beginning.
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
	http.vars.matchers.error http.vars.access_logger_names
	http.shutting_down http.time_until_shutdown`)

// caddyPrefixes are the prefixes of placeholders that only Caddy sets.
var caddyPrefixes = []string{
	"http.request.", "http.response.", "http.vars.", "http.regexp.", "http.matchers.file.", "http.error.", "http.intercept.",
	"system.", "time.",
}

// newCaddyReplacer returns a replacer with the placeholders that every request has.
func newCaddyReplacer() *caddy.Replacer {
	repl := caddy.NewReplacer()
	ctx := context.WithValue(context.Background(), http.LocalAddrContextKey, new(net.TCPAddr))
	connection := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}} // has the placeholders of TLS, too
	r := (&http.Request{URL: new(url.URL), Header: make(http.Header), TLS: connection}).WithContext(ctx)
	caddyhttp.PrepareRequest(r, repl, nil, new(caddyhttp.Server))
	return repl
}

// CaddyAlone returns the placeholders that requests have in any configuration.
func CaddyAlone() *Sources {
	return &Sources{names: make(map[string]bool), zones: make(map[string]bool), caddyReplacer: newCaddyReplacer()}
}

// RoutesUnknown returns the placeholders of a configuration whose routes are not known.
func RoutesUnknown() *Sources { return &Sources{routesUnknown: true} }

// Defines reports whether the configuration defines the placeholder of this name.
func (sources *Sources) Defines(name string) bool { return sources.names[name] }

// provides reports whether this module, Caddy or the configuration provides the placeholder of this name.
func (sources *Sources) provides(name string) bool {
	if strings.HasPrefix(name, keys.OwnPrefix+".") { // checkOwn reports errors
		return true
	}
	for _, open := range openPrefixes {
		if rest, ok := strings.CutPrefix(name, open.prefix); ok {
			return rest != "" && (!open.header || httpguts.ValidHeaderFieldName(rest))
		}
	}
	if sources.names[name] || slices.Contains(runtimePlaceholders, name) {
		return true
	}
	if strings.HasPrefix(name, "http.vars.") { // a replacer knows every such name
		return sources.anyVariable
	}
	if sources.regexpExpressions && strings.HasPrefix(name, "http.regexp.") { // CEL expressions are not parsed
		return true
	}
	_, known := sources.caddyReplacer.Get(name)
	return known
}

// pluginMayProvide reports whether a plugin may provide a placeholder that Caddy doesn't.
func (sources *Sources) pluginMayProvide(name string) bool {
	_, short := keys.ExpandShorthand(name)
	if sources.routesUnknown || short {
		return sources.routesUnknown
	}
	if sources.plugins {
		return true
	}
	namespace, _, dotted := strings.Cut(name, ".")
	_, short = keys.ExpandShorthand(namespace + ".x")
	return dotted && !short && !slices.ContainsFunc(caddyPrefixes, func(own string) bool { return strings.HasPrefix(name, own) })
}
