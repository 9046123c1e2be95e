package redisstore

import (
	"sync"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Calls sent alone, as after a redirect, end even if none gets a connection and they are more than
// may be in flight.
func TestAloneEnds(t *testing.T) {
	InBubble(t, func(t *testing.T) {
		const timeout = 50 * time.Millisecond
		s, err := New(Options{Address: "h:1", Timeout: timeout, Dialer: hangingDialer{}}, Hooks{})
		if err != nil {
			t.Fatal(err)
		}
		var takes sync.WaitGroup
		began := time.Now()
		for range 2 * maxInFlight {
			takes.Go(func() {
				c := s.newTakeCall(t.Context(), 0, []store.Request{{Zone: "z"}})
				if _, err := (hop{node: &node{Store: s}, deadline: time.Now().Add(timeout)}).sendAlone(t.Context(), c); err == nil {
					t.Error("a take succeeds without Redis")
				}
			})
		}
		takes.Wait() // or the bubble deadlocks
		if waited := time.Since(began); waited > 4*timeout {
			t.Errorf("they waited for %v", waited)
		}
		_ = s.Close()
	})
}
