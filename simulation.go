package ratelimit

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/accesslog"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// simulation is a configuration without the rest of Caddy. It leads logged requests through the routes of
// the http app, down to their rate_limit handlers. It opens no port, no log, no storage and no
// connection. It implements [simulate.Configuration].
type simulation struct {
	servers  []*simulatedServer
	onlyHost string // that all routes name; empty if they name several
	zones    *simulatedZones
	statuses map[int]bool // of denials by the zones, besides 429
	maxKeys  int64
	notes    *simulationNotes
	walks    sync.Pool // of *loggedWalk
}

// Zones implements [simulate.Configuration].
func (s *simulation) Zones() []simulate.Zone { return s.zones.all }

// MaxKeys implements [simulate.Configuration].
func (s *simulation) MaxKeys() int64 { return s.maxKeys }

// ShownKey implements [simulate.Configuration].
func (s *simulation) ShownKey(zone int, key string) string {
	shown := newShownKey(s.zones.secrets[zone], key, maxShownKey)
	if shown.cut {
		return shown.text + "…"
	}
	return shown.text
}

// Notes implements [simulate.Configuration].
func (s *simulation) Notes() []string { return s.notes.texts() }

// maxVisitedPath is how many bytes of the path a [simulate.Visit] has.
const maxVisitedPath = 64

// Visit implements [simulate.Configuration]. It returns an error for a request that no server accepts.
func (s *simulation) Visit(logged *accesslog.Request) (*simulate.Visit, error) {
	u, err := parseRequestURI(logged)
	if err != nil {
		return nil, err
	}
	room := new(visitRoom)
	v := &room.visit
	v.Start, v.End, v.Instant, v.Status = logged.Start, max(logged.End, logged.Start), logged.Instant, logged.Status
	v.Client = strings.Clone(cmp.Or(logged.ClientIP, logged.RemoteIP))
	v.Path = strings.Clone(u.Path[:min(len(u.Path), maxVisitedPath)])
	v.WasDenied = s.wasDenied(logged)
	s.notes.seeRequest(logged)
	server, host := s.serverOf(logged)
	if server == nil {
		return v, nil
	}
	w := s.walks.Get().(*loggedWalk)
	w.begin(logged, server, room)
	err = w.run(w.newRequest(u, host))
	if err != nil {
		s.notes.seeError(err)
	}
	w.end()
	s.walks.Put(w)
	return v, nil
}

// parseRequestURI parses the URI of a request as Go's HTTP server does.
func parseRequestURI(logged *accesslog.Request) (*url.URL, error) {
	uri := logged.URI
	onlyAuthority := logged.Method == http.MethodConnect && !strings.HasPrefix(uri, "/")
	if onlyAuthority {
		uri = "http://" + uri
	}
	u, err := url.ParseRequestURI(uri)
	if err != nil {
		return nil, fmt.Errorf("the URI of the request: %w", errors.Unwrap(err))
	}
	if onlyAuthority {
		u.Scheme = ""
	}
	return u, nil
}

// visitRoom is a Visit with space for the usual number of handlers and zones, so that it needs only one
// allocation.
type visitRoom struct {
	visit    simulate.Visit
	handlers [1]simulate.HandlerVisit
	requests [1]store.Request
	zones    [1]simulate.ZoneVisit
	used     bool // by the first handler
}

// addHandler adds a handler with a number of zones, and returns it.
func (m *visitRoom) addHandler(zones int) *simulate.HandlerVisit {
	h := simulate.HandlerVisit{Requests: m.requests[:0], Zones: m.zones[:0]}
	if m.used || zones > 1 {
		h.Requests, h.Zones = make([]store.Request, 0, zones), make([]simulate.ZoneVisit, 0, zones)
	}
	if !m.used {
		m.used, m.visit.Handlers = true, m.handlers[:0]
	}
	m.visit.Handlers = append(m.visit.Handlers, h)
	return &m.visit.Handlers[len(m.visit.Handlers)-1]
}

// loggedWalk is the walk of a logged request through the routes. A walk is used again for another
// request when it has ended.
type loggedWalk struct {
	simulation *simulation
	server     *simulatedServer
	logged     *accesslog.Request
	room       *visitRoom
	nexts      []caddyhttp.Handler // behind the subroutes and named routes that the request is in
	invoked    int                 // the number of named routes that the request has met
	response   unsentResponse

	// These are made once.
	ctx      context.Context
	tls      tls.ConnectionState
	defaults caddy.ReplacerFunc // the placeholders that don't depend on the request
}

// loggedWalkKey is the key of the walk in the context of its request.
type loggedWalkKey struct{}

func (s *simulation) newWalk() *loggedWalk {
	w := &loggedWalk{simulation: s, response: unsentResponse{header: make(http.Header)}}
	ctx := context.WithValue(context.Background(), http.LocalAddrContextKey, walkAddress{w})
	w.ctx = context.WithValue(ctx, loggedWalkKey{}, w)
	w.defaults = w.lookUpDefault
	return w
}

// walkOf returns the walk of a request.
func walkOf(r *http.Request) *loggedWalk { return r.Context().Value(loggedWalkKey{}).(*loggedWalk) }

// walkAddress is the address at which the server of a walk listens. A log doesn't have the address of the
// connection.
type walkAddress struct{ walk *loggedWalk }

func (walkAddress) Network() string  { return "tcp" }
func (a walkAddress) String() string { return a.walk.server.address }

func (w *loggedWalk) begin(logged *accesslog.Request, server *simulatedServer, room *visitRoom) {
	w.logged, w.server, w.room = logged, server, room
	w.nexts, w.invoked = w.nexts[:0], 0
	if len(w.response.header) > 0 {
		w.response.header = make(http.Header)
	}
}

// end lets go of everything that belongs to the request.
func (w *loggedWalk) end() {
	w.logged, w.server, w.room = nil, nil, nil
	clear(w.nexts[:cap(w.nexts)])
}

// run leads the request through the routes of its server.
func (w *loggedWalk) run(r *http.Request) (err error) {
	defer recoverWalk(&err)
	return w.server.routes.ServeHTTP(&w.response, r)
}

// newRequest returns the logged request, as the server gives it to its routes.
func (w *loggedWalk) newRequest(u *url.URL, host string) *http.Request {
	logged := w.logged
	r := (&http.Request{
		Method: logged.Method, URL: u, RequestURI: logged.URI, Proto: logged.Proto, ProtoMajor: 1, ProtoMinor: 1,
		Host: host, Header: logged.Header, Body: http.NoBody, RemoteAddr: logged.RemoteIP,
	}).WithContext(w.ctx)
	if major, minor, ok := http.ParseHTTPVersion(logged.Proto); ok {
		r.ProtoMajor, r.ProtoMinor = major, minor
	}
	if w.server.changesHeader { // the request may be led through another configuration, too
		r.Header = logged.Header.Clone()
	}
	if r.Header == nil {
		r.Header = make(http.Header)
	}
	if net.ParseIP(logged.RemoteIP) != nil { // else a unix socket
		r.RemoteAddr = net.JoinHostPort(logged.RemoteIP, cmp.Or(logged.RemotePort, "0"))
	}
	if logged.TLS != nil {
		w.setTLS(logged.TLS)
		r.TLS = &w.tls
	}
	repl := caddy.NewEmptyReplacer()
	repl.Map(w.defaults)
	r = caddyhttp.PrepareRequest(r, repl, &w.response, noServer)
	client := cmp.Or(logged.ClientIP, logged.RemoteIP)
	caddyhttp.SetVar(r.Context(), caddyhttp.ClientIPVarKey, client)
	caddyhttp.SetVar(r.Context(), caddyhttp.TrustedProxyVarKey, client != logged.RemoteIP)
	return r
}

// noServer is the server of all logged requests, for Caddy.
var noServer = new(caddyhttp.Server)

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
