package ratelimit

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/accesslog"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
)

// loadSimulation loads a Caddyfile for a simulation. Its sites {$SITE} and {$OTHER} are on port 8080.
func loadSimulation(t testing.TB, caddyfile string) *simulation {
	t.Helper()
	s, err := tryToSimulate(t, caddyfile)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func tryToSimulate(t testing.TB, caddyfile string) (*simulation, error) {
	t.Helper()
	c := caddyProcess{site: "127.0.0.1:8080", admin: "127.0.0.1:2019"}
	config, err := adapt(t, []byte(c.expand(caddyfile)))
	if err != nil {
		t.Fatal(err)
	}
	s, err := newSimulation([]byte(config))
	if err != nil {
		return nil, err
	}
	return s.(*simulation), nil
}

// loggedGet returns a logged GET of a URI of {$SITE}. header is pairs of name and value.
func loggedGet(uri string, header ...string) *accesslog.Request {
	r := &accesslog.Request{
		Start: 1_700_000_000_000_000, End: 1_700_000_000_250_000,
		Method: http.MethodGet, Host: "127.0.0.1:8080", URI: uri, Proto: "HTTP/1.1", Header: make(http.Header),
		RemoteIP: "127.0.0.1", RemotePort: "50000", ClientIP: "127.0.0.1", Status: 200, ResponseHeader: make(http.Header),
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return r
}

// visit leads a request through the routes.
func (s *simulation) visit(t testing.TB, r *accesslog.Request) *simulate.Visit {
	t.Helper()
	v, err := s.Visit(r)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// met returns the zones and keys of a Visit.
func (s *simulation) met(v *simulate.Visit) string {
	var met []string
	for _, h := range v.Handlers {
		for i, z := range h.Zones {
			met = append(met, s.Zones()[z.Zone].Name+"="+h.Requests[i].Key)
		}
	}
	return strings.Join(met, " ")
}

// wantNote checks that exactly one note has a text.
func (s *simulation) wantNote(t testing.TB, text string) {
	t.Helper()
	if notes := strings.Join(s.Notes(), "\n"); strings.Count(notes, text) != 1 {
		t.Errorf("no note, or several, with %q:\n%s", text, notes)
	}
}

// A logged request meets the same zones, with the same keys, as the request itself.
func TestSimulationRoutes(t *testing.T) {
	s := loadSimulation(t, explainedRoutes)
	for _, test := range routedRequests {
		r := loggedGet(test.path, test.header...)
		r.Method, r.User = cmp.Or(test.method, r.Method), test.user
		if test.host != "" {
			r.Host = "localhost:8080"
		}
		if forwarded := r.Header.Get("X-Forwarded-For"); forwarded != "" {
			r.ClientIP = forwarded
		}
		want := strings.ReplaceAll(test.want, "%2F", "/")
		if got := s.met(s.visit(t, r)); got != want {
			t.Errorf("%s: %s, want %s", test.path, got, want)
		}
	}
	s.wantNote(t, "requests meet a reverse_proxy with handle_response")
	s.wantNote(t, "requests meet the handler test_hold, which does not run here: it is assumed to pass them on unchanged")
}

func BenchmarkVisit(b *testing.B) {
	s := loadSimulation(b, `{$SITE} {
	handle /api/* {
		rate_limit {
			zone api {
				match method GET POST
				key {client_ip}
				ipv6_prefix 64
				token_bucket 10 1s 100
			}
		}
		reverse_proxy 127.0.0.1:9000
	}
	handle {
		encode gzip
		file_server
	}
}
`)
	r := loggedGet("/api/v1/things?x=1", "User-Agent", "curl", "Accept", "*/*")
	b.ReportAllocs()
	for b.Loop() {
		if v := s.visit(b, r); len(v.Handlers) != 1 {
			b.Fatal(fmt.Sprint(v))
		}
	}
}
