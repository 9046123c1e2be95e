package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// The upstreams of the tests: talker streams what a test says, gate keeps requests until a test
// lets them pass, and answering answers as the query of a request says.

// talker is an upstream that speaks HTTP/1.1 and HTTP/2 without TLS. The test sends the texts of a
// stream, piece by piece.
type talker struct {
	address string
	mu      sync.Mutex
	streams map[string]*stream
}

// stream is one answer that goes on, of the request with the query parameter key.
type stream struct {
	say  chan string   // what the upstream says next; die: its end without an end; closed: its end
	over chan struct{} // closed when the upstream has no more to do with it
}

func startTalker(t *testing.T) *talker {
	t.Helper()
	u := &talker{streams: make(map[string]*stream)}
	s := httptest.NewUnstartedServer(u)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	t.Cleanup(s.CloseClientConnections) // first
	u.address = s.Listener.Addr().String()
	return u
}

func (u *talker) stream(key string) *stream {
	u.mu.Lock()
	defer u.mu.Unlock()
	s := u.streams[key]
	if s == nil {
		s = &stream{say: make(chan string), over: make(chan struct{})}
		u.streams[key] = s
	}
	return s
}

func (u *talker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q, control := r.URL.Query(), http.NewResponseController(w)
	if q.Has("early") {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
	}
	if q.Has("tokens") {
		w.Header().Set("X-Tokens", q.Get("tokens"))
	}
	if q.Has("trailer") {
		w.Header().Set("Trailer", "X-Tokens")
		defer w.Header().Set("X-Tokens", q.Get("trailer"))
	}
	w.Header().Set("Upstream-Protocol", r.Proto)
	switch r.URL.Path {
	case "/events":
		s := u.stream(q.Get("key"))
		defer close(s.over)
		w.Header().Set("Content-Type", "text/event-stream")
		_ = control.Flush()
		for {
			select {
			case text, more := <-s.say:
				if text == "die" {
					panic(http.ErrAbortHandler)
				}
				if !more {
					return
				}
				fmt.Fprintf(w, "data: %s\n\n", text)
				_ = control.Flush()
			case <-r.Context().Done():
				return
			}
		}
	case "/socket":
		s := u.stream(q.Get("key"))
		defer close(s.over)
		conn, err := caddytest.AcceptWebSocket(w, r)
		if err != nil {
			return
		}
		defer conn.Conn.Close()
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			for err == nil {
				_, err = conn.Read()
			}
		}()
		for {
			select {
			case text, more := <-s.say:
				switch {
				case text == "die":
					return
				case !more:
					_ = conn.WriteFrame(caddytest.CloseFrame, "")
					<-gone
					return
				}
				if conn.Write(text) != nil {
					return
				}
			case <-gone:
				return
			}
		}
	case "/socket/echo":
		conn, err := caddytest.AcceptWebSocket(w, r)
		if err != nil {
			return
		}
		defer conn.Conn.Close()
		for {
			message, err := conn.Read()
			if err != nil || conn.Write(message) != nil {
				return
			}
		}
	case "/echo": // while the request still comes
		_ = control.Flush()
		for piece := make([]byte, 1024); ; {
			n, err := r.Body.Read(piece)
			_, _ = w.Write(piece[:n])
			_ = control.Flush()
			if err != nil {
				return
			}
		}
	case "/large":
		_, _ = w.Write(caddytest.LargeBody)
	}
}

// line reads a line of a stream.
func line(t *testing.T, stream *bufio.Reader) string {
	t.Helper()
	type read struct {
		line string
		err  error
	}
	came := make(chan read, 1)
	go func() {
		text, err := stream.ReadString('\n')
		came <- read{text, err}
	}()
	select {
	case r := <-came:
		if r.err != nil {
			t.Fatalf("instead of a line came %q, %v", r.line, r.err)
		}
		return strings.TrimSuffix(r.line, "\n")
	case <-time.After(caddytest.Patient): // a bound, which only a failure reaches
		t.Fatal("what the upstream has sent did not arrive")
	}
	return ""
}

// tell has the upstream say something.
func (s *stream) tell(t *testing.T, text string) {
	t.Helper()
	select {
	case s.say <- text:
	case <-s.over:
		t.Fatal("the stream has ended at the upstream")
	case <-time.After(caddytest.Patient): // a bound, which only a failure reaches
		t.Fatal("the upstream does not listen")
	}
}

// gate is an upstream whose requests to /hold end when they are let through, or when
// their client leaves.
type gate struct {
	address  string
	pass     chan struct{}
	mu       sync.Mutex
	inFlight int
	most     int
}

func startGate(t *testing.T) *gate {
	t.Helper()
	g := &gate{pass: make(chan struct{})}
	s := httptest.NewServer(g)
	t.Cleanup(s.Close)
	t.Cleanup(s.CloseClientConnections) // first
	g.address = s.Listener.Addr().String()
	return g
}

func (g *gate) came(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inFlight += n
	g.most = max(g.most, g.inFlight)
}

// forgetMost returns how many requests were in flight at once, and begins to count again.
func (g *gate) forgetMost() (most int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	most, g.most = g.most, g.inFlight
	return most
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
	case r.URL.Path == "/short":
		time.Sleep(5 * time.Millisecond) // so requests overlap
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

// answering is an upstream that answers as the query of a request says.
func answering(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if r.Header.Get("Upgrade") != "" {
			conn, stream, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			fmt.Fprintf(stream, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\nX-Tokens: %s\r\n\r\n", r.Header.Get("Upgrade"), q.Get("tokens"))
			_ = stream.Flush()
			line, _ := stream.ReadString('\n')
			fmt.Fprintf(stream, "you said %s", line)
			_ = stream.Flush()
			return
		}
		if q.Has("early") {
			w.Header().Set("X-Tokens", "1000")
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Del("X-Tokens")
		}
		if q.Has("tokens") {
			w.Header().Set("X-Tokens", q.Get("tokens"))
		}
		if q.Has("trailer") {
			w.Header().Set("Trailer", "X-Tokens")
		}
		status, _ := strconv.Atoi(q.Get("status"))
		w.WriteHeader(max(status, 200))
		_, _ = io.WriteString(w, "data: begins\n\n")
		if q.Has("stream") {
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
			case <-time.After(caddytest.Patient): // a bound, if the client never leaves
			}
		}
		if q.Has("abort") {
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		if q.Has("trailer") {
			w.Header().Set("X-Tokens", q.Get("trailer"))
		}
	}))
	s.Config.ErrorLog = nil
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}
