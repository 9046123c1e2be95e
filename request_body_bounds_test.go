package ratelimit

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// serveInProcess starts a server with a handler in this process, which shares bodyMemory.
func serveInProcess(tb testing.TB, h *Handler, next caddyhttp.HandlerFunc) (address string) {
	tb.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, nil)
		if err := h.ServeHTTP(w, r, next); err != nil {
			w.WriteHeader(500)
		}
	}))
	tb.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// A value has at most 16 KiB, because reading it takes several times its size. Other values have no bound.
func TestLongValue(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, site("zone z {\n"+accountKey+"max_body 1MiB\nfixed_window 100 1h\n}"))
	for length, status := range map[int]int{16 << 10: 200, 16<<10 + 1: 413} {
		long, longest := strings.Repeat("x", length), strings.Repeat("x", 500_000)
		c.post(t, "/", jsonType, `{"other":"`+longest+`","user":{"name":"`+long+`"}}`).want(t, status)
		c.post(t, "/", formType, "other="+longest+"&user="+long).want(t, status)
		c.post(t, "/", "multipart/form-data; boundary=b", "--b\r\nContent-Disposition: form-data; name=user\r\n\r\n"+long+"\r\n--b--").want(t, status)
	}
	c.post(t, "/", jsonType, `{"user":{"name":"`+strings.Repeat("\xff", 6000)+`"}}`).want(t, 413) // each becomes three bytes
}

// The memory of bodies is given back however a request ends, and no later than the next handler has
// read the body.
func TestBodyMemoryIsGivenBack(t *testing.T) {
	h := loadHandler(t, `"z":{"key":"{http.rate_limit.request.json.user}","limits":[{"algorithm":"fixed_window","events":3,"window":"1h"}]}`)
	body := `{"user":"alice"}`
	h.ReturnErrors = true
	address := serveInProcess(t, h, func(w http.ResponseWriter, r *http.Request) error {
		if used := bodyMemory.Used(); used < int64(len(body)) {
			t.Errorf("%d bytes taken while the body is kept", used)
		}
		switch r.URL.Path {
		case "/panic":
			panic(http.ErrAbortHandler)
		case "/read":
			if got, err := io.ReadAll(r.Body); string(got) != body || err != nil {
				t.Errorf("read %q %v", got, err)
			}
			if used := bodyMemory.Used(); used > int64(len("alice")) {
				t.Errorf("%d bytes taken after the body is read", used)
			}
		case "/error":
			return caddyhttp.Error(502, nil)
		}
		return nil
	})
	given := func() bool { return bodyMemory.Used() == 0 }
	for _, path := range []string{"/panic", "/read", "/error", "/denied"} {
		if r, err := client.Post("http://"+address+path, jsonType, strings.NewReader(body)); err == nil {
			_ = r.Body.Close()
		}
		eventually(t, "the memory is given back after "+path, given)
	}
	for range 10 { // a client that leaves
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n%500d", 1)
		eventually(t, "the body is being read", func() bool { return bodyMemory.Used() >= 500 })
		_ = conn.Close()
		eventually(t, "the memory is given back after the client has left", given)
	}
}
