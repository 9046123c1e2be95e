package configuration

import (
	"encoding/json"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/accesslog"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/routes"
)

// server is a server of the configuration, as far as it leads requests to limits.
type server struct {
	name          string
	routes        *routes.Routes
	changesHeader bool // a handler may change header fields of requests
	limits        bool // a route has a rate_limit handler

	addresses []caddy.NetworkAddress
	address   string          // the first of them
	hosts     map[string]bool // that its routes name, in lower case
	anyHost   bool            // a route names no host, or one with a placeholder
}

func newServer(name string, configured *caddyhttp.Server) *server {
	s := &server{name: name, hosts: make(map[string]bool)}
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
func (s *server) addHosts(route *caddyhttp.Route) {
	s.anyHost = s.anyHost || len(route.MatcherSetsRaw) == 0
	for _, set := range route.MatcherSetsRaw {
		var hosts []string
		if set["host"] == nil || json.Unmarshal(set["host"], &hosts) != nil {
			s.anyHost = true
		}
		for _, host := range hosts {
			s.hosts[strings.ToLower(host)] = true
			s.anyHost = s.anyHost || strings.Contains(host, "{") || strings.LastIndexByte(host, '*') > 0
		}
	}
}

// names reports how well the routes of the server match a host, which is in lower case: 2 if they name it, 1
// if they name none, otherwise 0.
func (s *server) names(host string) int {
	_, parent, _ := strings.Cut(host, ".")
	switch {
	case s.hosts[host], s.hosts["*."+parent]:
		return 2
	case s.anyHost:
		return 1
	}
	return 0
}

// target is where a logged request was sent, as far as the log says it.
type target struct {
	host        string // in lower case
	port        uint   // of Host, or of the scheme
	schemePort  uint
	isKnown     bool // false if the log has neither a Host nor TLS, so that the port can be any
	isOnSocket  bool // the connection was made to a unix socket
	isEncrypted bool
}

// targetOf returns where a request was sent. Host is that of the request, or an assumed one.
func (s *configuration) targetOf(logged *accesslog.Request, host string) target {
	t := target{
		schemePort: s.httpPort, isKnown: logged.Host != "" || logged.TLS != nil,
		isOnSocket: strings.HasPrefix(logged.RemoteIP, "@") || strings.HasPrefix(logged.RemoteIP, "/"), isEncrypted: logged.TLS != nil,
	}
	if t.isEncrypted {
		t.schemePort = s.httpsPort
	}
	t.port = t.schemePort
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
	} else if n, err := strconv.ParseUint(port, 10, 16); err == nil {
		t.port = uint(n)
	}
	t.host = strings.ToLower(name)
	return t
}

// serverOf returns the server that a logged request came to, and the request's Host. A log doesn't say to
// which address a connection was made, so the server is found by TLS, and by the host and the port in Host.
// The port can be that of a proxy or of a container. It can happen that no server listens on the port, or
// that its server has no route for the host. Then the server whose routes name the host is assumed. serverOf
// returns nil for a request that an automatic redirect to HTTPS answered.
func (s *configuration) serverOf(logged *accesslog.Request) (*server, string) {
	host := logged.Host
	if host == "" {
		host = s.onlyHost
		setOnce(&s.notes.lacksHost)
	}
	t := s.targetOf(logged, host)
	var best *server
	var fit serverFit
	for _, server := range s.servers {
		if f := server.fitOf(&t); best == nil || f.rank() > fit.rank() {
			best, fit = server, f
		}
	}
	switch {
	case logged.Host == "" || fit.listens && fit.names == 2:
	case logged.Status == http.StatusPermanentRedirect && s.redirects(&t, fit):
		return nil, ""
	case !fit.listens && fit.names > 0:
		s.notes.seeGuess(logged, best)
	}
	return best, host
}

// redirects reports whether an automatic redirect to HTTPS answers a request with status 308. fit is that of
// its server. A redirect comes before routes that name no host.
func (s *configuration) redirects(t *target, fit serverFit) bool {
	return !t.isEncrypted && slices.ContainsFunc(s.servers, func(server *server) bool {
		names := server.names(t.host)
		return server.accepts(t.host, s.httpsPort) > routes.PortlessAddress && (names == 2 || names == 1 && !fit.listens)
	})
}

// serverFit says how well a server fits the target of a request.
type serverFit struct {
	address routes.AddressMatch
	listens bool // on the port
	names   int
	likely  bool // more than another server that fits equally well
}

func (s *server) fitOf(t *target) serverFit {
	f := serverFit{names: s.names(t.host)}
	switch {
	case !t.isKnown:
		f.likely = s.limits
		return f
	case !t.isOnSocket:
		f.address = s.accepts(t.host, t.port)
	case s.accepts(t.host, 0) == routes.PortlessAddress:
		f.address = routes.SameHost
	}
	f.listens = f.address > routes.PortlessAddress
	f.likely = s.accepts(t.host, t.schemePort) > routes.PortlessAddress
	return f
}

// rank is higher for a server that fits better. A server that names the host fits better than one that only
// listens on the port.
func (f serverFit) rank() (rank int) {
	switch {
	case f.listens && f.names > 0:
		rank = 3
	case f.names == 2:
		rank = 2
	case f.listens:
		rank = 1
	}
	rank = rank<<3 | int(f.address)
	rank = rank<<2 | f.names
	rank <<= 1
	if f.likely {
		rank++
	}
	return rank
}

// accepts reports how well an address of the server matches a host and a port. A server without an address
// accepts all requests.
func (s *server) accepts(host string, port uint) (best routes.AddressMatch) {
	if len(s.addresses) == 0 {
		return routes.AnyHost
	}
	for i := range s.addresses {
		best = max(best, routes.MatchAddress(s.addresses[i], host, port))
	}
	return best
}

// namedHosts returns the hosts that the routes of the configuration name.
func (s *configuration) namedHosts() (hosts []string) {
	for _, server := range s.servers {
		for host := range server.hosts {
			if !slices.Contains(hosts, host) {
				hosts = append(hosts, host)
			}
		}
	}
	return hosts
}
