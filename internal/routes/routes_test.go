package routes

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/options"
)

// A walk that is used for many requests leads each as a new one: the bound on handlers is that of one request.
func TestWalkIsUsedAgain(t *testing.T) {
	w := NewWalk(nil)
	r := httptest.NewRequest("GET", "/", nil)
	r = r.WithContext(w.Context(r.Context()))
	through := func(s step, next caddyhttp.HandlerFunc) caddyhttp.HandlerFunc {
		return func(rw http.ResponseWriter, r *http.Request) error { return s.ServeHTTP(rw, r, next) }
	}
	enter := func(w *Walk, rw http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
		return w.enter(caddyhttp.HandlerFunc(leave), rw, r, next)
	}
	routes := &Routes{first: through(pass, through(enter, through(pass, endOfRoutes)))}
	ends := &Routes{first: through(enter, through(respond, endOfRoutes))}
	var endless caddyhttp.HandlerFunc
	endless = func(rw http.ResponseWriter, r *http.Request) error { return through(pass, endless)(rw, r) }
	for n := range 2 * maxSteps / 3 {
		errtest.None(t, w.Run(routes, nil, r), "request", n)
		errtest.None(t, w.Run(ends, nil, r), "request", n)
	}
	for range 2 {
		if err := w.Run(&Routes{first: endless}, nil, r); err != errTooLong {
			t.Fatalf("without an end: %v", err)
		}
		errtest.None(t, w.Run(routes, nil, r), "after one without an end")
	}
}

// A walk continues behind handlers that change only the response, and ends at those that respond.
func TestSteps(t *testing.T) {
	for handler, passes := range map[caddyhttp.MiddlewareHandler]bool{
		&caddyhttp.StaticResponse{}: false, &caddyhttp.StaticResponse{StatusCode: "103"}: true,
		&Unloaded{Name: "templates"}: true, &Unloaded{Name: "error"}: false, &Unloaded{Name: "reverse_proxy"}: false, &Unloaded{Name: "file_server"}: false,
	} {
		passed := false
		next := func(http.ResponseWriter, *http.Request) error { passed = true; return nil }
		s, err := newStep(caddy.Context{}, handler)
		if err != nil || s(NewWalk(nil), nil, nil, caddyhttp.HandlerFunc(next)) != nil || passed != passes {
			t.Errorf("%+v: it passes requests on: %v (%v)", handler, passed, err)
		}
	}
}

// Of servers that match equally well, the first by name counts, so the answer is always the same.
func TestServersThatMatchEqually(t *testing.T) {
	app := &caddyhttp.App{Servers: map[string]*caddyhttp.Server{
		"c": {Listen: []string{"c.example:80"}}, "a": {Listen: []string{"a.example:80"}}, "b": {Listen: []string{"b.example:80"}},
		"y": {Listen: []string{"y.example:90", ":91"}}, "x": {Listen: []string{":90", "x.example:91"}},
	}}
	for address, want := range map[string]string{
		"other.example:80": "a", "b.example:80": "b", "y.example:90": "y", "other.example:90": "x", "other.example:91": "y",
	} {
		at, err := caddy.ParseNetworkAddress(address)
		errtest.None(t, err)
		if name, _, err := FindServer(app, at.Host, at.StartPort); name != want || err != nil {
			t.Errorf("%s: server %q, error %v; want %q", address, name, err, want)
		}
	}
}

// An error of one of Caddy's matchers has one place, also in an imported file.
func TestPlaceOfMatchersError(t *testing.T) {
	tokens, _ := caddyfile.Tokenize([]byte("match {"), "Caddyfile")
	imported, _ := caddyfile.Tokenize([]byte("remote_ip {\nfoo\n}\n}"), "opts.conf")
	d := caddyfile.NewDispenser(append(tokens, imported...))
	at := *d
	d.Next()
	o := Matchers("match", "path /", new(caddyhttp.RawMatcherSets), nil)
	err := options.WithPosition(&at, o.Read(d))
	if text := err.Error(); strings.Count(text, ", at ") != 1 || !strings.Contains(text, ", at opts.conf:") {
		t.Errorf("%s: want one place", text)
	}
}
