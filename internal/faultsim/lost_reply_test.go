package faultsim

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/faultsim/simredis"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// traffic is a stream of takes with a key each, with on_store_error local.
type traffic struct {
	network *simredis.Network
	server  *simredis.Server
	redis   redisstore.Redis

	lost atomic.Int64 // takes in messages whose replies were lost
	lose atomic.Int64 // how many further replies are lost

	mu                    sync.Mutex
	local                 int64 // takes that the local budgets decided
	longest, longestLocal time.Duration
	failed                error
}

// newTraffic returns traffic to a Redis at a distance: the time there and back.
func newTraffic(t *testing.T, distance, timeout time.Duration, batch int) *traffic {
	tr := &traffic{network: simredis.NewNetwork()}
	tr.server = tr.network.NewServer("10.0.0.1:6379")
	o := redisstore.Options{Address: tr.server.Address(), Timeout: timeout, Batch: batch, Dialer: tr.network.NewClient(distance / 2)}
	var err error
	tr.redis, err = redisstore.Open(o, redisstore.Hooks{})
	errtest.None(t, err)
	tr.server.SetTrouble(func(args []string) simredis.Trouble {
		takes, err := strconv.ParseInt(args[2], 10, 64)
		errtest.Report(t, err)
		if tr.lose.Load() == 0 {
			return simredis.Trouble{}
		}
		tr.lose.Add(-1)
		tr.lost.Add(takes)
		return simredis.Trouble{Lost: simredis.Silent}
	})
	return tr
}

// run sends 600 takes a second until do has returned, and waits for their ends.
func (tr *traffic) run(t *testing.T, do func()) {
	limit := store.NewLimit("z", "", must(algorithms.NewLimit(algorithms.Quota{Algorithm: "fixed_window", Events: 1, Window: forever})))
	failover := store.NewFailover(tr.redis, store.NewMemory(100_000), func(error) {})
	var ended atomic.Bool
	var all sync.WaitGroup
	all.Go(func() {
		for n := 0; !ended.Load(); n++ {
			all.Go(func() {
				r := []store.ZoneRequest{{Zone: "z", Key: fmt.Sprint(n), Cost: 1, Limits: []store.Limit{limit}}}
				began := time.Now()
				allowed, err := failover.Take(t.Context(), r)
				if err == nil && !allowed {
					err = fmt.Errorf("the first take of key %d is denied", n)
				}
				tr.record(r[0].Outcome.Local, err, time.Since(began))
			})
			time.Sleep(time.Second / 600) // in virtual time
		}
	})
	do()
	ended.Store(true)
	all.Wait()
	_ = tr.redis.Close()
	tr.network.CloseAll()
	time.Sleep(time.Second) // in virtual time
}

func (tr *traffic) record(local bool, err error, waited time.Duration) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if local {
		tr.local++
		tr.longestLocal = max(tr.longestLocal, waited)
	} else if tr.longest = max(tr.longest, waited); err != nil {
		tr.failed = err
	}
}

// forgetWaits forgets how long takes have waited.
func (tr *traffic) forgetWaits() {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.longest, tr.longestLocal = 0, 0
}

// A lost reply fails the takes of its message alone, if the message corrects nothing. All others wait for a moment, then
// all is as before, also for the rest of the timeout.
func TestLostReplies(t *testing.T) {
	for _, distance := range []time.Duration{
		100 * time.Microsecond, 2 * time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond,
	} {
		for _, timeout := range []time.Duration{
			50 * time.Millisecond, 500 * time.Millisecond, 10 * time.Second,
		} {
			if timeout < 5*distance {
				continue
			}
			t.Run(fmt.Sprint(distance, " away, timeout ", timeout), func(t *testing.T) {
				const inARow = 2
				inBubble(t, 0, func(t *testing.T) {
					tr := newTraffic(t, distance, timeout, 0)
					tr.run(t, func() {
						time.Sleep(500*time.Millisecond + 10*distance) // in virtual time
						tr.forgetWaits()                               // for the first connections
						for _, loses := range []int64{1, inARow} {
							tr.lose.Store(loses)
							time.Sleep(500 * time.Millisecond) // in virtual time
						}
					})
					t.Logf("%d takes of lost messages, %d decided locally; the others waited for %v at most", tr.lost.Load(), tr.local, tr.longest)
					if tr.failed != nil || tr.local != tr.lost.Load() {
						t.Errorf("%d takes were lost, and local budgets decided %d; error %v", tr.lost.Load(), tr.local, tr.failed)
					}
					if most := inARow*25*time.Millisecond + 4*distance; tr.longest > most {
						t.Errorf("others waited for %v, want %v at most", tr.longest, most)
					}
				})
			})
		}
	}
}

// A Redis that stalls gets a bounded number of messages at a time, and no take is shed.
func TestStalledRedis(t *testing.T) {
	const (
		timeout = 5 * time.Second
		most    = 32 // messages in flight, as redis.md says
	)
	pauses := func(tr *traffic) { freeze(tr.server, 900*time.Millisecond) }
	hangs := func(tr *traffic) { freeze(tr.server, timeout+time.Second) }
	for _, test := range []struct {
		name    string
		batch   int // see redisstore.Options
		do      func(tr *traffic)
		local   bool          // local budgets decide some of the takes
		longest time.Duration // wanted at most
	}{
		{"pauses", 0, pauses, false, 910 * time.Millisecond},
		{"pauses, batch 0", -1, pauses, false, 910 * time.Millisecond},
		{"gets little time", 0, func(tr *traffic) {
			for range 20 {
				freeze(tr.server, 90*time.Millisecond)
				time.Sleep(10 * time.Millisecond) // in virtual time
			}
		}, false, 100 * time.Millisecond},
		{"hangs", 0, hangs, true, 2 * timeout},
		{"hangs, batch 0", -1, hangs, true, 2 * timeout},
		{"loses replies", 0, func(tr *traffic) {
			for range most + 8 {
				tr.lose.Store(1)
				time.Sleep(70 * time.Millisecond) // in virtual time
			}
		}, true, 2*timeout + 10*time.Millisecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, 0, func(t *testing.T) {
				tr := newTraffic(t, 200*time.Microsecond, timeout, test.batch)
				inFlight := 0
				tr.run(t, func() {
					time.Sleep(time.Second) // in virtual time
					ended := make(chan bool)
					go func() { test.do(tr); close(ended) }()
					for over := false; !over; {
						select {
						case <-ended:
							over = true
						case <-time.After(10 * time.Millisecond): // in virtual time
						}
						inFlight = max(inFlight, tr.redis.Stats().InUse)
					}
					time.Sleep(time.Second) // in virtual time
				})
				t.Logf("local budgets decided %d takes in %v at most; the others waited for %v at most", tr.local, tr.longestLocal, tr.longest)
				if inFlight > most {
					t.Errorf("%d messages were in flight, want %d at most", inFlight, most)
				}
				if tr.failed != nil || (tr.local > 0) != test.local || max(tr.longest, tr.longestLocal) > test.longest {
					t.Errorf("local budgets decided %d takes in %v at most, want %v and %v; the others waited for %v; error %v",
						tr.local, tr.longestLocal, test.local, test.longest, tr.longest, tr.failed)
				}
			})
		})
	}
}
