package ratelimit

import (
	"cmp"
	"encoding/json"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/accesslog"
)

// simulatedServer is a server of the configuration, as far as it leads requests to limits.
type simulatedServer struct {
	name          string
	routes        caddyhttp.Handler
	named         map[string]caddyhttp.Handler // the named routes
	changesHeader bool                         // a handler may change header fields of requests

	addresses           []caddy.NetworkAddress
	address             string          // the first of them
	hosts               map[string]bool // that its routes name, in lower case
	anyHost             bool            // a route names no host
	httpPort, httpsPort uint
}

func newSimulatedServer(app *caddyhttp.App, name string) *simulatedServer {
	configured := app.Servers[name]
	s := &simulatedServer{
		name: name, named: make(map[string]caddyhttp.Handler), hosts: make(map[string]bool),
		httpPort:  uint(cmp.Or(app.HTTPPort, caddyhttp.DefaultHTTPPort)),
		httpsPort: uint(cmp.Or(app.HTTPSPort, caddyhttp.DefaultHTTPSPort)),
	}
	for _, listen := range configured.Listen {
		if address, err := caddy.ParseNetworkAddress(listen); err == nil {
			s.addresses = append(s.addresses, address)
		}
	}
	if len(s.addresses) > 0 {
		s.address = s.addresses[0].JoinHostPort(0)
	}
	for i := range configured.Routes {
		s.addHosts(&configured.Routes[i])
	}
	return s
}

// addHosts adds the hosts that a route names.
func (s *simulatedServer) addHosts(route *caddyhttp.Route) {
	s.anyHost = s.anyHost || len(route.MatcherSetsRaw) == 0
	for _, set := range route.MatcherSetsRaw {
		var hosts []string
		if set["host"] == nil || json.Unmarshal(set["host"], &hosts) != nil {
			s.anyHost = true
		}
		for _, host := range hosts {
			s.hosts[strings.ToLower(host)] = true
		}
	}
}

// names reports how well the routes of the server match a host: 2 if they name it, 1 if they name none,
// otherwise 0.
func (s *simulatedServer) names(host string) int {
	host = strings.ToLower(host)
	_, parent, _ := strings.Cut(host, ".")
	switch {
	case s.hosts[host], s.hosts["*."+parent]:
		return 2
	case s.anyHost:
		return 1
	}
	return 0
}

// serverOf returns the server that a logged request came to, and the request's Host. A log doesn't say to
// which address a connection was made, so the server is found by TLS, and by the host and the port in
// Host. If no server listens on this port, the server whose routes name the host is assumed. serverOf
// returns nil for a request that an automatic redirect to HTTPS answered.
func (s *simulation) serverOf(logged *accesslog.Request) (*simulatedServer, string) {
	requested := logged.Host
	if requested == "" {
		requested = s.onlyHost
		setOnce(&s.notes.lacksHost)
	}
	host, port, err := net.SplitHostPort(requested)
	if err != nil {
		host, port = strings.Trim(requested, "[]"), ""
	}
	var best *simulatedServer
	var rank int
	var known addressMatch
	for _, server := range s.servers {
		match := server.accepts(host, port, logged.TLS != nil)
		if r := int(match)<<2 + server.names(host); best == nil || r > rank {
			best, rank, known = server, r, match
		}
	}
	switch {
	case logged.Host == "" || known > portlessAddress:
	case logged.TLS == nil && logged.Status == http.StatusPermanentRedirect:
		return nil, ""
	default:
		s.notes.seeGuess(logged, best)
	}
	return best, requested
}

// accepts reports how well an address of the server matches the Host of a request. A server without an
// address accepts all requests.
func (s *simulatedServer) accepts(host, port string, tls bool) (best addressMatch) {
	if len(s.addresses) == 0 {
		return anyHost
	}
	number := s.httpPort
	if n, err := strconv.ParseUint(port, 10, 16); err == nil {
		number = uint(n)
	} else if tls {
		number = s.httpsPort
	}
	for i := range s.addresses {
		best = max(best, matchAddress(s.addresses[i], host, number))
	}
	return best
}

// namedHosts returns the hosts that the routes of the configuration name.
func (s *simulation) namedHosts() (hosts []string) {
	for _, server := range s.servers {
		for host := range server.hosts {
			if !slices.Contains(hosts, host) {
				hosts = append(hosts, host)
			}
		}
	}
	return hosts
}
