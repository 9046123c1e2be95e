package limiter

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/bodies"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/placeholder"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/throttle"
)

// This file warns about keys that let clients share or multiply budgets by mistake. These are
// unverified addresses, addresses of proxies, and ports. A single client can also have many IPv6 addresses.

// KeyWarnings is the state behind the warnings about a zone in use. Each warning is given once, also if
// several limiters share the zone. Only warnings about bodies are repeated, after bodyLogInterval.
type KeyWarnings struct {
	keyMayBeRemote bool              // keys may be the addresses of connections
	keyMayBeClient bool              // keys may be client addresses, as Caddy determines them
	late           []placeholder.Use // decide on a request, but later handlers can set them
	// emptyKeys holds, for each alternative of the key, the key that comes out if all its
	// placeholders are empty. It is nil if an alternative has no placeholder.
	emptyKeys []string

	peersLeft      atomic.Int32 // how many more peers to check
	lateChecksLeft atomic.Int32 // how many more late placeholders to check
	emptyKeyStreak streak
	costlessStreak streak // of responses
	warnedOfCost   atomic.Bool
	warnedOfFactor atomic.Bool

	bodyLogs map[*bodies.Error]*throttle.Throttle // one per reason, so that a common one doesn't hide the others
}

const (
	// maxPeersChecked is more than enough to see a proxy in front, because almost all requests come through it.
	maxPeersChecked = 10_000
	// maxInARow is how many odd requests in a row lead to a warning. A few of them are normal.
	maxInARow = 100
)

// usesRemote reports whether the key contains the address of the connection's other end.
func usesRemote(t *keys.Template) bool { return strings.Contains(t.Text, "{"+keys.RemoteAddress) }

// usesClientAddress reports whether the key contains the address of the client, as Caddy determines it.
func usesClientAddress(t *keys.Template) bool {
	return strings.Contains(t.Text, "{"+keys.ClientAddress+"}")
}

// NewKeyWarnings returns the warnings of a zone with these keys, and these placeholders that decide on a request.
func NewKeyWarnings(templates []keys.Template, deciding []placeholder.Use) *KeyWarnings {
	w := &KeyWarnings{bodyLogs: make(map[*bodies.Error]*throttle.Throttle)}
	for _, use := range deciding {
		if isLate(use) {
			w.late = append(w.late, use)
			w.lateChecksLeft.Store(maxLateChecks)
		}
	}
	for _, err := range bodies.Errors() {
		w.bodyLogs[err] = new(throttle.Throttle)
	}
	w.peersLeft.Store(maxPeersChecked)
	plain := slices.ContainsFunc(templates, func(t keys.Template) bool { return t.Plain })
	for i := range templates {
		t := &templates[i]
		w.keyMayBeRemote = w.keyMayBeRemote || usesRemote(t)
		w.keyMayBeClient = w.keyMayBeClient || usesClientAddress(t)
		if !plain {
			w.emptyKeys = append(w.emptyKeys, t.Fold(caddy.NewEmptyReplacer().ReplaceAll(t.Text, "")))
		}
	}
	return w
}

// keyMayBeAddress reports whether keys may be addresses.
func (w *KeyWarnings) keyMayBeAddress() bool { return w.keyMayBeRemote || w.keyMayBeClient }

// addressField matches the placeholder of a header field in which proxies send the address of the client, such as
// X-Forwarded-For, CF-Connecting-IP, or CloudFront-Viewer-Address.
var addressField = regexp.MustCompile(`(?i)^http\.request\.header\.(.*-)?` +
	`((client|socket)?ip(v[46])?|(viewer|external|remote)-addr(ess)?|forwarded(-for)?)$`)

// textField matches the placeholders of values that clients write as they like. A value of the body names an account.
var textField = regexp.MustCompile(`^http\.(?:request\.(?:header|cookie|uri\.query)\.(.+)|rate_limit\.request\.(basic_user))$`)

// MadeUpValue returns the first placeholder in texts that only clients choose, or "". mayCheck says of a header field, a
// cookie, a value of the query, or basic_user whether something may check it. Addresses in fields have another warning.
func MadeUpValue(texts []string, mayCheck func(name string) bool) string {
	for _, text := range texts {
		names, _ := keys.Placeholders(text) // checked before
		for _, name := range names {
			if field := textField.FindStringSubmatch(name); field != nil && !addressField.MatchString(name) && !mayCheck(field[1]+field[2]) {
				return name
			}
		}
	}
	return ""
}

// WarnOfKeys warns about keys that are the same for all requests, about those that one client can change, and about those that
// are never used.
func (z *Zone) WarnOfKeys() {
	isPort := func(name string) bool { return name == keys.RemoteAddress || name == keys.RemotePort }
	isAddress := func(name string) bool { return name == keys.ClientAddress || name == keys.RemoteHost }
	if slices.ContainsFunc(z.Keys, func(t keys.Template) bool { return t.ManyPerClient() }) {
		z.Logger.Warn("the key of a zone is an address, and over IPv6 one client has more of them than can be counted: "+
			"write ipv6_prefix 64, or 128 for single addresses", zap.String("zone", z.Name))
	}
	for i, t := range z.Keys {
		names, _ := keys.Placeholders(t.Text) // checked before
		text := keys.Shorten(t.Text)
		if slices.ContainsFunc(names, addressField.MatchString) {
			z.Logger.Warn("the key of a zone has an address from a header field, which clients can write themselves, "+
				"so a client gets a new budget for each address that it makes up: "+
				"write {client_ip} instead, and into servers in the global options the lines `trusted_proxies static` with the addresses "+
				"of your proxies, and `trusted_proxies_strict`, and client_ip_headers if they send the address in a field other "+
				"than X-Forwarded-For",
				zap.String("zone", z.Name), zap.String("key", text))
		}
		if slices.ContainsFunc(names, isPort) {
			z.Logger.Warn("the key of a zone has the port of the connection, so a client gets a new budget for each connection that it opens: "+
				"write {client_ip} instead, and behind a proxy also trusted_proxies in the global options",
				zap.String("zone", z.Name), zap.String("key", text))
		}
		if len(z.Keys) == 1 && t.Plain && t.Text != "" {
			z.Logger.Warn("key has no placeholder, so all requests share one budget: "+
				"write a placeholder such as {client_ip}, or leave out key if one budget is meant",
				zap.String("zone", z.Name), zap.String("key", text))
		}
		if t.Single == "" && t.HasPrefix() && slices.ContainsFunc(names, isAddress) {
			z.Logger.Warn("ipv4_prefix and ipv6_prefix have no effect on a key that is more than an address: "+
				"write {http.request.remote.host/32,64} for the address, with your prefixes; behind a proxy, leave the prefix out, "+
				"and add a zone whose key is {client_ip} alone",
				zap.String("zone", z.Name), zap.String("key", text))
		}
		if i < len(z.Keys)-1 && !slices.ContainsFunc(names, mayBeEmpty) {
			z.Logger.Warn("a value of key is never empty, so the values after it are never used: "+
				"put all of them in quotes to make one key of them, and options of the zone on separate lines",
				zap.String("zone", z.Name), zap.String("key", text))
		}
	}
}

// mayBeEmpty reports whether a placeholder has no value in some requests.
func mayBeEmpty(name string) bool {
	always := []string{keys.ClientAddress, keys.RemoteHost, keys.RemoteAddress, "http.request.method", "http.request.uri.path"}
	return !slices.Contains(always, name)
}

var errTooEarly = errors.New("the address of the client is not verified yet")

// tooEarly reports whether the key of a request is an address that is not verified yet. That is
// so before the handshake is complete (HTTP/3 early data). Clients repeat such a request after
// the handshake.
func (z *Zone) tooEarly(r *http.Request, repl *caddy.Replacer, body *bodyReader) bool {
	if !z.keyMayBeAddress() || r.TLS == nil || r.TLS.HandshakeComplete {
		return false
	}
	for i := range z.Keys {
		if usesRemote(&z.Keys[i]) || usesClientAddress(&z.Keys[i]) {
			return true
		}
		if _, complete := z.expandKey(i, repl, body); complete {
			return false
		}
	}
	return false
}

// checkKeySource checks where the key of a request in a zone comes from.
func (state *State) checkKeySource(z *Zone, r *http.Request) {
	if !state.Explained && z.keyMayBeAddress() && z.peersLeft.Load() > 0 {
		z.warnOfPeer(r)
	}
}

// unixPeer is the remote address of a client that comes over a unix socket.
const unixPeer = "@"

// warnOfPeer warns about a key that is the address of a proxy, or that clients can make up.
func (z *Zone) warnOfPeer(r *http.Request) {
	z.peersLeft.Add(-1)
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	switch {
	case r.RemoteAddr == unixPeer:
		host = unixPeer
	case err != nil:
		return
	}
	forwarded := r.Header["X-Forwarded-For"]
	addr, err := netip.ParseAddr(host)
	addr = addr.Unmap()
	once := func() bool { return z.peersLeft.Swap(0) > 0 }
	if trusted, _ := caddyhttp.GetVar(r.Context(), caddyhttp.TrustedProxyVarKey).(bool); trusted {
		client, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
		switch {
		case z.keyMayBeRemote && client != host && once():
			z.Logger.Warn("the key of a zone is the address of the connection, which is that of a trusted proxy, "+
				"so all clients behind it share a budget: "+
				"write {client_ip} instead of {remote_host} (logged once)", zap.String("zone", z.Name))
		case z.keyMayBeClient && takesFirstForwarded(r) && strings.HasPrefix(strings.Join(forwarded, ","), client+",") && once():
			z.Logger.Warn("the key of a zone is the first address in X-Forwarded-For, which clients can make up if the proxy "+
				"appends to this field: "+
				"write trusted_proxies_strict next to trusted_proxies in the global options (logged once)", zap.String("zone", z.Name))
		}
		return
	}
	switch {
	case host == unixPeer && hasAddressField(r) && once():
		z.Logger.Warn("the key of a zone has no address, because a proxy that is not trusted connects over a unix socket, "+
			"so all clients behind it share a budget: "+
			"use {client_ip} in key, and write trusted_proxies_unix, which Caddy has since 2.11, "+
			"into servers in the global options, "+
			"and client_ip_headers if the address is in a field other than X-Forwarded-For (logged once)", zap.String("zone", z.Name))
	case err == nil && len(forwarded) > 0 && (addr.IsPrivate() || addr.IsLoopback()) && once():
		z.Logger.Warn("the key of a zone is the address of a proxy that is not trusted, so all clients behind it share a budget: "+
			"use {client_ip} in key, and write the lines `trusted_proxies static private_ranges` and `trusted_proxies_strict` "+
			"into servers in the global options; "+
			"if there is no proxy, clients write X-Forwarded-For themselves, so change nothing (logged once)", zap.String("zone", z.Name))
	}
}

// hasAddressField reports whether a proxy sends the address of the client.
func hasAddressField(r *http.Request) bool {
	for field := range r.Header {
		if addressField.MatchString(FieldPrefix + field) {
			return true
		}
	}
	return false
}

// takesFirstForwarded reports whether the client address is the first address that a trusted proxy
// forwards. With trusted_proxies_strict it is the last address that is not a proxy's.
func takesFirstForwarded(r *http.Request) bool {
	server, ok := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	return ok && server.TrustedProxiesStrict == 0
}

// warnOfEmptyKey warns about a zone whose keys are empty.
func (z *Zone) warnOfEmptyKey(key Key) {
	if z.emptyKeys == nil || !z.emptyKeyStreak.reaches(key.Text == z.emptyKeys[key.Alternative]) {
		return
	}
	another := ", such as {client_ip}"
	if z.keyMayBeClient {
		another = ""
	}
	z.Logger.Warn("the key of a zone was empty for 100 requests in a row, so they share one budget: "+
		"set its placeholders before rate_limit, or add another value to key"+another+" (logged once)",
		zap.String("zone", z.Name), zap.Strings("key", z.KeyTexts()))
}

// warnOfMissingCost warns about a zone whose responses give no cost. known reports whether this
// response gives one.
func (z *Zone) warnOfMissingCost(known bool) {
	if z.Settle.Cost != nil && z.costlessStreak.reaches(!known) {
		z.Logger.Warn("the cost of settle was not a number for 100 responses in a row, so their charges stayed: "+
			"check that responses have it as a number from 0, and use no compression but gzip or zstd, "+
			"or exclude the others with match (logged once)",
			zap.String("zone", z.Name), zap.Stringer("cost", z.Settle.Cost))
	}
}

// streak counts how many requests in a row were odd. A streak that was reported is not counted on, so each warning is
// given once.
type streak struct{ atomic.Int32 }

// reaches counts a request, and reports whether the streak has just reached maxInARow.
func (s *streak) reaches(odd bool) bool {
	switch had := s.Load(); {
	case had >= maxInARow:
		return false
	case odd:
		return s.Add(1) == maxInARow
	case had > 0:
		s.Store(0)
	}
	return false
}
