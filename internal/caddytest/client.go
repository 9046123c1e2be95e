package caddytest

import (
	"net/http"
	"sync"
)

// Client keeps many connections.
var Client = &http.Client{Transport: roundTripper{}, Timeout: Patient}

var (
	transportsMu sync.Mutex
	transports   = make(map[string]*http.Transport) // by address: a test closes the connections to its own Caddy only
)

type roundTripper struct{}

func (roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	return transportOf(r.URL.Host).RoundTrip(r)
}

// transportOf returns the transport that has the connections to an address.
func transportOf(address string) *http.Transport {
	transportsMu.Lock()
	defer transportsMu.Unlock()
	if transports[address] == nil {
		transports[address] = &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}
	}
	return transports[address]
}

// forgetConnections makes later requests to an address use new connections. It closes none: a connection
// counts as idle as soon as a response without a body has come, before the caller has it.
func forgetConnections(address string) {
	transportsMu.Lock()
	defer transportsMu.Unlock()
	delete(transports, address)
}

// CloseIdleConnections closes the idle connections to the site. No request may be in flight.
func (c *Caddy) CloseIdleConnections() {
	transportOf(c.Site).CloseIdleConnections()
}
