package redisstore

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Calls sent alone, as after a redirect, end even if none gets a connection and they are more than
// may be in flight.
func TestAloneEnds(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	s, err := New(Options{Address: silent.Addr().String(), Timeout: 50 * time.Millisecond}, Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var takes sync.WaitGroup
	for range 2 * maxInFlight {
		takes.Go(func() {
			c := s.newTakeCall(context.Background(), 0, []store.Request{{Zone: "z"}})
			if err := s.sendAlone(c, time.Now().Add(50*time.Millisecond)); err == nil {
				t.Error("a take succeeds without Redis")
			}
		})
	}
	ended := make(chan struct{})
	go func() { takes.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(time.Minute): // long enough on a busy machine
		s.queue.mu.Lock()
		defer s.queue.mu.Unlock()
		t.Fatalf("takes go on for ever: %d messages in flight, %d calls queued", len(s.queue.inFlight), len(s.queue.calls))
	}
}
