package routes

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// FindServer returns the name of the server that listens on a port. If several do, an address with the host
// decides. If none does, a proxy may send the request to a server without a port. Then assumption says so.
func FindServer(app *caddyhttp.App, host string, port uint) (name, assumption string, err error) {
	var best AddressMatch
	var at string
	var listeners []string
	for _, server := range slices.Sorted(maps.Keys(app.Servers)) {
		listeners = append(listeners, fmt.Sprintf("%s on %s", server, strings.Join(app.Servers[server].Listen, " and ")))
		for _, listen := range app.Servers[server].Listen {
			address, err := caddy.ParseNetworkAddress(listen)
			if err != nil {
				continue
			}
			if match := MatchAddress(address, host, port); match > best {
				best, name, at = match, server, listen
			}
		}
	}
	switch best {
	case noAddress:
		err = fmt.Errorf("no server listens on port %d: write a URL with the port of a server: %s",
			port, cmp.Or(strings.Join(listeners, ", "), "none"))
	case PortlessAddress:
		assumption = fmt.Sprintf("no server listens on port %d: the request is assumed to come to server %s at %s", port, name, at)
	}
	return name, assumption, err
}

// AddressMatch says how well the address of a server matches a URL. A higher one matches better.
type AddressMatch uint8

// The matches that other packages name.
const (
	noAddress       AddressMatch = iota
	PortlessAddress              // a unix socket, or a socket that another process has opened
	otherHost
	AnyHost
	SameHost
)

// MatchAddress returns how well the address of a server matches a host and a port.
func MatchAddress(address caddy.NetworkAddress, host string, port uint) AddressMatch {
	switch {
	case address.IsUnixNetwork() || address.IsFdNetwork():
		return PortlessAddress
	case port < address.StartPort || port > address.EndPort:
		return noAddress
	case strings.EqualFold(address.Host, host):
		return SameHost
	case address.Host == "" || net.ParseIP(address.Host).IsUnspecified():
		return AnyHost
	}
	return otherHost
}

// PortOf returns the port of a URL's host, or the default port of its scheme.
func PortOf(app *caddyhttp.App, scheme, port string) (uint, error) {
	switch {
	case port != "":
		n, err := strconv.ParseUint(port, 10, 16)
		return uint(n), err
	case scheme == "https":
		return uint(cmp.Or(app.HTTPSPort, caddyhttp.DefaultHTTPSPort)), nil
	}
	return uint(cmp.Or(app.HTTPPort, caddyhttp.DefaultHTTPPort)), nil
}
