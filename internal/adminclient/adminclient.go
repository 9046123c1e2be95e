// Package adminclient calls the admin API of running Caddys, for the command line and for the status page. It never
// reads what they answer.
package adminclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
)

const (
	// patience is how long a caller waits for an answer. An answer that needs Redis comes after the timeout of Redis at the latest.
	patience = 10 * time.Second
	// maxAnswer is how many bytes of an answer are read.
	maxAnswer = 64 << 20
)

// Instance is a running Caddy, by the address of its admin endpoint: host:port, or unix//path.
type Instance string

// Parse returns the instance with an address. Its error says what to write.
func Parse(address string) (Instance, error) {
	a, err := caddy.ParseNetworkAddress(address)
	hasPort := a.IsUnixNetwork() || a.StartPort != 0 && a.PortRangeSize() == 1
	if err == nil && address != "" && hasPort && !a.IsFdNetwork() {
		return Instance(address), nil
	}
	instead := "localhost:2019, or unix//run/caddy-admin.sock"
	if _, rest, is := strings.Cut(address, "://"); is {
		instead, _, _ = strings.Cut(rest, "/")
	} else if err == nil && a.StartPort == 0 && a.Host != "" {
		instead = net.JoinHostPort(a.Host, "2019")
		if strings.Trim(a.Host, "0123456789") == "" { // a port alone
			instead = "localhost:" + a.Host
		}
	}
	return "", fmt.Errorf("%q is not the address of an admin endpoint: write for example %s", address, instead)
}

// dial opens the connections. Tests replace it.
var dial = new(net.Dialer).DialContext

// Send sends a request, and returns the status and the body of the answer: JSON, or nothing. The path comes after
// /rate_limit/. The body can be empty. Caddy's own commands send the same host and origin, so the endpoint's list of
// origins applies in the same way.
func (i Instance) Send(ctx context.Context, method, path string, body []byte) (status int, answer []byte, err error) {
	a, err := caddy.ParseNetworkAddress(string(i))
	if err != nil {
		return 0, nil, err
	}
	host := "127.0.0.1"
	if a.IsUnixNetwork() {
		a.Host, _, _ = strings.Cut(a.Host, "|") // the permissions of the socket
	} else if host = a.JoinHostPort(0); a.Host == "" {
		host = "localhost" + host
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer within %v", patience))
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+host+"/rate_limit/"+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if !a.IsUnixNetwork() {
		r.Header.Set("Origin", "http://"+host)
	}
	if len(body) > 0 {
		r.Header.Set("Content-Type", "application/json")
	}
	response, err := (&http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dial(ctx, a.Network, a.JoinHostPort(0))
		},
	}).RoundTrip(r)
	if err == nil {
		defer response.Body.Close()
		status = response.StatusCode
		answer, err = io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	}
	switch {
	case err != nil:
		return 0, nil, i.unreachable(ctx, method, err)
	case len(answer) > maxAnswer:
		return 0, nil, fmt.Errorf("the answer of %s is longer than %d bytes: is it the admin endpoint of Caddy?", i, maxAnswer)
	case status == http.StatusNoContent || json.Valid(answer):
		return status, answer, nil
	case status == http.StatusNotFound:
		return 0, nil, fmt.Errorf("the server at %s has no admin API for rate limits: name the admin endpoint of Caddy with --address, "+
			"and build that Caddy with this module, in the version of this command", i)
	}
	return 0, nil, fmt.Errorf("the server at %s answers with status %d: is it the admin endpoint of Caddy?", i, status)
}

// unreachable returns the error for a request without an answer.
func (i Instance) unreachable(ctx context.Context, method string, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && (method == http.MethodPut || method == http.MethodDelete) {
		err = fmt.Errorf("%w, so it is unknown whether a change was made", err)
	}
	return fmt.Errorf("no Caddy answers at %s (%w): start Caddy, for example with caddy run, or name its admin endpoint with --address; "+
		"a Caddy with admin off in its configuration has none", i, err)
}

// Path returns a path with each of its parts percent-encoded, such as zones/a%2Fb/keys, and behind it the query.
func Path(query url.Values, parts ...string) string {
	for n, part := range parts {
		if parts[n] = url.PathEscape(part); part == "." || part == ".." { // which would be folders
			parts[n] = strings.ReplaceAll(part, ".", "%2E")
		}
	}
	path := strings.Join(parts, "/")
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return path
}
