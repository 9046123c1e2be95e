package limiter_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// pipes is a listener whose connections are pipes, which know virtual time.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	conn, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (p pipes) Close() error { close(p); return nil }
func (pipes) Addr() net.Addr { return new(net.TCPAddr) }

// A request that is delayed after its body was read lives longer than the timeouts of the body and of
// the server.
func TestBodyOfDelayedRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const zone = `{"rate_limits":{"z":{"key":"{http.rate_limit.request.json.user}","body_timeout":"300ms","delay":{"max":"10s"},` +
			`"limits":[{"algorithm":"token_bucket","events":1,"window":"1s"}]}}}`
		h, err := provisionCombo(t, caddytest.ComboConfig{App: `{}`, Outer: zone, Inner: zone})
		if err != nil {
			t.Fatal(err)
		}
		defer h.end()
		next := caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
			body, err := io.ReadAll(r.Body)
			_, _ = fmt.Fprintf(w, "%s %v", body, err)
			return nil
		})
		server := &http.Server{ReadTimeout: 400 * time.Millisecond, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := h.outer.ServeHTTP(w, caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, nil), next); err != nil {
				t.Error(err)
			}
		})}
		listener := make(pipes)
		go func() { _ = server.Serve(listener) }()
		defer server.Close()
		began := time.Now()
		for n := range 3 {
			conn, end := net.Pipe()
			listener <- end
			const body = `{"user":"alice"}`
			fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: example.com\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			r := caddytest.ReadResponse(t, bufio.NewReader(conn))
			if r.Want(t, 200); r.Text != body+" <nil>" {
				t.Errorf("the application received %s", r.Text)
			}
			if took := time.Since(began); took != time.Duration(n)*time.Second {
				t.Errorf("request %d ended after %v", n+1, took)
			}
			_ = conn.Close()
		}
	})
}
