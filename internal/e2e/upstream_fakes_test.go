package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
)

// gate is an upstream whose requests to /hold end when they are let through, or when
// their client disconnects.
type gate struct {
	address  string
	pass     chan struct{}
	mu       sync.Mutex
	inFlight int
}

func startGate(t *testing.T) *gate {
	t.Helper()
	g := &gate{pass: make(chan struct{})}
	g.address = caddytest.StartUpstream(t, g.ServeHTTP)
	return g
}

func (g *gate) came(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inFlight += n
}

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.came(1)
	defer g.came(-1)
	switch {
	case r.Header.Get("Upgrade") != "":
		conn, stream, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprintf(stream, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", r.Header.Get("Upgrade"))
		_ = stream.Flush()
		_, _ = io.Copy(conn, stream)
	case r.URL.Path == "/hold":
		select {
		case <-g.pass:
		case <-r.Context().Done():
		}
	}
}

// wait waits until so many requests are in flight.
func (g *gate) wait(t *testing.T, n int) {
	t.Helper()
	caddytest.EventuallySees(t, fmt.Sprint(n, " are in flight"), func() int {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.inFlight
	}, func(inFlight int) bool { return inFlight == n })
}

// upgrade opens a connection that becomes another protocol, whose other end repeats each line. The test
// closes it at its end, if it has not done so before.
func upgrade(t *testing.T, c *caddytest.Caddy) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", c.Site)
	errtest.None(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhello\n", c.Site)
	answer := bufio.NewReader(conn)
	for line := ""; line != "hello\n"; {
		line, err = answer.ReadString('\n')
		errtest.None(t, err)
	}
	return conn
}
