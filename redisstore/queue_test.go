package redisstore_test

import (
	"io"
	"net"
	"sync/atomic"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
)

// A correction that was certainly never sent is sent later. A correction that may have run is not
// repeated.
func TestGiveBackNeverSent(t *testing.T) {
	server := redistest.Start(t)
	down := make(chan struct{})
	var denied, opened, closed atomic.Int64
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { // the first connection is closed before anything was sent on it
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			select {
			case <-down:
				if denied.Add(1) == 1 {
					_ = near.Close()
					continue
				}
			default:
			}
			if far, err := net.Dial("tcp", server.Addr); err == nil {
				opened.Add(1)
				for to, from := range map[net.Conn]net.Conn{far: near, near: far} {
					go func() {
						_, _ = io.Copy(to, from)
						_ = to.Close()
						closed.Add(1)
					}()
				}
			}
		}
	}()
	s := open(t, redisstore.Options{Address: l.Addr().String()})
	r := request(t, "k")
	if _, err := s.Take(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	close(down)
	server.Client.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	redistest.WaitFor(t, "the end of the connection in both directions", func() bool { return closed.Load() == 2*opened.Load() })
	calls := server.Calls(t, "evalsha")
	if err := refund(s, r, 1); err != nil {
		t.Errorf("the give-back failed: %v", err)
	}
	if n := server.Calls(t, "evalsha") - calls; n != 1 || denied.Load() < 2 {
		t.Errorf("%d calls after %d connections, want 1 after 2", n, denied.Load())
	}
	if _, err := s.Take(t.Context(), r); err != nil || r[0].Outcome.Decisions[0].Remaining != 9 {
		t.Errorf("error %v, %+v, want 9 remaining", err, r[0].Outcome.Decisions)
	}
}
