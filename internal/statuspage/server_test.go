package statuspage

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminclient"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// nobody is the address of an admin endpoint where nobody listens. So status 502 means that a request was relayed.
func nobody(t *testing.T) string { return "127.0.0.1:" + redistest.FreePort(t) }

// startServer serves the page for an admin endpoint.
func startServer(t *testing.T, admin string) *server {
	t.Helper()
	s, err := newServer("127.0.0.1:0", []adminclient.Instance{adminclient.Instance(admin)})
	errtest.None(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.serve(ctx) }()
	t.Cleanup(func() {
		stop()
		errtest.Report(t, <-ended)
	})
	return s
}

const reached = http.StatusBadGateway

// call sends a request as the page does, unless the fields say otherwise. An empty value removes a field.
func (s *server) call(t *testing.T, method, path string, fields ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.listener.Addr().String()+path, nil)
	errtest.None(t, err)
	fields = append([]string{tokenField, s.token, "Sec-Fetch-Site", "same-origin", "Origin", "http://" + r.Host}, fields...)
	for i := 0; i < len(fields); i += 2 {
		switch {
		case fields[i] == "Host":
			r.Host = fields[i+1]
		case fields[i+1] == "":
			r.Header.Del(fields[i])
		default:
			r.Header.Set(fields[i], fields[i+1])
		}
	}
	response, err := http.DefaultTransport.RoundTrip(r)
	errtest.None(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	errtest.None(t, err)
	return response, string(body)
}

// Only the page itself may call, at the address of this machine, and with the token.
func TestChecks(t *testing.T) {
	s := startServer(t, nobody(t))
	port := ":" + s.port
	tests := []struct {
		name   string
		method string
		fields []string
		want   int
	}{
		{"the page", "GET", nil, reached},
		{"the page changes", "PUT", nil, reached},
		{"a program with the token", "GET", []string{"Origin", "", "Sec-Fetch-Site", ""}, reached},
		{"localhost", "PUT", []string{"Host", "localhost" + port, "Origin", "http://localhost" + port}, reached},
		{"IPv6", "PUT", []string{"Host", "[::1]" + port, "Origin", "http://[::1]" + port}, reached},
		{"a name that has become 127.0.0.1", "GET", []string{"Host", "evil.example" + port, "Origin", "http://evil.example" + port}, 403},
		{"a name that begins so", "GET", []string{"Host", "localhost.evil.example" + port}, 403},
		{"an address of another machine", "GET", []string{"Host", "192.0.2.1" + port}, 403},
		{"another port", "GET", []string{"Host", "localhost:1"}, 403},
		{"no port", "GET", []string{"Host", "localhost"}, 403},
		{"no token", "GET", []string{tokenField, ""}, 403},
		{"no token, a change", "DELETE", []string{tokenField, ""}, 403},
		{"another token", "GET", []string{tokenField, strings.Repeat("A", len(s.token))}, 403},
		{"a page of another site", "PUT", []string{"Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site"}, 403},
		{"a page of another port", "PUT", []string{"Origin", "http://127.0.0.1:1", "Sec-Fetch-Site", "same-site"}, 403},
		{"the origin alone is another one", "GET", []string{"Origin", "http://127.0.0.1:1", "Sec-Fetch-Site", ""}, 403},
		{"Sec-Fetch-Site alone is another one", "GET", []string{"Origin", "", "Sec-Fetch-Site", "cross-site"}, 403},
		{"a change without origin", "PUT", []string{"Origin", "", "Sec-Fetch-Site", ""}, 403},
		{"a sandboxed page", "PUT", []string{"Origin", "null"}, 403},
		{"TLS", "PUT", []string{"Origin", "https://127.0.0.1" + port}, 403},
	}
	for _, test := range tests {
		path := "/instances/0/zones"
		if test.method != "GET" {
			path += "/api/ban?key=a"
		}
		response, body := s.call(t, test.method, path, test.fields...)
		if response.StatusCode != test.want {
			t.Errorf("%s: status %d, want %d: %s", test.name, response.StatusCode, test.want, body)
		}
	}
	if response, _ := s.call(t, "OPTIONS", "/instances/0/zones", "Origin", "https://evil.example", tokenField, ""); response.StatusCode < 400 ||
		response.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("a page of another site got permission: %d %v", response.StatusCode, response.Header)
	}
}

// The page itself needs no token, and no other page can show it.
func TestPage(t *testing.T) {
	s := startServer(t, nobody(t))
	response, body := s.call(t, "GET", "/", tokenField, "")
	if response.StatusCode != 200 || !strings.HasPrefix(body, "<!doctype html>") || strings.Contains(body, s.token) {
		t.Errorf("status %d, %.100s", response.StatusCode, body)
	}
	policy := response.Header.Get("Content-Security-Policy")
	for _, part := range []string{
		"default-src 'none'", "script-src 'sha256-", "style-src 'sha256-", "connect-src 'self'", "base-uri 'none'",
		"form-action 'none'", "frame-ancestors 'none'", "require-trusted-types-for 'script'",
	} {
		if !strings.Contains(policy, part) {
			t.Errorf("the policy has no %s: %s", part, policy)
		}
	}
	if strings.Contains(policy, "unsafe") || strings.Contains(policy, "*") {
		t.Errorf("the policy allows too much: %s", policy)
	}
	for _, path := range []string{"/", "/instances", "/nothing"} {
		response, _ := s.call(t, "GET", path)
		for name, want := range map[string]string{
			"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
			"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
		} {
			if got := response.Header.Get(name); got != want {
				t.Errorf("%s: %s is %q, want %q", path, name, got, want)
			}
		}
		if !strings.Contains(response.Header.Get("Content-Security-Policy"), "frame-ancestors 'none'") {
			t.Errorf("%s: another page can show it in a frame", path)
		}
	}
	if response, _ := s.call(t, "POST", "/"); response.StatusCode != 405 {
		t.Errorf("POST: status %d, want 405", response.StatusCode)
	}
	if response, _ := s.call(t, "GET", "/", "Host", "evil.example:"+s.port); response.StatusCode != 403 {
		t.Errorf("another host: status %d, want 403", response.StatusCode)
	}
}

// The relay reaches what is below /rate_limit/, and nothing else, and passes on answers as they are.
func TestRelayed(t *testing.T) {
	var got, body string
	mux := http.NewServeMux()
	mux.HandleFunc("/rate_limit/", func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		got, body = r.Method+" "+strings.TrimPrefix(r.RequestURI, "/rate_limit/"), string(text)
		if r.Method == "PUT" {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, `{"error":"why"}`)
	})
	mux.HandleFunc("/", func(_ http.ResponseWriter, r *http.Request) { t.Errorf("%s is reached", r.RequestURI) })
	admin := httptest.NewServer(mux)
	t.Cleanup(admin.Close)
	s := startServer(t, admin.Listener.Addr().String())
	for asked, want := range map[string]string{ // nothing wanted: not relayed
		"GET zones":               "GET zones",
		"POST explain":            "POST explain",
		"PUT zones/api/ban?key=a": "PUT zones/api/ban?key=a",
		"GET zones/api/bans?limit=100&cursor=a%2Fb": "GET zones/api/bans?cursor=a%2Fb&limit=100",
		"GET zones/a%2Fb/keys?key=%FF%22%2F..":      "GET zones/a%2Fb/keys?key=%FF%22%2F..",
		"GET zones/%2e%2e/keys?key=":                "GET zones/%2E%2E/keys?key=",
		"GET zones/..%2f..%2fload/keys?key=a":       "GET zones/..%2F..%2Fload/keys?key=a",
		"GET ../config/":                            "GET %2E%2E/config/",
		"GET %2e%2e/config/":                        "GET %2E%2E/config/",
		"GET zones/../../config":                    "GET zones/%2E%2E/%2E%2E/config",
		"POST stop":                                 "POST stop",
		"GET zones//config":                         "", // a redirect
	} {
		got = ""
		method, path, _ := strings.Cut(asked, " ")
		response, answer := s.call(t, method, "/instances/0/"+path)
		status, wanted := http.StatusConflict, `{"error":"why"}`
		switch {
		case want == "":
			status, wanted = http.StatusBadGateway, answer
		case method == "PUT":
			status, wanted = http.StatusNoContent, ""
		}
		if got != want || response.StatusCode != status || answer != wanted || body != "" {
			t.Errorf("%s: relayed to %q, and status %d: %s", asked, got, response.StatusCode, answer)
		}
	}
	for path, want := range map[string]int{"1/zones": 404, "-1/zones": 404, "x/zones": 404, "0/zones/api/keys?key=a;b": 400} {
		if response, _ := s.call(t, "GET", "/instances/"+path); response.StatusCode != want {
			t.Errorf("%s: status %d, want %d", path, response.StatusCode, want)
		}
	}
	for length, want := range map[int]int{maxBody: http.StatusConflict, maxBody + 1: http.StatusRequestEntityTooLarge} {
		r := httptest.NewRequest("POST", "http://"+s.listener.Addr().String()+"/instances/0/explain", strings.NewReader(strings.Repeat("x", length)))
		r.Header.Set(tokenField, s.token)
		r.Header.Set("Origin", "http://"+r.Host)
		w := httptest.NewRecorder()
		if s.ServeHTTP(w, r); w.Code != want || want == http.StatusConflict && len(body) != length {
			t.Errorf("a body of %d bytes: %d %.200s", length, w.Code, w.Body)
		}
	}
}

// Addresses that can't work are errors that say what to write.
func TestAddresses(t *testing.T) {
	for listen, want := range map[string]string{
		"0.0.0.0:4567":   "ssh -L 4567:localhost:4567",
		":4567":          "not a loopback address",
		"example.com:80": "not a loopback address",
		"localhost":      "write for example localhost:0",
	} {
		errtest.Says(t, Run(t.Context(), listen, nil, nil), want, listen)
	}
}
