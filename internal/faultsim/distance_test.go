package faultsim

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/faultsim/simredis"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// A near Redis gets few and large messages, however busy it is. A far one gets a message at least every quarter of a
// millisecond, so that no request waits for long. A Redis that moves is known after seconds.
func TestDistance(t *testing.T) {
	const near, far, veryFar = 200 * time.Microsecond, 10 * time.Millisecond, 100 * time.Millisecond
	for _, test := range []struct {
		name     string
		distance []time.Duration // there and back; one phase each
		callers  int
		busy     bool // while the distance is learned, too
		batch    int  // see redisstore.Options
		perKey   time.Duration
		// At the end of each phase
		takes  []float64 // wanted takes a millisecond, at least
		shared []float64 // wanted takes a message, at least
	}{
		{"near and busy", []time.Duration{near}, 64, true, 0, 50 * time.Microsecond, []float64{18}, []float64{18}},
		{"far", []time.Duration{far}, 100, false, 0, 0, []float64{9.2}, []float64{2}},
		{"very far", []time.Duration{veryFar}, 100, false, 0, 0, []float64{0.95}, []float64{1}},
		{"each its own call", []time.Duration{near}, 64, false, -1, 50 * time.Microsecond, []float64{14}, []float64{1}},
		{"goes away and comes back", []time.Duration{near, far, near}, 64, false, 0, 50 * time.Microsecond, []float64{18, 5.8, 18}, []float64{18, 1, 18}},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, 0, func(t *testing.T) {
				network := simredis.NewNetwork()
				server := network.NewServer("10.0.0.1:6379")
				server.SetScriptTime(20*time.Microsecond, test.perKey)
				client := network.NewClient(0)
				var messages, takes atomic.Int64
				s, err := redisstore.New(redisstore.Options{Address: server.Address(), Timeout: 10 * veryFar, Batch: test.batch, Dialer: client}, redisstore.Hooks{
					RoundTrip: func(_ time.Duration, requests int) {
						messages.Add(1)
						takes.Add(int64(requests))
					},
				})
				errtest.None(t, err)
				limits := storetest.Limits(t, "z", algorithms.Quota{Algorithm: "gcra", Events: 1_000_000, Window: 1_000_000})
				var ended, busy atomic.Bool
				var callers sync.WaitGroup
				call := func(n int) {
					key, r := fmt.Sprint(n), rand.New(rand.NewPCG(uint64(n), 0))
					for !ended.Load() {
						pause := 100 * time.Millisecond
						if busy.Load() {
							pause = time.Millisecond
						}
						time.Sleep(span(r, 0, pause)) // in simulated time
						if _, err := s.Take(t.Context(), []store.ZoneRequest{{Zone: "z", Key: key, Cost: 1, Limits: limits}}); err != nil {
							t.Errorf("%v", err)
							return
						}
					}
				}
				for phase, distance := range test.distance {
					client.SetDelay(distance/2, distance/2)
					busy.Store(test.busy)
					if phase == 0 {
						for n := range test.callers {
							callers.Go(func() { call(n) })
						}
					}
					const learned, watched = 2200 * time.Millisecond, 300 * time.Millisecond
					time.Sleep(learned) // in simulated time
					busy.Store(true)
					time.Sleep(watched) // in simulated time, until all are busy
					m, n := messages.Load(), takes.Load()
					time.Sleep(watched) // in simulated time
					m, n = messages.Load()-m, takes.Load()-n
					perMillisecond, shared := float64(n)/float64(watched.Milliseconds()), float64(n)/float64(m)
					t.Logf("%v away: %.2f takes a millisecond, %.1f takes a message", distance, perMillisecond, shared)
					if perMillisecond < test.takes[phase] || shared < test.shared[phase] {
						t.Errorf("%v away: %.2f takes a millisecond, %.1f takes a message, want %v and %v",
							distance, perMillisecond, shared, test.takes[phase], test.shared[phase])
					}
				}
				ended.Store(true)
				callers.Wait()
				_ = s.Close()
				network.CloseAll()
				time.Sleep(time.Second) // in simulated time
			})
		})
	}
}
