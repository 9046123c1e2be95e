package statuspage

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// startServer serves the page for an admin endpoint where nobody listens. So status 502 means that a
// request was relayed.
func startServer(t *testing.T) *server {
	t.Helper()
	s, err := newServer("127.0.0.1:0", []string{"127.0.0.1:" + redistest.FreePort(t)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.serve(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

const reached = http.StatusBadGateway

// call sends a request as the page does, unless the fields say otherwise. An empty value removes a field.
func (s *server) call(t *testing.T, method, path string, fields ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.listener.Addr().String()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(body)
}

// Only the page itself may call, at the address of this machine, and with the token.
func TestChecks(t *testing.T) {
	s := startServer(t)
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
	s := startServer(t)
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
	for _, path := range []string{"/", "/icon.svg", "/instances", "/nothing"} {
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

// The relay knows the requests of the rate limiter, and no others.
func TestRelayed(t *testing.T) {
	tests := []struct{ method, path, want string }{ // nothing wanted: not relayed
		{"GET", "zones", "zones"},
		{"GET", "status", "status"},
		{"POST", "explain", "explain"},
		{"GET", "zones/api", "zones/api"},
		{"GET", "zones/api/top", "zones/api/top"},
		{"GET", "zones/api/bans?limit=100&cursor=a%2Fb", "zones/api/bans?cursor=a%2Fb&limit=100"},
		{"GET", "zones/a%2Fb/keys?key=%FF%22%2F..", "zones/a%2Fb/keys?key=%FF%22%2F.."},
		{"GET", "zones/%2e%2e/keys?key=", "zones/%2E%2E/keys?key="},
		{"GET", "zones/..%2f..%2fload/keys?key=a", "zones/..%2F..%2Fload/keys?key=a"},
		{"DELETE", "zones/api/keys?key=a", "zones/api/keys?key=a"},
		{"PUT", "zones/api/override?key=a", "zones/api/override?key=a"},
		{"DELETE", "zones/api/ban?key=a", "zones/api/ban?key=a"},
		{"GET", "", ""},
		{"POST", "zones", ""},
		{"DELETE", "zones/api", ""},
		{"GET", "explain", ""},
		{"POST", "load", ""},
		{"GET", "config/", ""},
		{"GET", "../config/", ""},
		{"GET", "%2e%2e/config/", ""},
		{"GET", "zones/../../config", ""},
		{"GET", "zones/api/../../../config/", ""},
		{"GET", "zones/api/%2e%2e", ""},
		{"GET", "zones//config", ""},
		{"POST", "stop", ""},
		{"GET", "zones/api/keys/a", ""},
		{"GET", "zones/api/top/", ""},
		{"GET", "zones?format=x", ""},
		{"GET", "zones/api/keys?key=a&key=b", ""},
		{"GET", "zones/api/keys?key=%zz", ""},
	}
	s := startServer(t)
	for _, test := range tests {
		path, query, _ := strings.Cut(test.path, "?")
		got, err := relayTarget(test.method, path, query)
		if want := strings.TrimSuffix("/rate_limit/"+test.want, "/rate_limit/"); got != want || (err == nil) != (want != "") {
			t.Errorf("%s %s: relayed to %q, %v, want %q", test.method, test.path, got, err, want)
		}
		response, body := s.call(t, test.method, "/instances/0/"+test.path)
		if (response.StatusCode == reached) != (test.want != "") {
			t.Errorf("%s %s: status %d: %s", test.method, test.path, response.StatusCode, body)
		}
	}
	for _, path := range []string{"/instances/1/zones", "/instances/-1/zones", "/instances/x/zones", "/instances/0"} {
		if response, _ := s.call(t, "GET", path); response.StatusCode != 404 {
			t.Errorf("%s: status %d, want 404", path, response.StatusCode)
		}
	}
}

// Addresses that can't work are errors that say what to write.
func TestAddresses(t *testing.T) {
	for _, test := range []struct{ listen, admin, want string }{
		{"0.0.0.0:4567", "localhost:2019", "ssh -L 4567:localhost:4567"},
		{":4567", "localhost:2019", "not a loopback address"},
		{"example.com:80", "localhost:2019", "not a loopback address"},
		{"localhost", "localhost:2019", "write for example localhost:0"},
		{"localhost:0", "localhost:2000-2010", "write for example localhost:2019"},
		{"localhost:0", "fd/3", "write for example localhost:2019"},
	} {
		if err := Run(t.Context(), test.listen, []string{test.admin}, nil); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s and %s: %v, want %q", test.listen, test.admin, err, test.want)
		}
	}
}
