package faultsim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/faultsim/simredis"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// countMessages counts the messages of a server from now on.
func countMessages(s *simredis.Server) *atomic.Int64 {
	n := new(atomic.Int64)
	s.SetTrouble(func([]string) simredis.Trouble { n.Add(1); return simredis.Trouble{} })
	return n
}

// With Redis near and healthy, far more requests wait than Redis can decide at once, and none fails.
func TestSaturatedRedis(t *testing.T) {
	for _, callers := range []int{100, 1000, 4000} {
		t.Run(fmt.Sprint(callers), func(t *testing.T) {
			inBubble(t, 0, func(t *testing.T) {
				network := newNetwork(t)
				server := network.NewServer("10.0.0.1:6379")
				server.SetScriptTime(20*time.Microsecond, 20*time.Microsecond)
				b := store.NewBreaker(openSim(t, network, 200*time.Microsecond, redisstore.Options{Address: server.Address(), Timeout: timeout}), nil)
				t.Cleanup(b.Close)
				var all sync.WaitGroup
				for n := range callers {
					all.Go(func() {
						for range 3 {
							errtest.Report(t, errtest.Of(b.Take(t.Context(), ask(fmt.Sprint(n)))))
						}
					})
				}
				all.Wait()
			})
		})
	}
}

// A request that waits in the queue for longer than a second fails, although Redis replies. That is no failure of Redis:
// the breaker stays closed, no local budget decides, and nothing is charged.
func TestShed(t *testing.T) {
	for _, takes := range []time.Duration{3 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond} { // a message
		t.Run(takes.String(), func(t *testing.T) {
			inBubble(t, 0, func(t *testing.T) {
				network := newNetwork(t)
				server := network.NewServer("10.0.0.1:6379")
				server.SetScriptTime(takes, 0)
				// A Redis that is slow is not far away, so it gets one message at a time.
				o := redisstore.Options{Address: server.Address(), Timeout: timeout, Batch: 1}
				b := store.NewBreaker(openSim(t, network, 0, o), nil)
				t.Cleanup(b.Close)
				f := store.NewFailover(b, store.NewMemory(1000), func(err error) { t.Errorf("the failover was told of %v", err) })
				errtest.None(t, errtest.Of(f.Take(t.Context(), ask("first"))))
				const callers = 700
				limit := limitOf("z", "fixed_window", callers)
				request := func() []store.ZoneRequest {
					return []store.ZoneRequest{{Zone: "z", Key: "k", Cost: 1, Limits: []store.Limit{limit}}}
				}
				var passed, busy atomic.Int64
				var all sync.WaitGroup
				for range callers {
					all.Go(func() {
						r, began := request(), time.Now()
						switch allowed, err := f.Take(t.Context(), r); {
						case allowed && err == nil && !r[0].Outcome.Local:
							passed.Add(1)
						case store.IsBusy(err):
							busy.Add(1)
						default:
							t.Errorf("allowed %v, error %v, %+v", allowed, err, r[0].Outcome)
						}
						if waited := time.Since(began); waited > redisstore.MaxQueued+o.Timeout {
							t.Errorf("one waited for %v", waited)
						}
					})
				}
				all.Wait()
				if passed.Load() < int64(redisstore.MaxQueued/takes) || busy.Load() < callers/4 || b.Open() {
					t.Errorf("%d passed and %d were shed; the breaker is open: %v", passed.Load(), busy.Load(), b.Open())
				}
				r := request()
				r[0].Cost = 0
				if _, err := f.Take(t.Context(), r); err != nil || r[0].Outcome.Decisions[0].Remaining != callers-passed.Load() {
					t.Errorf("error %v, %+v, want %d remaining", err, r[0].Outcome.Decisions, callers-passed.Load())
				}
			})
		})
	}
}

// No request waits longer than MaxQueued and the timeout, whatever Redis does.
func TestLongestWait(t *testing.T) {
	for _, lasts := range []time.Duration{90 * time.Millisecond, 350 * time.Millisecond, 2 * time.Second} {
		t.Run(lasts.String(), func(t *testing.T) {
			inBubble(t, 0, func(t *testing.T) {
				network := newNetwork(t)
				server := network.NewServer("10.0.0.1:6379")
				server.SetScriptTime(3*time.Millisecond, 0) // so many requests are shed
				s := openSim(t, network, 200*time.Microsecond, redisstore.Options{Address: server.Address(), Timeout: timeout, Batch: 1})
				var ended atomic.Bool
				var all sync.WaitGroup
				for n := range 700 {
					all.Go(func() {
						for i := 0; !ended.Load(); i++ {
							began, r := time.Now(), ask(fmt.Sprint(n))
							if allowed, err := s.Take(t.Context(), r); allowed && err == nil && i%3 == 0 {
								s.Correct([]store.Correction{{Request: &r[0], Refund: 1}}, nil)
							}
							if waited := time.Since(began); waited > redisstore.MaxQueued+2*timeout+50*time.Millisecond {
								t.Errorf("one waited for %v", waited)
							}
							time.Sleep(200 * time.Millisecond) // virtual time
						}
					})
				}
				time.Sleep(1500 * time.Millisecond) // virtual time: Redis works for a while
				freeze(server, lasts)
				ended.Store(true)
				all.Wait()
			})
		})
	}
}

// If many requests end at once and Redis is far away, none fails, and all refunds are made.
func TestManyEndAtOnce(t *testing.T) {
	const many = 900
	for _, distance := range []time.Duration{200 * time.Microsecond, 3 * time.Millisecond, 20 * time.Millisecond} {
		for _, keys := range []int{1, 100, many} {
			t.Run(fmt.Sprint(keys, " keys, ", distance), func(t *testing.T) {
				inBubble(t, 0, func(t *testing.T) { manyEndAtOnce(t, distance, keys, many) })
			})
		}
	}
}

func manyEndAtOnce(t *testing.T, distance time.Duration, keys, many int) {
	network := newNetwork(t)
	server := network.NewServer("10.0.0.1:6379")
	b := store.NewBreaker(openSim(t, network, distance, redisstore.Options{Address: server.Address(), Timeout: timeout}), nil)
	t.Cleanup(b.Close)
	limit := limitOf("z", "fixed_window", int64(2*many))
	ask := func(n int) []store.ZoneRequest {
		r := askSlot(fmt.Sprint(n%keys), int64(many))
		r[0].Cost, r[0].Limits = 1, []store.Limit{limit}
		return r
	}
	held := make([][]store.ZoneRequest, many)
	var all sync.WaitGroup
	for n := range held {
		all.Go(func() {
			r := ask(n)
			if allowed, err := b.Take(t.Context(), r); !allowed || err != nil {
				t.Errorf("allowed %v, error %v", allowed, err)
			}
			held[n] = r
		})
	}
	all.Wait()
	messages := countMessages(server)
	for _, r := range held {
		all.Go(func() {
			b.Correct([]store.Correction{{Request: &r[0], Refund: 1, Leave: true}}, func(err error) { t.Error(err) })
		})
	}
	all.Wait()
	for n := range keys {
		all.Go(func() {
			r := ask(n)
			r[0].Cost, r[0].Peek = 0, true
			_, err := b.Take(t.Context(), r)
			if o := r[0].Outcome; err != nil {
				t.Error(err)
			} else if o.Decisions[0].Remaining != int64(2*many) || o.Slots.InFlight != 0 {
				t.Errorf("%d remaining, %d in flight, want %d and 0", o.Decisions[0].Remaining, o.Slots.InFlight, 2*many)
			}
		})
	}
	all.Wait()
	if n := messages.Load(); n > int64(many/8) || b.Open() {
		t.Errorf("%d requests ended by %d messages: each that waits longer than the timeout is lost; the breaker is open: %v", many, n, b.Open())
	}
}

// A take after a correction of its key sees the correction, however many messages are in flight and
// however connections reorder them.
func TestTakeAfterGiveBack(t *testing.T) {
	for _, distance := range []time.Duration{0, 200 * time.Microsecond, 5 * time.Millisecond, 50 * time.Millisecond} {
		for _, batch := range []int{-1, 0} {
			t.Run(fmt.Sprint(distance, ", batch ", batch), func(t *testing.T) {
				inBubble(t, 0, func(t *testing.T) { takeAfterGiveBack(t, distance, batch) })
			})
		}
	}
}

func takeAfterGiveBack(t *testing.T, distance time.Duration, batch int) {
	network := newNetwork(t)
	server := network.NewServer("10.0.0.1:6379")
	client := network.NewClient(0)
	client.SetDelay(distance/4, distance) // so a message can overtake another one
	s := must(redisstore.New(redisstore.Options{Address: server.Address(), Timeout: time.Second, Batch: batch, Dialer: client}, redisstore.Hooks{}))
	t.Cleanup(func() { _ = s.Close() })
	limits := []store.Limit{limitOf("z", "fixed_window", 1)}
	var all sync.WaitGroup
	for n := range 64 {
		all.Go(func() {
			for i := range 10 {
				r := []store.ZoneRequest{{Zone: "z", Key: fmt.Sprint(n), Cost: 1, Limits: limits}}
				if n%2 == 0 {
					r[0].Slots = &store.Slots{ID: store.SlotsID("z", ""), Limit: 1}
					r[0].Tenant.ID = uint64(n % 4 * (i + 1)) // half of these keys have tenants
				}
				if allowed, err := s.Take(t.Context(), r); !allowed || err != nil {
					t.Errorf("%d of key %d: allowed %v, error %v, %+v", i, n, allowed, err, r[0].Outcome)
					return
				}
				s.Correct([]store.Correction{{Request: &r[0], Refund: 1, Leave: true}}, func(err error) { t.Error(err) })
			}
			r := []store.ZoneRequest{{Zone: "z", Key: fmt.Sprint(n), Limits: limits}}
			if _, err := s.Take(t.Context(), r); err != nil || r[0].Outcome.Decisions[0].Remaining != 1 {
				t.Errorf("key %d: error %v, %+v, want that all was given back", n, err, r[0].Outcome.Decisions)
			}
		})
	}
	all.Wait()
}

// A caller with a short deadline does not delay the others in its message.
func TestHastyCallers(t *testing.T) {
	inBubble(t, 0, func(t *testing.T) {
		network := newNetwork(t)
		server := network.NewServer("10.0.0.1:6379")
		s := openSim(t, network, time.Millisecond, redisstore.Options{Address: server.Address(), Timeout: timeout})
		var all sync.WaitGroup
		for g := range 64 {
			all.Go(func() {
				for i := range 100 {
					ctx, cancel := t.Context(), context.CancelFunc(func() {})
					hasty := g%4 == 0
					if hasty {
						ctx, cancel = context.WithTimeout(ctx, time.Duration(20*i)*time.Microsecond)
					}
					began := time.Now()
					_, err := s.Take(ctx, ask(fmt.Sprint(g)))
					waited := time.Since(began)
					if !hasty && (err != nil || waited > 10*time.Millisecond) || hasty && err != nil && !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("hasty %v: %v after %v", hasty, err, waited)
					}
					cancel()
				}
			})
		}
		all.Wait()
	})
}

// An override error that arrives at the last moment is returned as such. It is no failure of the store.
func TestOverriddenLate(t *testing.T) {
	inBubble(t, 0, func(t *testing.T) {
		network := newNetwork(t)
		server := network.NewServer("10.0.0.1:6379")
		server.SetScriptTime(0, 0)
		early := openSim(t, network, 0, redisstore.Options{Address: server.Address(), Timeout: timeout})
		text := "x"
		errtest.None(t, early.Change(t.Context(), store.Change{Zone: "z", Key: "k", Override: &text}))
		seen := make(map[bool]int)
		for off := -5 * time.Millisecond; off <= 15*time.Millisecond; off += 250 * time.Microsecond {
			o := redisstore.Options{Address: server.Address(), Timeout: timeout}
			client := network.NewClient(0)
			o.Dialer = client
			s := must(redisstore.New(o, redisstore.Hooks{}))
			errtest.None(t, errtest.Of(s.Take(t.Context(), ask("other")))) // has a connection
			client.SetDelay((timeout+off)/2, (timeout+off)/2)
			r := ask("k")
			r[0].Override = new(store.Override)
			_, err := s.Take(t.Context(), r)
			failed, overridden := errors.As(err, new(*store.Error)), errors.As(err, new(*store.OverriddenError))
			if failed == overridden || failed && off <= 0 || overridden && off > 10*time.Millisecond {
				t.Errorf("%v after the timeout: %T: %v", off, err, err)
			}
			seen[failed]++
			_ = s.Close()
		}
		if seen[true] == 0 || seen[false] == 0 {
			t.Errorf("too late or not: %v", seen)
		}
	})
}
