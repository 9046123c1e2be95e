//go:build real

package redisstore_test

import (
	"cmp"
	"context"
	"errors"
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

// With Redis near and healthy, far more requests than this process can send wait, and none fails.
// There are several tries, because a machine can be busy with other tests.
//
// Simulated: TestSaturatedRedis.
func TestRealSaturated(t *testing.T) {
	server := redistest.Start(t)
	for try := range 5 {
		done, failed, busy, first := saturate(t, server)
		t.Logf("%d requests, %d failed, %d were shed; the first error is %v", done, failed, busy, first)
		if failed == 0 && busy*10 < done {
			return
		}
		if try == 4 {
			t.Error("requests fail although Redis works")
		}
	}
}

func saturate(t *testing.T, server *redistest.Server) (done, failed, busy int64, first error) {
	s := open(t, redisstore.Options{Address: server.Addr, Timeout: 500 * time.Millisecond})
	b := store.NewBreaker(s, nil)
	defer b.Close()
	c := store.NewDenyCache(b)
	const callers = 4000
	stop := time.Now().Add(time.Second)
	var mu sync.Mutex
	var all sync.WaitGroup
	for n := range callers {
		all.Go(func() {
			var asked, shed, lost int64
			for i := 0; time.Now().Before(stop); i++ {
				r := []store.Request{endless(t, fmt.Sprint(n, "/", i%16))}
				_, err := c.Take(context.Background(), r)
				if asked++; store.IsBusy(err) {
					shed++
				} else if err != nil {
					lost++
					mu.Lock()
					first = cmp.Or(first, err)
					mu.Unlock()
				}
			}
			mu.Lock()
			defer mu.Unlock()
			done, failed, busy = done+asked, failed+lost, busy+shed
		})
	}
	all.Wait()
	return done, failed, busy, first
}

// A request waits in the queue for longer than the timeout while Redis replies, and fails after a
// second. That is no failure of Redis: the breaker stays closed, no local budget decides, and
// nothing is charged.
//
// Simulated: TestShed.
func TestRealShed(t *testing.T) {
	server := redistest.Start(t)
	addr := farAway(t, server.Addr, 80*time.Millisecond)
	s := open(t, redisstore.WithMaxInFlight(redisstore.Options{Address: addr, Timeout: 900 * time.Millisecond, Batch: 1}, 1))
	b := store.NewBreaker(s, nil)
	defer b.Close()
	local := store.NewMemory(1000)
	f := store.NewFailover(b, local, func(err error) { t.Errorf("the failover was told of %v", err) })
	if _, err := f.Take(t.Context(), request(t, "first")); err != nil { // has a connection, and loads the script
		t.Fatal(err)
	}
	const callers = 20 // of which about six are sent in a second
	began := time.Now()
	var passed, busy atomic.Int64
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			r := request(t, "k")
			switch allowed, err := f.Take(t.Context(), r); {
			case allowed && err == nil && !r[0].Outcome.Local:
				passed.Add(1)
			case store.IsBusy(err):
				busy.Add(1)
			default:
				t.Errorf("allowed %v, error %v, %+v", allowed, err, r[0].Outcome)
			}
		})
	}
	all.Wait()
	if waited := time.Since(began); waited > redisstore.MaxQueued+slack {
		t.Errorf("they waited for %v", waited)
	}
	if passed.Load() == 0 || busy.Load() < callers/2 || b.Open() {
		t.Errorf("%d passed and %d were shed; the breaker is open: %v", passed.Load(), busy.Load(), b.Open())
	}
	r := request(t, "k")
	if _, err := f.Take(t.Context(), r); err != nil || r[0].Outcome.Decisions[0].Remaining != 9-passed.Load() {
		t.Errorf("error %v, %+v, want %d remaining", err, r[0].Outcome.Decisions, 9-passed.Load())
	}
}

// When Redis is silent for the timeout, all queued requests fail at once, and the breaker opens at
// once. A slow Redis that replies is not silent.
//
// Simulated: TestSilent.
func TestRealSilent(t *testing.T) {
	const timeout = time.Second
	server := redistest.Start(t)
	s := open(t, redisstore.WithMaxInFlight(redisstore.Options{Address: server.Addr, Timeout: timeout, Batch: 1}, 1))
	b := store.NewBreaker(s, nil)
	defer b.Close()
	if _, err := b.Take(t.Context(), request(t, "first")); err != nil {
		t.Fatal(err)
	}
	server.Freeze(t)
	began := time.Now()
	var all sync.WaitGroup
	reasons := make(chan string, 100)
	for range 50 {
		all.Go(func() {
			_, err := b.Take(t.Context(), request(t, "k"))
			var failed *store.Error
			if errors.As(err, &failed) {
				reasons <- failed.Reason
			} else {
				t.Errorf("error %v", err)
			}
		})
	}
	all.Wait()
	if waited := time.Since(began); waited < timeout || waited > timeout+slack {
		t.Errorf("they waited for %v, the timeout is %v", waited, timeout)
	}
	close(reasons)
	counts := map[string]int{}
	for reason := range reasons {
		counts[reason]++
	}
	if counts[store.ReasonTimeout] != 1 || counts[store.ReasonSilent] != 49 || !b.Open() {
		t.Errorf("%v, the breaker is open: %v, want 1 timeout, 49 silent, and that it is", counts, b.Open())
	}
	server.Thaw(t)
	redistest.WaitFor(t, "the breaker to close", func() bool { return !b.Open() })
	r := request(t, "k")
	if _, err := b.Take(t.Context(), r); err != nil || r[0].Outcome.Decisions[0].Remaining != 9 {
		t.Errorf("error %v, %+v, want that nothing was charged before", err, r[0].Outcome.Decisions)
	}
}

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
				r := []store.Request{endless(t, fmt.Sprint(n%50))}
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

// If many requests end at once and Redis is far away, none fails, and all refunds are made.
//
// Simulated: TestManyEndAtOnce.
func TestRealManyEndAtOnce(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, redisstore.Options{Address: farAway(t, server.Addr, 1500*time.Microsecond)})
	b := store.NewBreaker(s, nil)
	defer b.Close()
	take := func(r []store.Request) (allowed bool, err error) {
		for {
			allowed, err = b.Take(t.Context(), r)
			if !store.IsBusy(err) {
				return allowed, err
			} // a slow machine sheds some of so many at once
		}
	}
	const many = 3000
	limit := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "fixed_window", Events: 2 * many, Window: 3_600_000_000})
	for _, keys := range []int{1, 100, many} {
		t.Run(fmt.Sprintf("keys=%d", keys), func(t *testing.T) {
			ask := func(n int) []store.Request {
				key := fmt.Sprintf("%d of %d", n%keys, keys)
				return []store.Request{{
					Zone: "z", Key: key, Cost: 1, Limits: []store.Limit{limit},
					Slots: &store.Slots{ID: store.SlotsID("z", ""), Limit: many},
				}}
			}
			held := make([][]store.Request, many)
			var all sync.WaitGroup
			for n := range held {
				all.Go(func() {
					r := ask(n)
					if allowed, err := take(r); !allowed || err != nil {
						t.Errorf("allowed %v, error %v", allowed, err)
					}
					held[n] = r
				})
			}
			all.Wait()
			calls := server.Calls(t, "evalsha")
			for _, r := range held {
				all.Go(func() {
					b.Correct([]store.Correction{{Request: &r[0], Refund: 1, Leave: true}}, func(err error) { t.Error(err) })
				})
			}
			all.Wait()
			if calls = server.Calls(t, "evalsha") - calls; calls > many/8 {
				t.Errorf("%d requests ended by %d calls: each that waits longer than the timeout is lost", many, calls)
			}
			for n := range keys {
				all.Go(func() {
					r := ask(n)
					r[0].Cost, r[0].Peek = 0, true
					_, err := take(r)
					if o := r[0].Outcome; err != nil {
						t.Error(err)
					} else if o.Decisions[0].Remaining != 2*many || o.Slots.InFlight != 0 {
						t.Errorf("%d remaining, %d in flight, want %d and 0", o.Decisions[0].Remaining, o.Slots.InFlight, 2*many)
					}
				})
			}
			all.Wait()
			if b.Open() {
				t.Error("the breaker is open")
			}
		})
	}
}

// endless returns a request that is always allowed and charged.
func endless(t testing.TB, key string) store.Request {
	limit := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "gcra", Events: 1_000_000, Window: 1_000_000})
	return store.Request{Zone: "z", Key: key, Cost: 1, Limits: []store.Limit{limit}}
}
