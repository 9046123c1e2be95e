package statuspage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
)

const (
	maxRelayedBody   = 64 << 10 // bytes of a request, as the admin endpoint takes them
	maxRelayedAnswer = 8 << 20  // bytes
	relayTimeout     = 10 * time.Second
	maxConnections   = 8 // to an admin endpoint
)

// relayed are the methods by path below /rate_limit/. A star stands for a zone. Keys are in the query.
var relayed = map[string][]string{
	"status":            {http.MethodGet},
	"explain":           {http.MethodPost},
	"history":           {http.MethodGet},
	"zones":             {http.MethodGet},
	"zones/*":           {http.MethodGet},
	"zones/*/top":       {http.MethodGet},
	"zones/*/bans":      {http.MethodGet},
	"zones/*/overrides": {http.MethodGet},
	"zones/*/keys":      {http.MethodGet, http.MethodDelete},
	"zones/*/override":  {http.MethodPut, http.MethodDelete},
	"zones/*/ban":       {http.MethodPut, http.MethodDelete},
}

// relayedQuery are the parameters that are relayed.
var relayedQuery = []string{"key", "limit", "cursor"}

// relayTarget returns where a request goes to: a path and query of the admin endpoint. It writes
// them again from their parts, so nothing else of the request gets into them.
func relayTarget(method, escapedPath, rawQuery string) (string, error) {
	parts := strings.Split(escapedPath, "/")
	pattern := slices.Clone(parts)
	if len(parts) > 1 {
		zone, err := url.PathUnescape(parts[1])
		if err != nil || zone == "" {
			return "", fmt.Errorf("the path %s names no zone", escapedPath)
		}
		parts[1], pattern[1] = adminapi.PathSegment(zone), "*"
	}
	methods := relayed[strings.Join(pattern, "/")]
	if !slices.Contains(methods, method) {
		return "", fmt.Errorf("%s %s is not relayed", method, escapedPath)
	}
	query, err := url.ParseQuery(rawQuery)
	if err != nil {
		return "", err
	}
	for name, values := range query {
		if !slices.Contains(relayedQuery, name) || len(values) != 1 {
			return "", fmt.Errorf("the parameter %q is not relayed", name)
		}
	}
	target := "/rate_limit/" + strings.Join(parts, "/")
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	return target, nil
}

// endpoint is an admin endpoint of a Caddy.
type endpoint struct {
	address string // as the operator wrote it
	origin  string
	client  *http.Client
}

// newEndpoint returns the endpoint at an address of Caddy: host:port, or unix//path. Its requests
// have the host and the origin that Caddy's own commands send, so the endpoint's list of origins
// applies in the same way. Unlike these commands, it keeps connections, and limits the time of a request.
func newEndpoint(address string) (*endpoint, error) {
	a, err := caddy.ParseNetworkAddress(address)
	if err != nil || a.PortRangeSize() > 1 || a.IsFdNetwork() {
		return nil, fmt.Errorf("--address %s is not the address of an admin endpoint (%v): "+
			"write for example localhost:2019 or unix//run/caddy/admin.sock", address, err)
	}
	e := &endpoint{address: address, origin: "http://" + a.JoinHostPort(0)}
	if a.IsUnixNetwork() {
		a.Host, _, _ = strings.Cut(a.Host, "|") // the permissions of the socket
		e.origin = "http://127.0.0.1"
	}
	target := a.JoinHostPort(0)
	e.client = &http.Client{
		Timeout:       relayTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			MaxConnsPerHost: maxConnections,
			IdleConnTimeout: 30 * time.Second,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, a.Network, target)
			},
		},
	}
	return e, nil
}

// relay sends a request to the endpoint, and answers with its answer.
func (e *endpoint) relay(w http.ResponseWriter, r *http.Request, escapedPath string) {
	target, err := relayTarget(r.Method, escapedPath, r.URL.RawQuery)
	if err != nil {
		fail(w, http.StatusNotFound, err)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRelayedBody))
	if err != nil {
		fail(w, http.StatusRequestEntityTooLarge, err)
		return
	}
	status, answer, err := e.send(r.Context(), r.Method, target, string(body))
	if err != nil {
		fail(w, http.StatusBadGateway, err)
		return
	}
	if len(answer) > 0 {
		w.Header().Set("Content-Type", "application/json")
	}
	w.WriteHeader(status)
	_, _ = w.Write(answer) // an error means that the browser has left
}

// send returns the status and the body of the endpoint's answer.
func (e *endpoint) send(ctx context.Context, method, target, body string) (int, []byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, e.origin+target, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if e.origin != "http://127.0.0.1" {
		r.Header.Set("Origin", e.origin)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	response, err := e.client.Do(r)
	if err != nil {
		var cause *url.Error
		if errors.As(err, &cause) {
			err = cause.Err // without the address of the request, which has the key
		}
		return 0, nil, fmt.Errorf("the admin endpoint %s does not answer (%w): start Caddy, or correct --address", e.address, err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxRelayedAnswer+1))
	switch {
	case err != nil:
		return 0, nil, fmt.Errorf("the answer of the admin endpoint %s: %w", e.address, err)
	case len(answer) > maxRelayedAnswer:
		return 0, nil, fmt.Errorf("the answer of the admin endpoint %s is longer than %d bytes", e.address, maxRelayedAnswer)
	case response.StatusCode >= 300 && response.StatusCode < 400:
		return 0, nil, fmt.Errorf("the admin endpoint %s answers with status %d", e.address, response.StatusCode)
	}
	return response.StatusCode, answer, nil
}
