package ratelimit

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
)

// This file warns of keys that let clients share or multiply budgets by mistake. These are
// unverified addresses, addresses of proxies, ports, and users that are not known yet. A single client
// can also have many IPv6 addresses.

// The placeholders of addresses.
const (
	remoteAddress = "http.request.remote" // and .host, .port
	remoteHost    = "http.request.remote.host"
	remotePort    = "http.request.remote.port"
	clientAddress = "http.vars.client_ip"
)

// The prefixes of placeholders that later handlers can set. Authentication sets userPrefix.
// forward_auth, for example, sets fieldPrefix.
const (
	userPrefix  = "http.auth."
	fieldPrefix = "http.request.header."
)

// keyWarnings is the state behind the warnings about a zone in use. Each warning is given once, also if
// several handlers share the zone. Only warnings about bodies are repeated, after bodyLogInterval.
type keyWarnings struct {
	keyMayBeAddress   bool // keys may be addresses
	keyMayBeRemote    bool // keys may be the addresses of connections
	keyMayBeClient    bool // keys may be client addresses, as Caddy determines them
	manyKeysPerClient bool // one client has many keys
	// latePlaceholders are the placeholders that decide on a request, but that later handlers can
	// set.
	latePlaceholders []latePlaceholder
	// emptyKeys holds, for each alternative of the key, the key that comes out if all its
	// placeholders are empty. It is nil if an alternative has no placeholder.
	emptyKeys []string

	peersLeft      atomic.Int32 // how many more peers to check
	lateChecksLeft atomic.Int32 // how many more unchanged late placeholders to check
	emptyInARow    atomic.Int32 // how many keys in a row were empty
	costlessInARow atomic.Int32 // how many responses in a row gave no cost
	warnedOfCost   atomic.Bool
	warnedOfFactor atomic.Bool
	warnedOfCoding atomic.Bool // of responses

	bodyLogs map[*bodyError]*throttle // one per reason, so that a common one doesn't hide the others
}

// latePlaceholder is a placeholder in the text of a zone's option.
type latePlaceholder struct{ option, name string }

const (
	// maxPeersChecked is more than enough to see a proxy in front, because almost all requests
	// come through it.
	maxPeersChecked = 10_000
	// maxLateChecks bounds the checks of placeholders that later handlers leave unchanged. A check
	// that finds a value takes unchangedLateCost from this number.
	maxLateChecks = 1000 * unchangedLateCost
	// unchangedLateCost is how many checks of an empty placeholder count as much as one check of a
	// set one. Empty ones say less, because a later handler may set the placeholder for few
	// requests only.
	unchangedLateCost = 100
	// maxInARow is how many odd requests in a row lead to a warning. A few of them are normal.
	maxInARow = 100
)

// usesRemote reports whether the key contains the address of the connection's other end.
func (t *keyTemplate) usesRemote() bool { return strings.Contains(t.text, "{"+remoteAddress) }

// usesAddress reports whether the key contains an address.
func (t *keyTemplate) usesAddress() bool {
	return t.usesRemote() || strings.Contains(t.text, "{"+clientAddress+"}")
}

// newKeyWarnings returns the warnings of a zone with these keys.
func newKeyWarnings(c *Zone, keys []keyTemplate) *keyWarnings {
	w := &keyWarnings{bodyLogs: make(map[*bodyError]*throttle, len(bodyErrors))}
	for _, err := range bodyErrors {
		w.bodyLogs[err] = new(throttle)
	}
	w.peersLeft.Store(maxPeersChecked)
	w.lateChecksLeft.Store(maxLateChecks)
	plain := slices.ContainsFunc(keys, func(t keyTemplate) bool { return t.plain })
	for i := range keys {
		t := &keys[i]
		w.keyMayBeAddress = w.keyMayBeAddress || t.usesAddress()
		w.keyMayBeRemote = w.keyMayBeRemote || t.usesRemote()
		w.keyMayBeClient = w.keyMayBeClient || strings.Contains(t.text, "{"+clientAddress+"}")
		w.manyKeysPerClient = w.manyKeysPerClient || c.IPv6Prefix == 0 && (t.single == remoteHost || t.single == clientAddress)
		if !plain {
			w.emptyKeys = append(w.emptyKeys, c.foldKey(caddy.NewEmptyReplacer().ReplaceAll(t.text, "")))
		}
	}
	for _, t := range c.decidingTexts() {
		names, _ := placeholderNames(t.text) // checked before
		for _, name := range names {
			if strings.HasPrefix(name, userPrefix) || strings.HasPrefix(name, fieldPrefix) {
				w.latePlaceholders = append(w.latePlaceholders, latePlaceholder{t.option, name})
			}
		}
	}
	return w
}

// warnOfAddresses warns of zones in which one client can have many keys.
func (h *Handler) warnOfAddresses(zones []*zone) {
	var names []string
	for _, z := range zones {
		if z.manyKeysPerClient {
			names = append(names, z.name)
		}
	}
	if names != nil {
		h.logger.Warn("the keys of zones are addresses, and over IPv6 one client has more of them than can be counted: "+
			"write ipv6_prefix 64, or 128 for single addresses",
			zap.Strings("zones", names))
	}
}

// addressFields are the header fields in which proxies send the address of the client.
var addressFields = strings.Fields(`
	CF-Connecting-IP CF-Connecting-IPv6 CF-Pseudo-IPv4 CloudFront-Viewer-Address DO-Connecting-IP Fastly-Client-IP Fly-Client-IP
	Forwarded Forwarded-For True-Client-IP X-Azure-ClientIP X-Azure-SocketIP X-Client-IP X-Cluster-Client-IP
	X-Envoy-External-Address X-Forwarded X-Forwarded-For X-NF-Client-Connection-IP X-Original-Forwarded-For X-Real-IP
	X-Remote-Addr X-Remote-IP X-Vercel-Forwarded-For`)

// isAddressField reports whether a placeholder is one of the addressFields.
func isAddressField(placeholder string) bool {
	field, ok := strings.CutPrefix(placeholder, fieldPrefix)
	return ok && slices.ContainsFunc(addressFields, func(known string) bool { return strings.EqualFold(field, known) })
}

// warnOfChosenAddresses warns of keys with an address or a port that a client can choose.
func (z *zone) warnOfChosenAddresses() {
	var fields, ports []string
	for i := range z.keys {
		names, _ := placeholderNames(z.keys[i].text) // checked before
		for _, name := range names {
			switch {
			case isAddressField(name):
				fields = append(fields, "{"+name+"}")
			case name == remoteAddress || name == remotePort:
				ports = append(ports, "{"+name+"}")
			}
		}
	}
	if fields != nil {
		z.logger.Warn("the key of a zone has an address from a header field, which clients can write themselves, "+
			"so a client gets a new budget for each address that it makes up: "+
			"write {client_ip} instead, and in the global options trusted_proxies with the addresses of your proxies, "+
			"and client_ip_headers if they send the address in a field other than X-Forwarded-For",
			zap.String("zone", z.name), zap.Strings("placeholders", fields))
	}
	if ports != nil {
		z.logger.Warn("the key of a zone has the port of the connection, so a client gets a new budget for each connection that it opens: "+
			"write {client_ip} instead, and behind a proxy also trusted_proxies in the global options",
			zap.String("zone", z.name), zap.Strings("placeholders", ports))
	}
}

// warnOfLateUsers warns of zones that decide by a placeholder of the user, if the routes show that
// authentication comes later. If the routes don't show the order, [warnOfLatePlaceholders] may find it.
func (a *App) warnOfLateUsers() {
	for _, zones := range a.zonesByName {
		if !slices.ContainsFunc(zones, func(z *zone) bool { return z.lateUser() != nil }) {
			continue
		}
		if app, err := a.ctx.AppIfConfigured("http"); err == nil {
			for _, server := range app.(*caddyhttp.App).Servers {
				s := userSearch{namedRoutes: server.NamedRoutes}
				s.search(server.Routes, false, func(bool) bool { return false })
			}
		}
		return
	}
}

// lateUser returns a placeholder of the user by which the zone decides. It returns nil if there is
// none, if a map sets it, or if the key has an alternative without such a placeholder.
func (z *zone) lateUser() *latePlaceholder {
	alternative := slices.ContainsFunc(z.keys, func(t keyTemplate) bool { return !strings.Contains(t.text, "{"+userPrefix) })
	for i := range z.latePlaceholders {
		p := &z.latePlaceholders[i]
		if strings.HasPrefix(p.name, userPrefix) && !(p.option == "key" && alternative) && !z.handler.app.cachedSources.names[p.name] {
			return p
		}
	}
	return nil
}

// warnOfLateUsers warns of the handler's zones that decide by a placeholder of the user. later reports whether
// a request meets authentication later; see [userSearch].
func (h *Handler) warnOfLateUsers(later func(partly bool) bool) {
	for _, z := range h.zones {
		p := z.lateUser()
		if p != nil && z.lateChecksLeft.Load() > 0 && later(len(z.matchers) > 0) && z.lateChecksLeft.Swap(0) > 0 {
			z.warnOfLateUser(p)
		}
	}
}

func (z *zone) warnOfLateUser(p *latePlaceholder) {
	z.logger.Warn("a zone uses a placeholder of the user, who is not known yet when rate_limit decides, "+
		"so the placeholder is empty, and requests that fail to authenticate are charged, too: "+
		"write order rate_limit after basic_auth (or after the directive that authenticates) in the global options, "+
		"or both directives in this order into a route block (said once)",
		zap.String("zone", z.name), zap.String("option", p.option), zap.String("placeholder", "{"+p.name+"}"))
}

var errTooEarly = errors.New("the address of the client is not verified yet")

// tooEarly reports whether the key of a request is an address that is not verified yet. That is
// so before the handshake is complete (HTTP/3 early data). Clients repeat such a request after
// the handshake.
func (z *zone) tooEarly(r *http.Request, repl *caddy.Replacer) bool {
	if !z.keyMayBeAddress || r.TLS == nil || r.TLS.HandshakeComplete {
		return false
	}
	for i := range z.keys {
		if z.keys[i].usesAddress() {
			return true
		}
		if _, complete := z.keys[i].expand(repl); complete {
			return false
		}
	}
	return false
}

// checkKeySource checks where the key of a request in the handler's zone i comes from. It adds the
// zone to watchedZones if later handlers can set its placeholders.
func (state *requestState) checkKeySource(i int, r *http.Request) {
	z := state.handler.zones[i]
	if state.explained {
		return
	}
	if z.keyMayBeAddress && z.peersLeft.Load() > 0 {
		z.warnOfPeer(r)
	}
	if z.latePlaceholders != nil && z.lateChecksLeft.Load() > 0 {
		state.watchedZones |= 1 << i // from the 65th zone on a no-op
	}
}

// warnOfPeer warns of a key that is the address of a proxy, or that clients can make up.
func (z *zone) warnOfPeer(r *http.Request) {
	z.peersLeft.Add(-1)
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return
	}
	forwarded := r.Header["X-Forwarded-For"]
	if trusted, _ := caddyhttp.GetVar(r.Context(), caddyhttp.TrustedProxyVarKey).(bool); trusted {
		client, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
		switch {
		case z.keyMayBeRemote && client != host && z.peersLeft.Swap(0) > 0:
			z.logger.Warn("the key of a zone is the address of the connection, which is that of a trusted proxy, "+
				"so all clients behind it share a budget: "+
				"write {client_ip} instead of {remote_host} (said once)", zap.String("zone", z.name))
		case z.keyMayBeClient && takesFirstForwarded(r) && strings.HasPrefix(strings.Join(forwarded, ","), client+",") && z.peersLeft.Swap(0) > 0:
			z.logger.Warn("the key of a zone is the first address in X-Forwarded-For, which clients can make up if the proxy "+
				"appends to this field: "+
				"write trusted_proxies_strict beside trusted_proxies in the global options (said once)", zap.String("zone", z.name))
		}
		return
	}
	if len(forwarded) == 0 {
		return
	}
	addr, err := netip.ParseAddr(host)
	if addr = addr.Unmap(); err == nil && (addr.IsPrivate() || addr.IsLoopback()) && z.peersLeft.Swap(0) > 0 {
		z.logger.Warn("the key of a zone is the address of a proxy that is not trusted, so all clients behind it share a budget: "+
			"use {client_ip} in key, and write in the global options "+
			"the four lines `servers {` and `trusted_proxies static private_ranges` and `trusted_proxies_strict` and `}`; "+
			"if there is no proxy, clients write X-Forwarded-For themselves, so leave all as it is (said once)", zap.String("zone", z.name))
	}
}

// takesFirstForwarded reports whether the client address is the first address that a trusted proxy
// forwards. With trusted_proxies_strict it is the last address that is not a proxy's.
func takesFirstForwarded(r *http.Request) bool {
	server, ok := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	return ok && server.TrustedProxiesStrict == 0
}

// earlyValue is the value of a placeholder before the later handlers run.
type earlyValue struct {
	zone  *zone
	from  *latePlaceholder
	value string
}

// watchLatePlaceholders returns next, wrapped to compare the late placeholders before and after
// it. Denied requests never reach next.
func (state *requestState) watchLatePlaceholders(next caddyhttp.Handler, repl *caddy.Replacer) caddyhttp.Handler {
	if state.watchedZones == 0 {
		return next
	}
	var before []earlyValue
	for i, z := range state.handler.zones {
		if state.watchedZones>>i&1 == 0 {
			continue
		}
		for n := range z.latePlaceholders {
			value, _ := repl.GetString(z.latePlaceholders[n].name)
			before = append(before, earlyValue{z, &z.latePlaceholders[n], value})
		}
	}
	return caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
		defer warnOfLatePlaceholders(before, repl)
		return next.ServeHTTP(w, r)
	})
}

// warnOfLatePlaceholders warns of zones that decide by a placeholder that a later handler has set.
// It doesn't warn if a handler removes a header field, because handlers often remove credentials.
func warnOfLatePlaceholders(before []earlyValue, repl *caddy.Replacer) {
	for _, e := range before {
		z, name := e.zone, e.from.name
		value, _ := repl.GetString(name)
		switch {
		case z.lateChecksLeft.Load() <= 0:
		case value == "":
			z.lateChecksLeft.Add(-1)
		case value == e.value:
			z.lateChecksLeft.Add(-unchangedLateCost)
		case z.lateChecksLeft.Swap(0) <= 0: // another request was faster
		case strings.HasPrefix(name, userPrefix):
			z.warnOfLateUser(e.from)
		default:
			z.logger.Warn("a handler behind rate_limit sets a header field that a zone decides by, so clients can choose its value: "+
				"write order rate_limit after forward_auth (or after the directive that sets it) in the global options (said once)",
				zap.String("zone", z.name), zap.String("option", e.from.option), zap.String("placeholder", "{"+name+"}"))
		}
	}
}

// warnOfEmptyKey warns of a zone whose keys are empty.
func (z *zone) warnOfEmptyKey(key requestKey) {
	switch {
	case z.emptyKeys == nil:
	case key.text != z.emptyKeys[key.alternative]:
		resetUnlessReached(&z.emptyInARow)
	case reachesMaxInARow(&z.emptyInARow):
		z.logger.Warn("the key of a zone was empty for 100 requests in a row, so they share one budget: "+
			"set its placeholders before rate_limit, or add another value to key, such as {client_ip} (said once)",
			zap.String("zone", z.name), zap.Strings("key", z.config.Key))
	}
}

// warnOfMissingCost warns of a zone whose responses give no cost. known reports whether this
// response gives one.
func (z *zone) warnOfMissingCost(known bool) {
	switch {
	case z.settle.Cost == "":
	case known:
		resetUnlessReached(&z.costlessInARow)
	case reachesMaxInARow(&z.costlessInARow):
		z.logger.Warn("the cost of settle was no number for 100 responses in a row, so their charges stayed: "+
			"check that responses have it as a number from 0, or exclude the others with match (said once)",
			zap.String("zone", z.name), zap.String("cost", string(z.settle.Cost)))
	}
}

// reachesMaxInARow increments n, and reports whether n has just reached maxInARow.
func reachesMaxInARow(n *atomic.Int32) bool { return n.Load() < maxInARow && n.Add(1) == maxInARow }

// resetUnlessReached resets n to 0, unless n has reached maxInARow. So each warning is given once.
func resetUnlessReached(n *atomic.Int32) {
	if had := n.Load(); had > 0 && had < maxInARow {
		n.Store(0)
	}
}
