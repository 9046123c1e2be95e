package store_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/racetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// remote is a store with a network between: it decides half a trip after it was asked.
type remote struct {
	*failing
	trip time.Duration
}

func (r remote) Take(ctx context.Context, requests []store.ZoneRequest) (bool, error) {
	if err := sleep(ctx, r.trip/2); err != nil {
		return false, err
	}
	allowed, err := r.failing.Take(ctx, requests)
	if err := sleep(ctx, r.trip/2); err != nil {
		return false, err
	}
	return allowed, err
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d): // virtual time
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// withDenyCache runs a test with a cache in front of a remote store, in fake time.
func withDenyCache(t *testing.T, trip time.Duration, test func(t *testing.T, c *store.DenyCache, r remote)) {
	synctest.Test(t, func(t *testing.T) {
		r := remote{newFailing(), trip}
		test(t, store.NewDenyCache(r), r)
	})
}

// takeAsked takes, and reports whether the store was asked. An error ends the test.
func takeAsked(t *testing.T, c store.Store, f *failing, requests []store.ZoneRequest) (allowed, asked bool) {
	t.Helper()
	before := f.asked.Load()
	allowed, err := c.Take(t.Context(), requests)
	errtest.None(t, err)
	return allowed, f.asked.Load() > before
}

func request(cost int64, limits ...store.Limit) []store.ZoneRequest {
	return []store.ZoneRequest{{Zone: "z", Key: "k", Cost: cost, Limits: limits}}
}

// takeUntilDenied takes until a request is denied.
func takeUntilDenied(t *testing.T, c store.Store, requests []store.ZoneRequest) {
	t.Helper()
	for n := 0; ; n++ {
		allowed, err := c.Take(t.Context(), requests)
		if err != nil || n == 1000 {
			t.Fatal("it never denies", err)
		}
		if !allowed {
			return
		}
	}
}

func TestDenyCacheConforms(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Store {
		f := newFailing()
		return &storetest.Decorated{Store: store.NewDenyCache(f), Inner: f, LateRefunds: true}
	})
}

// A denial is remembered from before it was asked for, as long as its retry-after. The store
// is asked again after three quarters of a second at most, also about a request that never passes.
func TestDenyCacheUntil(t *testing.T) {
	const trip = 40 * time.Millisecond
	for _, test := range []struct {
		window time.Duration // of one event
		cost   int64
		until  time.Duration // since it was sent
	}{
		{300 * time.Millisecond, 1, 300*time.Millisecond - trip/2 - time.Microsecond}, // the event before it was trip/2 in the window
		{time.Hour, 1, 750 * time.Millisecond},
		{time.Hour, 2, 750 * time.Millisecond},
	} {
		t.Run(fmt.Sprint(test.window, test.cost), func(t *testing.T) {
			withDenyCache(t, trip, func(t *testing.T, c *store.DenyCache, r remote) {
				requests := request(1, fixedWindow(t, 1, test.window))
				takeUntilDenied(t, r.failing, requests) // at once
				requests[0].Cost = test.cost
				sent := time.Now()
				if _, asked := takeAsked(t, c, r.failing, requests); !asked {
					t.Fatal("the store was not asked at first")
				}
				first := requests[0].Outcome.Decisions[0]
				if until := time.Duration(first.RetryAfter-1) * time.Microsecond; test.window < time.Hour && until != test.until {
					t.Fatalf("remembered for %v, want %v", until, test.until)
				}
				came := time.Now()
				time.Sleep(time.Until(sent.Add(test.until)) - 1) // virtual time
				if _, asked := takeAsked(t, c, r.failing, requests); asked {
					t.Error("the store was asked before the denial ended")
				}
				d, since := requests[0].Outcome.Decisions[0], time.Since(came).Microseconds()
				if first.RetryAfter == algorithms.Forever {
					if d.RetryAfter != algorithms.Forever {
						t.Errorf("retry after %d µs, want never", d.RetryAfter)
					}
				} else if d.RetryAfter != first.RetryAfter-since ||
					d.ResetAfter != first.ResetAfter-since || d.MoreAfter != first.MoreAfter-since || d.Remaining != first.Remaining {
					t.Errorf("%d µs later %+v, at first %+v", since, d, first)
				}
				time.Sleep(time.Nanosecond) // virtual time
				if _, asked := takeAsked(t, c, r.failing, requests); !asked {
					t.Error("the store was not asked when the denial had ended")
				}
			})
		})
	}
}

// A denial denies requests of its limit and key that cost as much or more, with the same burst and delay, and no
// others. A peek sees the budgets of the store.
func TestDenyCacheCovers(t *testing.T) {
	quota := func(events int64) store.Limit {
		return storetest.Limit(t, "z", algorithms.Quota{Algorithm: "token_bucket", Events: events, Window: 10_000_000_000, Burst: 10})
	}
	limit, larger := quota(10), quota(10)
	larger.Limit = limit.Scaled(2_000_000)
	with := func(cost int64, wait time.Duration, l store.Limit) []store.ZoneRequest {
		requests := request(cost, l)
		requests[0].MaxWait = wait.Microseconds()
		return requests
	}
	withDenyCache(t, 0, func(t *testing.T, c *store.DenyCache, r remote) {
		takeUntilDenied(t, r.failing, with(1, 0, limit))
		denied, peek := with(3, time.Minute, limit), with(3, time.Minute, limit)
		peek[0].Peek = true
		takeAsked(t, c, r.failing, denied)
		takeAsked(t, c, r.failing, with(4, time.Minute, limit)) // until the next one of another cost may ask
		for _, test := range []struct {
			what     string
			requests []store.ZoneRequest
			cached   bool
		}{
			{"the same", denied, true},
			{"more cost", with(5, time.Minute, limit), true},
			{"another wait", with(3, 2*time.Minute, limit), true},
			{"another limit", with(3, time.Minute, quota(11)), false},
			{"another key", []store.ZoneRequest{{Zone: "z", Key: "K", Cost: 3, MaxWait: denied[0].MaxWait, Limits: denied[0].Limits}}, false},
			{"another burst", with(3, time.Minute, larger), false},
			{"less cost", with(2, time.Minute, limit), false},
			{"a peek", peek, false},
		} {
			if _, asked := takeAsked(t, c, r.failing, test.requests); asked == test.cached {
				t.Errorf("%s: the store was asked: %v", test.what, asked)
			}
		}
	})
}

// A decision from the cache, and one past it, allocates nothing.
func TestDenyCacheAllocatesNothing(t *testing.T) {
	f := newFailing()
	c := store.NewDenyCache(f)
	limit := fixedWindow(t, 1_000_000, time.Hour)
	passes, denied := request(1, limit), request(2_000_000, limit)
	other := []store.ZoneRequest{{Zone: "z", Key: "other", Cost: 1, Limits: []store.Limit{limit}}}
	for _, test := range []struct {
		what     string
		requests []store.ZoneRequest
	}{{"nothing is remembered", passes}, {"denied", denied}, {"another denial of the key", passes}, {"another key", other}} {
		take := func() { _, _ = c.Take(context.Background(), test.requests) }
		if test.what == "denied" {
			take()
		}
		if n := testing.AllocsPerRun(1000, take); n > 0.1 && !racetest.Enabled {
			t.Errorf("%s: %v allocations", test.what, n)
		}
	}
}

// The number of remembered denials has a bound. Denials that stand stay, and ended ones make room.
func TestDenyCacheIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &failing{Store: store.NewSharedMemory().Bounded(1_000_000, zoneCount(1), nil)}
		c := store.NewDenyCache(f)
		limit := fixedWindow(t, 1, time.Hour)
		asksStore := func(key string) bool {
			_, asked := takeAsked(t, c, f, []store.ZoneRequest{{Zone: "z", Key: key, Cost: 2, Limits: []store.Limit{limit}}})
			return asked
		}
		asksStore("early")
		long := strings.Repeat("long", 100)
		asksStore(long)
		for i := range 100_000 {
			if asksStore(fmt.Sprint(i)); i%20_000 == 0 {
				time.Sleep(100 * time.Millisecond)
			}
		}
		if n := c.Denials(); n > 1<<16 || n < 60_000 {
			t.Errorf("%d denials are remembered", n)
		}
		if asksStore("early") || asksStore(long) {
			t.Error("a flood of keys displaced a denial that stands")
		}
		for i := range 200 {
			if !asksStore(fmt.Sprint(long, i)) {
				t.Fatal("a long key is mistaken for another")
			}
		}
		time.Sleep(time.Second)
		for i := range 1000 {
			if key := fmt.Sprint("late ", i); !asksStore(key) || asksStore(key) {
				t.Fatal("denials that have ended make no room")
			}
		}
		if n := c.Denials(); n > 1<<16 {
			t.Errorf("%d denials are remembered", n)
		}
	})
}
