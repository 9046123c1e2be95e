package redisstore_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Each message with a reply is one round trip, with the number of its requests. A message without a
// reply is none.
func TestRoundTripHook(t *testing.T) {
	server := redistest.Start(t)
	var mu sync.Mutex
	var trips []int
	s, err := redisstore.New(redisstore.Options{Address: server.Addr, Timeout: patient, DialTimeout: patient}, redisstore.Hooks{
		RoundTrip: func(took time.Duration, requests int) {
			mu.Lock()
			defer mu.Unlock()
			trips = append(trips, requests)
			if took <= 0 || took > patient {
				t.Errorf("a round trip took %v", took)
			}
		},
	})
	errtest.None(t, err)
	t.Cleanup(func() { _ = s.Close() })
	want := func(want ...int) {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		if fmt.Sprint(trips) != fmt.Sprint(want) {
			t.Errorf("round trips with %v requests, want %v", trips, want)
		}
		trips = nil
	}
	var zones []store.ZoneRequest // one request with several keys and all algorithms
	for n, q := range storetest.Quotas(10, 3_600_000_000_000) {
		zones = append(zones, store.ZoneRequest{Zone: "z", Key: fmt.Sprint(n), Cost: 1, Limits: []store.Limit{storetest.Limit(t, "z", q)}})
	}
	errtest.None(t, errtest.Of(s.Take(t.Context(), zones)))
	want(1) // Redis asked for the script, and got the message again
	var batch [][]store.ZoneRequest
	for n := range 5 {
		batch = append(batch, request(t, fmt.Sprint(n)))
	}
	redisstore.SendOneBatch(s, 0, batch)
	want(5)
	redisstore.SendSeparately(s, batch)
	want(5) // five messages in one round trip
	server.Kill(t)
	if _, err := s.Take(t.Context(), request(t, "a")); err == nil {
		t.Error("a Redis that has ended replies")
	}
	want()
}

// The numbers of a Redis follow its queue, its connections and its failures.
func TestStats(t *testing.T) {
	server := redistest.Start(t)
	o := redisstore.WithMaxInFlight(redisstore.Options{Address: server.Addr, Timeout: patient, DialTimeout: patient}, 1)
	s, err := redisstore.Open(o, redisstore.Hooks{})
	errtest.None(t, err)
	t.Cleanup(func() { _ = s.Close() })
	waitFor := func(want redisstore.Stats) {
		t.Helper()
		redistest.WaitFor(t, fmt.Sprintf("the numbers to be %+v", want), func() bool { return s.Stats() == want })
	}
	waitFor(redisstore.Stats{Servers: 1})
	errtest.None(t, errtest.Of(s.Take(t.Context(), request(t, "a"))))
	waitFor(redisstore.Stats{Servers: 1, Idle: 1})
	server.Freeze(t)
	var all sync.WaitGroup
	take := func(key string) { all.Go(func() { _, _ = s.Take(context.Background(), request(t, key)) }) }
	take("a")
	waitFor(redisstore.Stats{Servers: 1, InUse: 1}) // otherwise others could share its message
	for n := range 3 {
		take(fmt.Sprint(n))
	}
	waitFor(redisstore.Stats{Servers: 1, Queued: 3, InUse: 1})
	server.Thaw(t)
	all.Wait()
	waitFor(redisstore.Stats{Servers: 1, Idle: 1})
	server.Kill(t)
	redistest.WaitFor(t, "the Redis to fail", func() bool {
		_, _ = s.Take(t.Context(), request(t, "a"))
		return s.Stats().Failing == 1
	})
}
