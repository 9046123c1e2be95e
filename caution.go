package ratelimit

import (
	"errors"
	"net"
	"net/http"
	"regexp"
	"strings"

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

var userPlaceholder = regexp.MustCompile(`\{(http\.auth\.[^{}]+)\}`)

// usesRemote tells whether a key is made of the address of the connection.
func (t *keyTemplate) usesRemote() bool { return strings.Contains(t.text, "{"+remoteAddress) }

// usesAddress tells whether a key is made of an address.
func (t *keyTemplate) usesAddress() bool {
	return t.usesRemote() || strings.Contains(t.text, "{"+clientAddress+"}")
}

// judgeKeys notes what the keys are made of.
func (z *zone) judgeKeys() {
	for i := range z.keys {
		t := &z.keys[i]
		z.addressKey = z.addressKey || t.usesAddress()
		z.remoteKey = z.remoteKey || t.usesRemote()
		if user := userPlaceholder.FindStringSubmatch(t.text); user != nil && z.userKey == "" {
			z.userKey = user[1]
		}
		z.manyKeys = z.manyKeys || z.ipv6 == 0 && (t.single == remoteHost || t.single == clientAddress)
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

// suspect looks whether the key of a request is what it is meant to be, and warns
// once of what it sees.
func (a *answer) suspect(z *zone, r *http.Request, repl *caddy.Replacer) {
	if z.remoteKey && !z.saidRemote.Load() {
		client, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		if err == nil && client != host && !z.saidRemote.Swap(true) {
			z.logger.Warn("the key of a zone is the address of the connection, which is that of a trusted proxy, so all clients behind it share a budget: write {client_ip} instead of {remote_host} (said once)",
				zap.String("zone", z.name))
		}
	}
	if z.userKey != "" && !z.saidUser.Load() {
		if user, _ := repl.GetString(z.userKey); user == "" {
			a.userless = append(a.userless, z)
		}
	}
}

// noteLateUsers warns of zones whose key names a user who is known only now, after
// the handlers behind.
func (a *answer) noteLateUsers(repl *caddy.Replacer) {
	for _, z := range a.userless {
		if user, _ := repl.GetString(z.userKey); user != "" && !z.saidUser.Swap(true) {
			z.logger.Warn("the key of a zone names the user, who is not known yet when rate_limit decides: put it behind the authentication, such as with the global option order rate_limit after basic_auth (said once)",
				zap.String("zone", z.name), zap.String("placeholder", z.userKey))
		}
	}
}
