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

// Keys that are not what they look like: addresses nobody has proved to be theirs,
// addresses of proxies, users not known yet, and networks taken for a client.

// Where an address comes from, as placeholders.
const (
	remoteAddress = "http.request.remote" // and .host, .port
	remoteHost    = "http.request.remote.host"
	clientAddress = "http.vars.client_ip"
)

// What later handlers can set: the first by authentication, the second for example by
// forward_auth.
const (
	userPrefix  = "http.auth."
	fieldPrefix = "http.request.header."
)

// cautions are what a zone is watched for while it is in use. Each is warned of once.
type cautions struct {
	addressKey bool // keys may be addresses,
	remoteKey  bool // those of connections
	manyKeys   bool // one client has many
	// late are the placeholders that decide about a request and that later handlers can set.
	late []template
	// hollow are, for each alternative of the key, the keys whose placeholders are all empty;
	// nil where an alternative has none.
	hollow []string

	peers     atomic.Int32 // how many more peers are looked at
	settled   atomic.Int32 // how many more late placeholders are looked at that did not change
	empty     atomic.Int32 // how many keys in a row were empty
	uncounted atomic.Int32 // how many responses in a row did not say what they cost
}

const (
	// peersToSee is more than enough for a proxy in front to be seen: almost all requests
	// come through it.
	peersToSee = 10_000
	// settledToSee counts only where a later handler may have set a value, and has not.
	settledToSee = 1000
	// inARow is when a warning no longer is about some odd requests.
	inARow = 100
)

// usesRemote tells whether a key is made of the address of the connection.
func (t *keyTemplate) usesRemote() bool { return strings.Contains(t.text, "{"+remoteAddress) }

// usesAddress tells whether a key is made of an address.
func (t *keyTemplate) usesAddress() bool {
	return t.usesRemote() || strings.Contains(t.text, "{"+clientAddress+"}")
}

// judge notes what the zone is watched for.
func (z *zone) judge(c *Zone) {
	z.peers.Store(peersToSee)
	z.settled.Store(settledToSee)
	plain := slices.ContainsFunc(z.keys, func(t keyTemplate) bool { return t.plain })
	for i := range z.keys {
		t := &z.keys[i]
		z.addressKey = z.addressKey || t.usesAddress()
		z.remoteKey = z.remoteKey || t.usesRemote()
		z.manyKeys = z.manyKeys || z.ipv6 == 0 && (t.single == remoteHost || t.single == clientAddress)
		if !plain {
			z.hollow = append(z.hollow, caddy.NewEmptyReplacer().ReplaceAll(t.text, ""))
		}
	}
	for _, t := range c.deciding() {
		names, _ := placeholderNames(t.text) // checked before
		for _, name := range names {
			if strings.HasPrefix(name, userPrefix) || strings.HasPrefix(name, fieldPrefix) {
				z.late = append(z.late, template{t.option, name})
			}
		}
	}
}

// warnOfAddresses warns of keys of which one client has many.
func (h *Handler) warnOfAddresses() {
	var names []string
	for _, z := range h.zones {
		if z.manyKeys {
			names = append(names, z.name)
		}
	}
	if names != nil {
		h.logger.Warn("the keys of zones are addresses, and over IPv6 one client has more of them than can be counted: write ipv6_prefix 64, or 128 for single addresses",
			zap.Strings("zones", names))
	}
}

var errTooEarly = errors.New("the address of the client is not verified yet")

// tooEarly tells whether a request came before its handshake was complete (HTTP/3
// early data), and its key is an address, which may then be anybody's. Clients repeat
// such requests when the handshake is complete.
func (z *zone) tooEarly(r *http.Request, repl *caddy.Replacer) bool {
	if !z.addressKey || r.TLS == nil || r.TLS.HandshakeComplete {
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

// suspect looks, for the handler's zone i, whether what decides about a request is what it is meant to be.
func (a *answer) suspect(i int, r *http.Request) {
	z := a.handler.zones[i]
	if z.addressKey && z.peers.Load() > 0 {
		z.suspectPeer(r)
	}
	if z.late != nil && z.settled.Load() > 0 {
		a.watched |= 1 << i // none from the 65th on
	}
}

// suspectPeer warns of a key that is the address of a proxy.
func (z *zone) suspectPeer(r *http.Request) {
	z.peers.Add(-1)
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return
	}
	if trusted, _ := caddyhttp.GetVar(r.Context(), caddyhttp.TrustedProxyVarKey).(bool); trusted {
		client, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
		if z.remoteKey && client != host && z.peers.Swap(0) > 0 {
			z.logger.Warn("the key of a zone is the address of the connection, which is that of a trusted proxy, so all clients behind it share a budget: write {client_ip} instead of {remote_host} (said once)",
				zap.String("zone", z.name))
		}
		return
	}
	if len(r.Header["X-Forwarded-For"]) == 0 {
		return
	}
	addr, err := netip.ParseAddr(host)
	if addr = addr.Unmap(); err == nil && (addr.IsPrivate() || addr.IsLoopback()) && z.peers.Swap(0) > 0 {
		z.logger.Warn("the key of a zone is the address of a proxy that is not trusted, so all clients behind it share a budget: write {client_ip} as the key, and in the global options the three lines `servers {` and `trusted_proxies static private_ranges` and `}`; if there is no proxy, clients choose X-Forwarded-For themselves, so leave all as it is (said once)",
			zap.String("zone", z.name))
	}
}

// early is the value of a placeholder before later handlers.
type early struct {
	zone  *zone
	from  *template
	value string
}

// watch lets the later handlers be watched for what they set. Denied requests never come
// to them.
func (a *answer) watch(next caddyhttp.Handler, repl *caddy.Replacer) caddyhttp.Handler {
	if a.watched == 0 {
		return next
	}
	var before []early
	for i, z := range a.handler.zones {
		if a.watched>>i&1 == 0 {
			continue
		}
		for n := range z.late {
			value, _ := repl.GetString(z.late[n].text)
			before = append(before, early{z, &z.late[n], value})
		}
	}
	return caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
		defer noteLate(before, repl)
		return next.ServeHTTP(w, r)
	})
}

// noteLate warns of zones that decide by a placeholder which a later handler has set. A
// handler that removes a header field is no reason to: credentials are often removed.
func noteLate(before []early, repl *caddy.Replacer) {
	for _, e := range before {
		z, name := e.zone, e.from.text
		value, _ := repl.GetString(name)
		switch {
		case value == "" || z.settled.Load() <= 0:
		case value == e.value:
			z.settled.Add(-1)
		case z.settled.Swap(0) <= 0: // another request was faster
		case strings.HasPrefix(name, userPrefix):
			z.logger.Warn("a zone names the user, who is not known yet when rate_limit decides: write order rate_limit after basic_auth (or after the directive that authenticates) in the global options, or put that directive and then rate_limit into a route block (said once)",
				zap.String("zone", z.name), zap.String("option", e.from.option), zap.String("placeholder", "{"+name+"}"))
		default:
			z.logger.Warn("a handler behind rate_limit sets a header field that a zone decides by, so clients can choose its value themselves: write order rate_limit after forward_auth (or after the directive that sets it) in the global options, or put that directive and then rate_limit into a route block (said once)",
				zap.String("zone", z.name), zap.String("option", e.from.option), zap.String("placeholder", "{"+name+"}"))
		}
	}
}

// noteKey warns of a zone whose keys are empty.
func (z *zone) noteKey(key requestKey) {
	switch {
	case z.hollow == nil:
	case key.text != z.hollow[key.alternative]:
		again(&z.empty)
	case reaches(&z.empty):
		z.logger.Warn("the key of a zone was empty for 100 requests in a row, and all of them share one budget: look whether something sets its placeholders before rate_limit, or add another value to key, such as {client_ip} (said once)",
			zap.String("zone", z.name), zap.Strings("key", z.config.Key))
	}
}

// noteSettled warns of a zone whose responses don't say what they cost.
func (z *zone) noteSettled(cost int64) {
	switch {
	case z.settle.Cost == "":
	case cost != unknown:
		again(&z.uncounted)
	case reaches(&z.uncounted):
		z.logger.Warn("the cost of settle was no number for 100 responses in a row, so their charges stayed as they were: look whether the response has it, spelled so, as a number from 0, or exclude responses without it with match (said once)",
			zap.String("zone", z.name), zap.String("cost", string(z.settle.Cost)))
	}
}

// reaches counts, and reports whether something has now happened inARow.
func reaches(n *atomic.Int32) bool { return n.Load() < inARow && n.Add(1) == inARow }

// again begins to count anew, unless it was said.
func again(n *atomic.Int32) {
	if had := n.Load(); had > 0 && had < inARow {
		n.Store(0)
	}
}
