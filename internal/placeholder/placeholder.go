// Package placeholder knows which placeholders requests can have, and checks those of zones. It never looks at a
// request.
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
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"golang.org/x/net/http/httpguts"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/shorthand"
)

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
	{"http.regexp.", false},
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
	"http.request.", "http.response.", "http.matchers.file.", "http.error.", "http.intercept.", "system.", "time.",
}

// varsPrefix begins the names of the variables that vars and plugins define.
const varsPrefix = "http.vars."

// newCaddyReplacer returns a replacer with the placeholders that every request has.
func newCaddyReplacer() *caddy.Replacer {
	repl := caddy.NewReplacer()
	ctx := context.WithValue(context.Background(), http.LocalAddrContextKey, new(net.TCPAddr))
	connection := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}} // has the placeholders of TLS, too
	r := (&http.Request{URL: new(url.URL), Header: make(http.Header), TLS: connection}).WithContext(ctx)
	caddyhttp.PrepareRequest(r, repl, nil, new(caddyhttp.Server))
	return repl
}

// caddyReplacer has the placeholders of every request.
var caddyReplacer = sync.OnceValue(newCaddyReplacer)

// provides reports whether Caddy provides the placeholder of this name, in any configuration. It accepts each
// capture of a regular expression.
func provides(name string) bool {
	for _, open := range openPrefixes {
		if rest, ok := strings.CutPrefix(name, open.prefix); ok {
			return rest != "" && (!open.header || httpguts.ValidHeaderFieldName(rest))
		}
	}
	if slices.Contains(runtimePlaceholders, name) {
		return true
	}
	if strings.HasPrefix(name, varsPrefix) { // a replacer knows every such name
		return false
	}
	_, known := caddyReplacer().Get(name)
	return known
}

// mayBeDefined reports whether map, vars or a plugin may provide a placeholder that Caddy doesn't.
func mayBeDefined(name string) bool {
	if variable, ok := strings.CutPrefix(name, varsPrefix); ok {
		return variable != ""
	}
	namespace, _, dotted := strings.Cut(name, ".")
	_, short := shorthand.Expand(namespace + ".x")
	isCaddys := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
	return name != "" && (!dotted || !short && !slices.ContainsFunc(caddyPrefixes, isCaddys))
}
