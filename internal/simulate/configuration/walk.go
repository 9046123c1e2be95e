package configuration

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/accesslog"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/routes"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// loggedWalk is the walk of a logged request through the routes. A walk that has ended is used again for
// another request, together with all that [caddyhttp.PrepareRequest] makes for a request.
type loggedWalk struct {
	// These belong to the request.
	logged   *accesslog.Request
	server   *server
	visited  *simulate.Visit
	states   int             // the number of stateRoom in use
	original url.URL         // before handlers change it
	replacer *caddy.Replacer // a new one for each request, because handlers add placeholders

	// These are made once, and cleared before each request.
	configuration *configuration
	walk          *routes.Walk
	request       *http.Request // its address is known to the replacer
	blank         http.Request
	prepared      caddy.ReplacerFunc // the placeholders that Caddy prepares
	vars          map[string]any
	initialVars   map[string]any
	groups        map[string]struct{} // the groups of routes that requests pass; nil if the routes have none
	response      routes.UnsentResponse
	tls           tls.ConnectionState
	stateRoom     []*limiter.State
}

func newLoggedWalk(c *configuration) *loggedWalk {
	w := &loggedWalk{configuration: c, response: routes.UnsentResponse{Fields: make(http.Header)}}
	w.walk = routes.NewWalk(w)
	replacer := caddy.NewEmptyReplacer()
	replacer.Map(w.lookUpDefault)
	w.prepared = replacer.Get
	r := (&http.Request{URL: new(url.URL)}).WithContext(context.WithValue(context.Background(), http.LocalAddrContextKey, walkAddress{w}))
	w.request = caddyhttp.PrepareRequest(r, replacer, &w.response, new(caddyhttp.Server))
	ctx := w.request.Context()
	w.vars, _ = ctx.Value(caddyhttp.VarsCtxKey).(map[string]any)
	w.blank = *w.request.WithContext(walkContext{w.walk.Context(ctx), w})
	w.initialVars = maps.Clone(w.vars)
	return w
}

// walkContext is the context of a request in a walk.
type walkContext struct {
	context.Context
	walk *loggedWalk
}

// Value implements [context.Context]. It knows the original request, which
// [caddyhttp.PrepareRequest] would put into the context, and finds usual values without a search.
func (c walkContext) Value(key any) any {
	switch key {
	case caddy.ReplacerCtxKey:
		return c.walk.replacer
	case caddyhttp.VarsCtxKey:
		return c.walk.vars
	case caddyhttp.OriginalRequestCtxKey:
		logged := c.walk.logged
		return http.Request{Method: logged.Method, URL: &c.walk.original, RequestURI: logged.URI, RemoteAddr: c.walk.remoteAddr()}
	}
	value := c.Context.Value(key)
	if groups, is := value.(map[string]struct{}); is { // whose key Caddy does not export
		c.walk.groups = groups
	}
	return value
}

// walkAddress is the address at which the server of a walk listens. A log doesn't have the address of the
// connection.
type walkAddress struct{ walk *loggedWalk }

func (walkAddress) Network() string  { return "tcp" }
func (a walkAddress) String() string { return a.walk.server.address }

// run leads a logged request through the routes of a server. It adds the handlers on the way to the Visit.
func (w *loggedWalk) run(logged *accesslog.Request, server *server, u *url.URL, host string, visited *simulate.Visit) error {
	w.logged, w.server, w.visited, w.original = logged, server, visited, *u
	defer w.end()
	w.setRequest(u, host)
	return w.walk.Run(server.routes, &w.response, w.request)
}

// end lets go of everything that belongs to the request.
func (w *loggedWalk) end() {
	w.logged, w.server, w.visited, w.original = nil, nil, nil, url.URL{}
	*w.request, w.replacer = w.blank, nil
	clear(w.vars)
	maps.Copy(w.vars, w.initialVars)
	clear(w.groups)
	clear(w.response.Fields)
	for _, state := range w.stateRoom[:w.states] {
		state.Forget()
	}
	w.states = 0
}

// Meet implements [routes.Visitor]. It collects the zones of a rate_limit handler, and passes the request on.
func (w *loggedWalk) Meet(h *limiter.Limiter, rw http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	state := w.newState(h)
	if err := state.Collect(r, w.replacer, limiter.Attempt{}); err != nil {
		return err
	}
	w.leaveOut(state)
	if len(state.Entries) == 0 {
		return next.ServeHTTP(rw, r)
	}
	at := len(w.visited.Handlers)
	w.visit(state)
	err := next.ServeHTTP(rw, r)
	w.settle(state, &w.visited.Handlers[at])
	return err
}

// visit adds what the request meets to its Visit.
func (w *loggedWalk) visit(state *limiter.State) {
	var h simulate.HandlerVisit
	zones := w.configuration.zones
	for i := range state.Entries {
		e := &state.Entries[i]
		request := *e.ZoneRequest
		request.Key, request.Outcome = visitedKey(e.Key), store.Outcome{}
		if charged, ok := w.chargedIn(e); ok && e.Zone.Settle == nil {
			request.Cost = charged
		}
		h.Requests = append(h.Requests, request)
		h.Zones = append(h.Zones, simulate.ZoneVisit{Zone: zones.index[e.Zone], Set: zones.sets[e.LimitSet], BanOnly: e.IsBanLookup})
	}
	w.visited.Handlers = append(w.visited.Handlers, h)
}

// Assume implements [routes.Visitor]. Authentication lets the user of the log in. It ends the walk of a request without
// a user if the log has the status of a failed authentication.
func (w *loggedWalk) Assume(handler string, r *http.Request) (passes bool) {
	if handler == "authentication" {
		switch {
		case w.logged.User != "":
			routes.SetUser(r, strings.Clone(w.logged.User))
			return true
		case w.logged.Status == http.StatusUnauthorized:
			return false
		}
	}
	setOnce(w.configuration.notes.handlers[handler])
	return true
}

// newState returns the state of the request in a handler.
func (w *loggedWalk) newState(h *limiter.Limiter) *limiter.State {
	if w.states == len(w.stateRoom) {
		w.stateRoom = append(w.stateRoom, new(limiter.State))
	}
	state := w.stateRoom[w.states]
	w.states++
	entries, requests := state.Entries, state.Requests
	state.Begin(h, w.replacer)
	if cap(entries) > cap(state.Entries) {
		state.Entries, state.Requests = entries, requests
	}
	state.Explained = true
	return state
}

// setRequest makes the request as the server gives it to its routes.
func (w *loggedWalk) setRequest(u *url.URL, host string) {
	w.replacer = caddy.NewEmptyReplacer()
	w.replacer.Map(w.prepared)
	r, logged := w.request, w.logged
	*r = w.blank
	r.Method, r.URL, r.RequestURI, r.Host, r.Header = logged.Method, u, logged.URI, host, logged.Header
	r.Proto, r.ProtoMajor, r.ProtoMinor = logged.Proto, 1, 1
	if major, minor, ok := http.ParseHTTPVersion(logged.Proto); ok {
		r.ProtoMajor, r.ProtoMinor = major, minor
	}
	if w.server.changesHeader { // the request may be led through another configuration, too
		r.Header = logged.Header.Clone()
	}
	if r.Header == nil {
		r.Header = make(http.Header)
	}
	r.Body, r.RemoteAddr = http.NoBody, w.remoteAddr()
	if logged.TLS != nil {
		w.setTLS(logged.TLS)
		r.TLS = &w.tls
	}
	client := logged.Client()
	w.vars[caddyhttp.ClientIPVarKey], w.vars[caddyhttp.TrustedProxyVarKey] = client, client != logged.RemoteIP
}

// remoteAddr returns the address of the connection, or the text in the log if that is a unix socket.
func (w *loggedWalk) remoteAddr() string {
	if ip := w.logged.RemoteIP; strings.ContainsAny(ip, ".:") && !strings.ContainsAny(ip, "/@") {
		return net.JoinHostPort(ip, cmp.Or(w.logged.RemotePort, "0"))
	}
	return w.logged.RemoteIP
}

// setTLS sets the state of the connection.
func (w *loggedWalk) setTLS(logged *accesslog.TLS) {
	w.tls = tls.ConnectionState{
		HandshakeComplete: true, Version: logged.Version, CipherSuite: logged.CipherSuite,
		NegotiatedProtocol: logged.ALPN, ServerName: logged.ServerName, DidResume: logged.Resumed,
	}
	if logged.CommonName != "" {
		subject := pkix.Name{CommonName: logged.CommonName}
		w.tls.PeerCertificates = []*x509.Certificate{{Subject: subject, SerialNumber: new(big.Int)}}
	}
}

// processReplacer has the placeholders of the process.
var processReplacer = caddy.NewReplacer()

// lookUpDefault returns the value of a placeholder that doesn't depend on the request. The time is that
// of the request.
func (w *loggedWalk) lookUpDefault(name string) (any, bool) {
	kind, rest, _ := strings.Cut(name, ".")
	switch kind {
	case "env", "file", "system":
		return processReplacer.Get(name)
	case "time":
		return lookUpTime(time.UnixMicro(w.logged.Start), rest)
	}
	return nil, false
}

// lookUpTime returns the value of a placeholder of time, as Caddy does.
func lookUpTime(t time.Time, name string) (any, bool) {
	switch name {
	case "now":
		return t, true
	case "now.http":
		return t.UTC().Format(http.TimeFormat), true
	case "now.rfc3339":
		return t.Format(time.RFC3339), true
	case "now.common_log":
		return t.Format("02/Jan/2006:15:04:05 -0700"), true
	case "now.year":
		return strconv.Itoa(t.Year()), true
	case "now.unix":
		return strconv.FormatInt(t.Unix(), 10), true
	case "now.unix_ms":
		return strconv.FormatInt(t.UnixMilli(), 10), true
	}
	return nil, false
}
