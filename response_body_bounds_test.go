package ratelimit

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/racetest"
)

// bodyHandler returns a handler with a zone that settles by the tokens in a JSON body.
func bodyHandler(t testing.TB) *Handler {
	t.Helper()
	return loadHandler(t, `"api":{"limits":[{"algorithm":"fixed_window","events":1000000,"window":"1h"}],"cost":10,
		"settle":{"cost":"{http.rate_limit.response.json.usage.total_tokens}"}}`)
}

// serveBody lets a handler pass a request on.
func serveBody(t testing.TB, h *Handler, w http.ResponseWriter, r *http.Request, next caddyhttp.HandlerFunc) {
	t.Helper()
	errtest.None(t, h.ServeHTTP(w, caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, nil), next))
}

// discarding is a response writer that keeps nothing.
type discarding struct{ header http.Header }

func (d discarding) Header() http.Header       { return d.header }
func (discarding) Write(p []byte) (int, error) { return len(p), nil }
func (discarding) WriteHeader(int)             {}

// The bytes of a connection that becomes another protocol are not those of a response, so they are not read,
// and the charge stays.
func TestBytesOfOtherProtocols(t *testing.T) {
	t.Parallel()
	const zone = `{"limits":[{"algorithm":"fixed_window","events":1000,"window":"1h"}],"cost":10,"settle":{"cost":"{http.rate_limit.response.%s}"}}`
	h := loadHandler(t, fmt.Sprintf(`"bytes":`+zone+`,"json":`+zone, "bytes", "json.x"))
	hello := func(w http.ResponseWriter) error {
		w.Header().Set("Content-Type", "application/json")
		_, err := io.WriteString(w, `{"x":8}`)
		return err
	}
	hijack := func(w http.ResponseWriter) error {
		conn, _, err := http.NewResponseController(w).Hijack()
		if errors.Is(err, http.ErrNotSupported) {
			return hello(w)
		}
		return errors.Join(err, conn.Close())
	}
	recorder := httptest.NewRecorder()
	const read = "[[bytes refund 3 charge 0 leave false json refund 2 charge 0 leave false]]"
	for name, test := range map[string]struct {
		method string
		under  http.ResponseWriter
		answer func(http.ResponseWriter) error
		want   string
	}{
		"an answer":                           {"GET", recorder, hello, read},
		"a WebSocket over HTTP/2":             {"CONNECT", recorder, hello, "[]"},
		"a hijacked connection":               {"GET", hijackable{recorder}, hijack, "[]"},
		"a connection that can't be hijacked": {"GET", recorder, hijack, read},
	} {
		noted := &correcting{Store: h.limiter.Store}
		h.limiter.Store = noted
		r := httptest.NewRequest(test.method, "http://example.com/", nil)
		serveBody(t, h, test.under, r, func(w http.ResponseWriter, _ *http.Request) error { return test.answer(w) })
		if got := fmt.Sprint(noted.calls); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
		h.limiter.Store = noted.Store
	}
}

// hijackable is a response writer whose connection can be hijacked.
type hijackable struct{ *httptest.ResponseRecorder }

func (hijackable) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, other := net.Pipe()
	return conn, nil, other.Close()
}

// A body of any length takes little memory.
func TestBodyIsNotKept(t *testing.T) {
	if racetest.Enabled {
		t.Skip("the race detector allocates, too")
	}
	h := bodyHandler(t)
	piece := []byte(strings.Repeat("x", 1<<20))
	for kind, begin := range map[string]string{"application/json": `{"text":"`, "text/event-stream": "data: "} {
		for _, coding := range []string{"", "gzip", "zstd"} {
			r := httptest.NewRequest("POST", "/", nil)
			var before, after runtime.MemStats
			serveBody(t, h, discarding{make(http.Header)}, r, func(w http.ResponseWriter, _ *http.Request) error {
				w.Header().Set("Content-Type", kind)
				var to io.Writer = w
				if coding == "gzip" {
					w.Header().Set("Content-Encoding", coding)
					compressor, _ := gzip.NewWriterLevel(w, gzip.NoCompression)
					defer compressor.Close()
					to = compressor
				} else if coding == "zstd" {
					w.Header().Set("Content-Encoding", coding)
					compressor, _ := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20))
					defer compressor.Close()
					to = compressor
				}
				_, _ = io.WriteString(to, begin)
				_, _ = to.Write(piece)
				runtime.ReadMemStats(&before)
				for range 20 {
					_, _ = to.Write(piece)
				}
				runtime.ReadMemStats(&after)
				return nil
			})
			if grown := after.TotalAlloc - before.TotalAlloc; grown > 4<<20 { // the window of zstd is 1 MiB here
				t.Errorf("%s %q: 20 MiB of a body take %d bytes", kind, coding, grown)
			}
		}
	}
}

// A bubble of synctest fails if a goroutine is left, so nothing decodes when a response has ended. A handler may write
// to a response without a body, beyond the end of a body, and even when it has returned. The coding is gzip, because
// decoders of zstd have channels, which can't be shared with other bubbles.
func TestNothingDecodesAfterTheEnd(t *testing.T) {
	t.Parallel()
	h := bodyHandler(t)
	pieces := caddytest.Compress(t, "gzip", `{"usage":`, `{"total_tokens":35}}`)
	write := func(w http.ResponseWriter) {
		for _, piece := range pieces {
			_, _ = io.WriteString(w, piece)
		}
	}
	read := func(w http.ResponseWriter) {
		_, _ = w.(io.ReaderFrom).ReadFrom(strings.NewReader(strings.Join(pieces, "")))
	}
	hijack := func(w http.ResponseWriter) { _, _, _ = w.(http.Hijacker).Hijack() }
	abort := func(http.ResponseWriter) { panic(http.ErrAbortHandler) }
	type actions []func(http.ResponseWriter)
	for name, test := range map[string]struct {
		method, length string
		status         int // 0: none is written
		actions        actions
	}{
		"HEAD":                            {"HEAD", "", 0, actions{write}},
		"HEAD with a length":              {"HEAD", "1000", 200, actions{write}},
		"HEAD that is read":               {"HEAD", "", 200, actions{read}},
		"no content":                      {"GET", "", 204, actions{write, read}},
		"not modified":                    {"GET", "", 304, actions{write, read}},
		"early hints":                     {"GET", "", 103, actions{write}},
		"a body":                          {"GET", "", 0, actions{write}},
		"a body that is read":             {"GET", "", 200, actions{read}},
		"beyond the length":               {"GET", "1", 0, actions{write, read}},
		"beyond an empty body":            {"GET", "0", 200, actions{write}},
		"another protocol":                {"CONNECT", "", 200, actions{write}},
		"a connection that is taken":      {"GET", "", 0, actions{hijack, write}},
		"a connection that is taken late": {"GET", "", 0, actions{write, hijack, write}},
		"a panic":                         {"GET", "", 0, actions{write, abort}},
		"a panic after the header":        {"GET", "", 200, actions{abort}},
		"a panic before the header":       {"GET", "", 0, actions{abort}},
		"nothing":                         {"GET", "", 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var late http.ResponseWriter
				under := hijackable{httptest.NewRecorder()}
				r := caddyhttp.PrepareRequest(httptest.NewRequest(test.method, "/", nil), caddy.NewReplacer(), under, nil)
				func() {
					defer func() { _ = recover() }()
					_ = h.ServeHTTP(under, r, caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
						late = w
						w.Header().Set("Content-Type", "application/json")
						w.Header().Set("Content-Encoding", "gzip")
						if test.length != "" {
							w.Header().Set("Content-Length", test.length)
						}
						if test.status != 0 {
							w.WriteHeader(test.status)
						}
						for _, action := range test.actions {
							action(w)
						}
						return nil
					}))
				}()
				write(late)
				read(late)
			})
		})
	}
}

// A body that takes too much work to decode passes unchanged. The reserved cost stays, also if a value came before,
// because another value can follow it.
func TestCostlyBodies(t *testing.T) {
	t.Parallel()
	h := bodyHandler(t)
	usage := `{"usage":{"total_tokens":35},"x":"`
	frames := strings.Repeat("\x50\x2a\x4d\x18\x00\x00\x00\x00", 20_000)
	for _, test := range []struct {
		name, coding string
		pieces       []string
		want         string
	}{
		{"cheap", "gzip", caddytest.Compress(t, "gzip", usage, `"}`), "[[api refund 0 charge 25 leave false]]"},
		{"cheap", "zstd", caddytest.Compress(t, "zstd", usage, `"}`), "[[api refund 0 charge 25 leave false]]"},
		{"expands", "gzip", caddytest.Compress(t, "gzip", usage, strings.Repeat("x", 8<<20)), "[]"},
		{"expands", "zstd", caddytest.Compress(t, "zstd", usage, strings.Repeat("x", 8<<20)), "[]"},
		{"tiny frames before", "zstd", append([]string{frames}, caddytest.Compress(t, "zstd", usage, `"}`)...), "[]"},
		{"tiny frames after", "zstd", append(caddytest.Compress(t, "zstd", usage), frames), "[]"},
	} {
		noted := &correcting{Store: h.limiter.Store}
		h.limiter.Store = noted
		recorder := httptest.NewRecorder()
		serveBody(t, h, recorder, httptest.NewRequest("GET", "/", nil), func(w http.ResponseWriter, _ *http.Request) error {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Encoding", test.coding)
			for _, piece := range test.pieces {
				_, _ = io.WriteString(w, piece)
			}
			return nil
		})
		if got := fmt.Sprint(noted.calls); got != test.want {
			t.Errorf("%s, %s: %s, want %s", test.name, test.coding, got, test.want)
		}
		if recorder.Body.String() != strings.Join(test.pieces, "") {
			t.Errorf("%s, %s: %d bytes of another body arrive", test.name, test.coding, recorder.Body.Len())
		}
		h.limiter.Store = noted.Store
	}
}
