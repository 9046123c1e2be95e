//go:build real

package redisstore_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// No request waits longer than MaxQueued and the timeout, whatever Redis does.
//
// Simulated: TestLongestWait.
func TestRealLongestWait(t *testing.T) {
	const timeout = 200 * time.Millisecond
	server := redistest.Start(t)
	s := open(t, redisstore.Options{Address: server.Addr, Timeout: timeout})
	var longest atomic.Int64
	stop := make(chan struct{})
	var all sync.WaitGroup
	for n := range 500 {
		all.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				began := time.Now()
				r := []store.ZoneRequest{endless(t, fmt.Sprint(n%50))}
				if allowed, err := s.Take(context.Background(), r); allowed && err == nil && i%3 == 0 {
					s.Correct([]store.Correction{{Request: &r[0], Refund: 1}}, nil)
				}
				for waited := time.Since(began).Nanoseconds(); ; {
					if known := longest.Load(); waited <= known || longest.CompareAndSwap(known, waited) {
						break
					}
				}
			}
		})
	}
	for range 6 {
		time.Sleep(200 * time.Millisecond) // Redis works for a while,
		server.Freeze(t)
		time.Sleep(350 * time.Millisecond) // and is silent for longer than the timeout
		server.Thaw(t)
	}
	close(stop)
	all.Wait()
	if waited := time.Duration(longest.Load()); waited > redisstore.MaxQueued+timeout+slack {
		t.Errorf("one waited for %v", waited)
	} else {
		t.Logf("the longest wait was %v", waited)
	}
}

// endless returns a request that is always allowed and charged.
func endless(t testing.TB, key string) store.ZoneRequest {
	limit := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "gcra", Events: 1_000_000, Window: 1_000_000})
	return store.ZoneRequest{Zone: "z", Key: key, Cost: 1, Limits: []store.Limit{limit}}
}
