package relay

import (
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
)

// connect connects through a relay to an echo server.
func connect(t *testing.T) (*Relay, net.Conn) {
	t.Helper()
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	errtest.None(t, err)
	t.Cleanup(func() { _ = echo.Close() })
	go func() {
		for {
			conn, err := echo.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	r, err := Start(echo.Addr().String())
	errtest.None(t, err)
	t.Cleanup(func() { _ = r.Close() })
	conn, err := net.Dial("tcp", r.Addr)
	errtest.None(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	return r, conn
}

func send(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	errtest.None(t, errtest.Of(io.WriteString(conn, text)))
}

// want reads a text from a connection.
func want(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	got := make([]byte, len(text))
	if n, err := io.ReadFull(conn, got); err != nil || string(got) != text {
		t.Fatalf("read %q, %v, want %q", got[:n], err, text)
	}
}

// connectPipes connects through a relay to an echo server, in simulated time.
func connectPipes(t *testing.T) (*Relay, net.Conn) {
	t.Helper()
	r := newRelay()
	client, near := net.Pipe()
	far, echo := net.Pipe()
	r.relay(near, far)
	go func() {
		_, _ = io.Copy(echo, echo)
		_ = echo.Close()
	}()
	t.Cleanup(func() {
		_ = client.Close()
		_ = echo.Close()
		r.Set(Fault{}, Fault{})
	})
	return r, client
}

// All bytes arrive in order, and not before their delay.
func TestPasses(t *testing.T) {
	const text = "0123456789"
	for name, test := range map[string]struct {
		up, down    Fault
		least, most time.Duration
	}{
		"as they come":       {},
		"late, there":        {up: Fault{Delay: 50 * time.Millisecond}, least: 50 * time.Millisecond, most: 50 * time.Millisecond},
		"late, and back":     {Fault{Delay: 25 * time.Millisecond}, Fault{Delay: 25 * time.Millisecond}, 50 * time.Millisecond, 50 * time.Millisecond},
		"late, not the same": {down: Fault{Delay: 50 * time.Millisecond, Jitter: 10 * time.Millisecond}, least: 40 * time.Millisecond, most: 60 * time.Millisecond},
		"in pieces":          {up: Fault{Piece: 3}, down: Fault{Piece: 1}},
		"slowly":             {down: Fault{Rate: 2000}, least: 500 * time.Millisecond, most: 500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, conn := connectPipes(t)
				r.Set(test.up, test.down)
				began := time.Now()
				go func() {
					for range 100 {
						send(t, conn, text)
					}
				}()
				want(t, conn, strings.Repeat(text, 100))
				if took := time.Since(began); took < test.least || took > test.most {
					t.Errorf("it took %v, want %v to %v", took, test.least, test.most)
				}
			})
		})
	}
}

// The delays of consecutive bytes overlap.
func TestDelaysAreNotAdded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, conn := connectPipes(t)
		r.Set(Fault{Delay: 500 * time.Millisecond}, Fault{})
		began := time.Now()
		for range 20 {
			send(t, conn, "0123456789")
			time.Sleep(time.Millisecond) // simulated: the pieces come one after the other
		}
		want(t, conn, strings.Repeat("0123456789", 20))
		if took := time.Since(began); took != 519*time.Millisecond {
			t.Errorf("20 pieces took %v, want 519ms", took)
		}
	})
}

// A new setting applies to bytes that wait already, too.
func TestSetEndsWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, conn := connectPipes(t)
		r.Set(Fault{}, Fault{Delay: time.Hour})
		send(t, conn, "hello")
		time.Sleep(time.Second) // simulated: the reply comes to the relay, which holds it back
		began := time.Now()
		r.Set(Fault{}, Fault{})
		if want(t, conn, "hello"); time.Since(began) > 0 {
			t.Errorf("it came after %v", time.Since(began))
		}
	})
}

// A fault that ends a connection ends it on both sides.
func TestEnds(t *testing.T) {
	for name, test := range map[string]struct {
		up, down Fault
		arrives  string
		err      error
	}{
		"limit":        {down: Fault{Limit: 3, Piece: 2}, arrives: "hel", err: io.EOF},
		"limit there":  {up: Fault{Limit: 3}, down: Fault{Delay: time.Minute}, err: io.EOF}, // the echo doesn't come before the end
		"reset":        {down: Fault{Reset: true, Delay: time.Millisecond}, err: syscall.ECONNRESET},
		"reset there":  {up: Fault{Reset: true}, err: syscall.ECONNRESET},
		"silent":       {down: Fault{Silent: true}, err: io.EOF},
		"silent there": {up: Fault{Silent: true}, err: io.EOF},
	} {
		t.Run(name, func(t *testing.T) {
			r, conn := connect(t)
			send(t, conn, "before")
			want(t, conn, "before")
			r.Set(test.up, test.down)
			send(t, conn, "hello")
			want(t, conn, test.arrives)
			if test.up.Silent || test.down.Silent {
				for r.Silenced() == 0 {
					time.Sleep(time.Millisecond) // a poll
				}
				r.Set(Fault{}, Fault{})
			}
			if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, test.err) {
				t.Errorf("read %d bytes, %v, want %v", n, err, test.err)
			}
		})
	}
}
