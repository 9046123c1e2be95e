package statuspage

import (
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// serveFor serves the page for an admin endpoint.
func serveFor(t *testing.T, admin string) *server {
	t.Helper()
	s, err := newServer("127.0.0.1:0", []string{admin})
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: s}
	go func() { _ = server.Serve(s.listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return s
}

// adminEndpoint is an admin endpoint that knows one zone, and accepts only requests to its own address.
func adminEndpoint(host, origin string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /rate_limit/zones", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`[{"name":"api"}]`)) })
	mux.HandleFunc("PUT /rate_limit/zones/api/ban", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Host != host || r.Header.Get("Origin") != origin {
			http.Error(w, "host "+r.Host+", origin "+r.Header.Get("Origin"), http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// The admin endpoint can be a unix socket, and can have a list of origins.
func TestRelayedEndpoints(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	endpoints := map[string]net.Listener{tcp.Addr().String(): tcp}
	if runtime.GOOS != "windows" {
		t.Chdir(t.TempDir()) // the path of a socket must be short
		for _, name := range []string{"a.sock", "b.sock"} {
			socket, err := net.Listen("unix", name)
			if err != nil {
				t.Fatal(err)
			}
			endpoints["unix/"+filepath.ToSlash(name)+map[string]string{"b.sock": "|0222"}[name]] = socket
		}
	}
	for admin, listener := range endpoints {
		host, origin := "127.0.0.1", "" // as Caddy's own commands have it
		if listener == tcp {
			host, origin = admin, "http://"+admin
		}
		endpoint := &http.Server{Handler: adminEndpoint(host, origin)}
		go func() { _ = endpoint.Serve(listener) }()
		t.Cleanup(func() { _ = endpoint.Close() })
		s := serveFor(t, admin)
		if r, body := s.call(t, "GET", "/instances/0/zones"); r.StatusCode != 200 || !strings.Contains(body, `"name":"api"`) {
			t.Errorf("%s: GET: %d %s", admin, r.StatusCode, body)
		}
		if r, body := s.call(t, "PUT", "/instances/0/zones/api/ban?key=a"); r.StatusCode != 204 || body != "" {
			t.Errorf("%s: PUT: %d %s", admin, r.StatusCode, body)
		}
		if r, body := s.call(t, "GET", "/instances/0/zones/nobody/top"); r.StatusCode != 404 {
			t.Errorf("%s: an error: %d %s", admin, r.StatusCode, body)
		}
	}
}

// Answers of something else than an admin endpoint get to the page only within bounds.
func TestRelayedAnswers(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/rate_limit/zones" {
			http.Redirect(w, r, "/config/", http.StatusFound)
			return
		}
		_, _ = w.Write(make([]byte, maxRelayedAnswer+1))
	}))
	t.Cleanup(other.Close)
	s := serveFor(t, other.Listener.Addr().String())
	if r, body := s.call(t, "GET", "/instances/0/zones"); r.StatusCode != 502 || !strings.Contains(body, "status 302") {
		t.Errorf("a redirect: %d %.200s", r.StatusCode, body)
	}
	if r, body := s.call(t, "GET", "/instances/0/status"); r.StatusCode != 502 || !strings.Contains(body, "longer than") {
		t.Errorf("a long answer: %d %.200s", r.StatusCode, body)
	}
	explain := "http://" + s.listener.Addr().String() + "/instances/0/explain"
	long := httptest.NewRequest("POST", explain, strings.NewReader(strings.Repeat("x", maxRelayedBody+1)))
	long.Header.Set(tokenField, s.token)
	long.Header.Set("Origin", "http://"+long.Host)
	w := httptest.NewRecorder()
	if s.ServeHTTP(w, long); w.Code != 413 {
		t.Errorf("a long body: %d %.200s", w.Code, w.Body)
	}
	other.Close()
	if r, body := s.call(t, "GET", "/instances/0/zones"); r.StatusCode != 502 || !strings.Contains(body, "start Caddy") {
		t.Errorf("nobody answers: %d %.200s", r.StatusCode, body)
	}
}
