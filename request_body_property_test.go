package ratelimit

import (
	"bufio"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/bodies"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// slowBodies sends the beginnings of many bodies, and returns when the server has read all of them.
// It returns the connections.
func slowBodies(tb testing.TB, address string, n int, beginning string) (conns []*bufio.Reader) {
	tb.Helper()
	c := &caddytest.Caddy{Site: address}
	for range n {
		conn := c.SendRaw(tb, "POST / HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n\r\n"+beginning)
		_ = conn.SetDeadline(time.Now().Add(5 * caddytest.Patient))
		conns = append(conns, bufio.NewReaderSize(conn, 16))
	}
	return conns
}

// Any number of slow bodies takes at most the memory for bodies together. Further bodies are denied with
// status 503.
func TestSlowBodies(t *testing.T) {
	const n, beginning, size = 2500, 30_000, 64 << 20
	h := loadHandler(t, `"z":{"key":"{http.rate_limit.request.json.user}","body_timeout":"10m","limits":[{"algorithm":"fixed_window","events":3,"window":"1h"}]}`)
	h.limiter.BodyMemory = bodies.NewMemory()
	address := serveInProcess(t, h, func(http.ResponseWriter, *http.Request) error { return nil })
	before := heapInUse()
	conns := slowBodies(t, address, n, strings.Repeat(" ", beginning))
	denied := make(chan int, n)
	for _, from := range conns {
		go func() {
			if r, err := http.ReadResponse(from, nil); err == nil && r.StatusCode == 503 && r.Header.Get("Retry-After") == "1" {
				denied <- 1
			}
		}()
	}
	// A body of 30,000 bytes has a buffer of 32 kB, and needs 16 kB more while it grows.
	for range n - size/(32<<10) {
		select {
		case <-denied:
		case <-time.After(caddytest.Patient): // the deadline of a test that fails
			t.Fatalf("%d are denied, and %d bytes are taken", len(denied), h.limiter.BodyMemory.Bodies.Used())
		}
		if used := h.limiter.BodyMemory.Bodies.Used(); used > size {
			t.Fatalf("%d bytes are taken", used)
		}
	}
	grown := heapInUse() - before
	t.Logf("%d bodies take %d bytes, and the heap has grown by %d, with the connections", n, h.limiter.BodyMemory.Bodies.Used(), grown)
	if used := h.limiter.BodyMemory.Bodies.Used(); used < size/2 {
		t.Errorf("only %d bytes are taken", used)
	}
	if most := int64(size + n*30_000); grown > most { // a connection has about 20 kB of its own, on both sides
		t.Errorf("the heap has grown by %d bytes, want at most %d", grown, most)
	}
}

// heapInUse returns how many bytes of the heap are reachable.
func heapInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
