package redisstore_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
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
func TestSaturated(t *testing.T) {
	redistest.Long(t)
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
func TestShed(t *testing.T) {
	redistest.Long(t)
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
func TestSilent(t *testing.T) {
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
func TestLongestWait(t *testing.T) {
	redistest.Long(t)
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
func TestManyEndAtOnce(t *testing.T) {
	redistest.Long(t)
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

// A take after a correction of its key sees the correction, however many batches are in flight and
// however connections reorder them.
func TestTakeAfterGiveBack(t *testing.T) {
	redistest.Long(t)
	server := redistest.Start(t)
	addr := farAway(t, server.Addr, 5*time.Millisecond)
	for _, batch := range []int{-1, 0} {
		s := open(t, redisstore.Options{Address: addr, Batch: batch})
		limit := storetest.Limit(t, fmt.Sprint("z", batch), algorithms.Quota{Algorithm: "fixed_window", Events: 1, Window: 3_600_000_000})
		var all sync.WaitGroup
		for n := range 64 {
			all.Go(func() {
				for i := range 20 {
					r := []store.Request{{Zone: limit.ID, Key: fmt.Sprint(n), Cost: 1, Limits: []store.Limit{limit}}}
					if n%2 == 0 {
						r[0].Slots = &store.Slots{ID: store.SlotsID(limit.ID, ""), Limit: 1}
					}
					allowed, err := s.Take(t.Context(), r)
					for store.IsBusy(err) { // nothing was charged: the machine has other things to do
						allowed, err = s.Take(t.Context(), r)
					}
					if !allowed || err != nil {
						t.Errorf("%d of key %d: allowed %v, error %v, %+v", i, n, allowed, err, r[0].Outcome)
						return
					}
					s.Correct([]store.Correction{{Request: &r[0], Refund: 1, Leave: true}}, func(err error) { t.Error(err) })
				}
				r := []store.Request{{Zone: limit.ID, Key: fmt.Sprint(n), Limits: []store.Limit{limit}}}
				if _, err := s.Take(t.Context(), r); err != nil || r[0].Outcome.Decisions[0].Remaining != 1 {
					t.Errorf("key %d: error %v, %+v, want that all was given back", n, err, r[0].Outcome.Decisions)
				}
			})
		}
		all.Wait()
	}
}

// A correction that was certainly never sent is sent later. A correction that may have run is not
// repeated.
func TestGiveBackNeverSent(t *testing.T) {
	server := redistest.Start(t)
	down := make(chan struct{})
	var refused atomic.Int64
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
				if refused.Add(1) == 1 {
					_ = near.Close()
					continue
				}
			default:
			}
			if far, err := net.Dial("tcp", server.Addr); err == nil {
				for to, from := range map[net.Conn]net.Conn{far: near, near: far} {
					go func() {
						_, _ = io.Copy(to, from)
						_ = to.Close()
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
	time.Sleep(50 * time.Millisecond) // the store finds out that its connections are closed
	calls := server.Calls(t, "evalsha")
	if err := refund(s, r, 1); err != nil {
		t.Errorf("the give-back failed: %v", err)
	}
	if n := server.Calls(t, "evalsha") - calls; n != 1 || refused.Load() < 2 {
		t.Errorf("%d calls after %d connections, want 1 after 2", n, refused.Load())
	}
	if _, err := s.Take(t.Context(), r); err != nil || r[0].Outcome.Decisions[0].Remaining != 9 {
		t.Errorf("error %v, %+v, want 9 remaining", err, r[0].Outcome.Decisions)
	}
}
