package admin

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"golang.org/x/net/http/httpguts"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/options"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/routes"
)

// This file explains a described request: which handlers and zones it meets, and how they would
// decide. The request is led through Caddy's routes. Each rate_limit handler on its way decides it as
// always, but peeks, which changes nothing.

// explainTimeout bounds the time for an explanation, because a matcher can be slow.
const explainTimeout = 10 * time.Second

// Explain explains a described request. It charges, counts and logs nothing.
func (a *OperatorRequest) Explain() (any, error) {
	var q adminapi.ExplainedRequest
	if err := options.DecodeStrictly([]byte(a.Body), &q); err != nil {
		return nil, Error(http.StatusBadRequest,
			`the body: %w; write for example {"url":"https://example.com/login","client_ip":"203.0.113.7"}`, err)
	}
	ctx, cancel := context.WithTimeout(a.Ctx, explainTimeout)
	defer cancel()
	q.Method = cmp.Or(q.Method, http.MethodGet)
	q.ClientIP = cmp.Or(q.ClientIP, "127.0.0.1")
	x := &explanation{
		view:    &adminapi.Explanation{Request: q, Verdict: verdictUnlimited, Handlers: []adminapi.ExplainedHandler{}},
		charges: make(map[charge]int64),
	}
	err := x.run(ctx)
	if ctx.Err() != nil {
		return nil, Error(http.StatusGatewayTimeout,
			"a matcher or a store took longer than %v: look at the state of Redis with GET %sstatus", explainTimeout, Path)
	}
	return x.view, err
}

// explanation is an explanation in the making.
type explanation struct {
	view   *adminapi.Explanation
	server string // its name
	users  int    // the number of authentication handlers that the request has met

	// charges has the cost of the request in the zones of the handlers before. If the request meets a
	// zone again, the budgets have that much less.
	charges map[charge]int64
}

// run leads the request through the routes of the configuration in force.
func (x *explanation) run(ctx context.Context) error {
	active := caddy.ActiveContext()
	running, err := active.AppIfConfigured("http")
	if err != nil {
		return Error(http.StatusNotFound, "the configuration in force has no app http, so there are no requests: %w", err)
	}
	app := running.(*caddyhttp.App)
	q := &x.view.Request
	u, err := parseDescribedURL(q.URL)
	if err != nil {
		return Error(http.StatusBadRequest, "url: %w", err)
	}
	port, err := routes.PortOf(app, u.Scheme, u.Port())
	if err != nil {
		return Error(http.StatusBadRequest, "url: its port: %w", err)
	}
	var assumption string
	if x.server, assumption, err = routes.FindServer(app, u.Hostname(), port); err != nil {
		return Error(http.StatusNotFound, "%w", err)
	}
	if assumption != "" {
		x.note("%s", assumption)
	}
	server := app.Servers[x.server]
	compiled, err := routes.Compile(active, server)
	if err != nil {
		return err
	}
	walk := routes.NewWalk(x)
	r, err := newDescribedRequest(walk.Context(ctx), q, u)
	if err != nil {
		return Error(http.StatusBadRequest, "%w", err)
	}
	rw := &routes.UnsentResponse{Fields: make(http.Header)}
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), rw, server)
	if err := walk.Run(compiled, rw, r); err != nil {
		x.note("the request ends with an error: %v", err)
	}
	if q.User != "" && x.users == 0 {
		x.note("user has no effect, because the request meets no authentication handler")
	}
	return nil
}

// note adds a note, once.
func (x *explanation) note(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(x.view.Notes, text) {
		x.view.Notes = append(x.view.Notes, text)
	}
}

// Assume implements [routes.Visitor]. It notes that the handler is assumed to pass the request on.
func (x *explanation) Assume(handler string, r *http.Request) (passes bool) {
	assumption := "it is assumed to pass the request on"
	switch handler {
	case "authentication":
		if x.users++; x.view.Request.User != "" {
			routes.SetUser(r, x.view.Request.User)
			return true
		}
		assumption += " without a user; write user with the ID of the user whom it would let in"
	case "reverse_proxy":
		assumption += "; in headers, write the fields that it would copy"
	case "file_server":
	default:
		assumption += " unchanged"
	}
	x.note("the request meets %s: %s", routes.DescribeUnknown(handler), assumption)
	return true
}

// parseDescribedURL reads the URL of a described request.
func parseDescribedURL(text string) (*url.URL, error) {
	const example = "write for example https://example.com/login?x=1"
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %s", err, example)
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return nil, fmt.Errorf("%.100q must begin with http:// or https:// and a host: %s", text, example)
	case u.User != nil:
		return nil, errors.New("it must not have a user and a password: write the ID of the user into user, " +
			"or the field Authorization of a basic login into headers")
	}
	return u, nil
}

// newDescribedRequest returns the request that q describes, as a server receives it.
func newDescribedRequest(ctx context.Context, q *adminapi.ExplainedRequest, u *url.URL) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, q.Method, u.String(), nil)
	if err != nil {
		return nil, err
	}
	client, err := netip.ParseAddr(q.ClientIP)
	if err != nil {
		return nil, fmt.Errorf("client_ip must be an address, not %.100q: write for example 203.0.113.7", q.ClientIP)
	}
	r.RemoteAddr = net.JoinHostPort(client.String(), "0")
	r.RequestURI = u.RequestURI()
	if r.URL, err = url.ParseRequestURI(r.RequestURI); err != nil {
		return nil, fmt.Errorf("url: %w", err)
	}
	if u.Scheme == "https" {
		r.TLS = &tls.ConnectionState{Version: tls.VersionTLS13, HandshakeComplete: true, ServerName: u.Hostname()}
	}
	for name, values := range q.Headers {
		for _, value := range values {
			if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
				return nil, fmt.Errorf("headers: %.100q: %.100q is not a header field: write for example X-Api-Key", name, value)
			}
			r.Header.Add(name, value)
		}
	}
	if host := r.Header["Host"]; len(host) > 0 {
		r.Host = host[0]
		delete(r.Header, "Host")
	}
	r.Body = http.NoBody
	if q.Body != "" {
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(q.Body)), int64(len(q.Body))
	}
	return r, nil
}
