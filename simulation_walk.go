package ratelimit

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
)

// loggedWalk is the walk of a logged request through the routes. A walk that has ended is used again for
// another request, together with all that [caddyhttp.PrepareRequest] makes for a request.
type loggedWalk struct {
	// These belong to the request.
	logged   *accesslog.Request
	server   *simulatedServer
	room     *visitRoom
	nexts    []caddyhttp.Handler // behind the subroutes and named routes that the request is in
	invoked  int                 // the number of named routes that the request has met
	states   int                 // the number of stateRoom in use
	original url.URL             // before handlers change it
	replacer *caddy.Replacer     // a new one for each request, because handlers add placeholders

	// These are made once, and cleared before each request.
	request     *http.Request // its address is known to the replacer
	blank       http.Request
	prepared    caddy.ReplacerFunc // the placeholders that Caddy prepares
	vars        map[string]any
	initialVars map[string]any
	groups      map[string]struct{} // the groups of routes that the request has passed
	response    unsentResponse
	tls         tls.ConnectionState
	stateRoom   []*requestState
}

// routeGroups is the key of the groups in the context of a request.
const routeGroups = caddy.CtxKey("route_group")

func newLoggedWalk() *loggedWalk {
	w := &loggedWalk{response: unsentResponse{header: make(http.Header)}}
	replacer := caddy.NewEmptyReplacer()
	replacer.Map(w.lookUpDefault)
	w.prepared = replacer.Get
	r := (&http.Request{URL: new(url.URL)}).WithContext(context.WithValue(context.Background(), http.LocalAddrContextKey, walkAddress{w}))
	w.request = caddyhttp.PrepareRequest(r, replacer, &w.response, new(caddyhttp.Server))
	ctx := w.request.Context()
	w.vars, _ = ctx.Value(caddyhttp.VarsCtxKey).(map[string]any)
	w.groups, _ = ctx.Value(routeGroups).(map[string]struct{})
	w.blank = *w.request.WithContext(walkContext{ctx, w})
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
	case loggedWalkKey{}:
		return c.walk
	case caddy.ReplacerCtxKey:
		return c.walk.replacer
	case caddyhttp.VarsCtxKey:
		return c.walk.vars
	case caddyhttp.OriginalRequestCtxKey:
		logged := c.walk.logged
		return http.Request{Method: logged.Method, URL: &c.walk.original, RequestURI: logged.URI, RemoteAddr: c.walk.remoteAddr()}
	}
	return c.Context.Value(key)
}

// loggedWalkKey is the key of the walk in the context of its request.
type loggedWalkKey struct{}

// walkOf returns the walk of a request.
func walkOf(r *http.Request) *loggedWalk { return r.Context().Value(loggedWalkKey{}).(*loggedWalk) }

// walkAddress is the address at which the server of a walk listens. A log doesn't have the address of the
// connection.
type walkAddress struct{ walk *loggedWalk }

func (walkAddress) Network() string  { return "tcp" }
func (a walkAddress) String() string { return a.walk.server.address }

// run leads a logged request through the routes of a server. It adds the handlers on the way to room.
func (w *loggedWalk) run(logged *accesslog.Request, server *simulatedServer, u *url.URL, host string, room *visitRoom) (err error) {
	w.logged, w.server, w.room, w.original = logged, server, room, *u
	defer w.end()
	defer recoverWalk(&err)
	w.setRequest(u, host)
	return server.routes.ServeHTTP(&w.response, w.request)
}

// end lets go of everything that belongs to the request.
func (w *loggedWalk) end() {
	w.logged, w.server, w.room, w.original = nil, nil, nil, url.URL{}
	clear(w.nexts[:cap(w.nexts)])
	w.nexts, w.invoked = w.nexts[:0], 0
	*w.request, w.replacer = w.blank, nil
	clear(w.vars)
	maps.Copy(w.vars, w.initialVars)
	clear(w.groups)
	clear(w.response.header)
	for _, state := range w.stateRoom[:w.states] {
		state.forget()
	}
	w.states = 0
}

// newState returns the state of the request in a handler.
func (w *loggedWalk) newState(h *Handler) *requestState {
	if w.states == len(w.stateRoom) {
		w.stateRoom = append(w.stateRoom, new(requestState))
	}
	state := w.stateRoom[w.states]
	w.states++
	entries, requests := state.entries, state.requests
	state.begin(h, w.replacer)
	if cap(entries) > cap(state.entries) {
		state.entries, state.requests = entries, requests
	}
	state.explained = true
	return state
}

// forget makes the state zero, but keeps the memory for entries, which can be more than the usual number.
func (state *requestState) forget() {
	entries, requests := state.entries, state.requests
	clear(entries)
	clear(requests)
	*state = requestState{entries: entries[:0], requests: requests[:0]}
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
	client := cmp.Or(logged.ClientIP, logged.RemoteIP)
	w.vars[caddyhttp.ClientIPVarKey], w.vars[caddyhttp.TrustedProxyVarKey] = client, client != logged.RemoteIP
}

// remoteAddr returns the address of the connection, or the text in the log if that is a unix socket.
func (w *loggedWalk) remoteAddr() string {
	if ip := w.logged.RemoteIP; strings.ContainsAny(ip, ".:") {
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
