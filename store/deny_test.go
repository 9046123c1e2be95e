package store_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// remote is a store that is some way away: it decides half a trip after it was asked.
type remote struct {
	*failing
	trip time.Duration
}

func (r remote) Take(ctx context.Context, requests []store.Request) (bool, error) {
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
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// denying runs a test with a cache before a store that is a trip away, in invented time.
func denying(t *testing.T, trip time.Duration, test func(t *testing.T, c *store.DenyCache, r remote)) {
	synctest.Test(t, func(t *testing.T) {
		r := remote{newFailing(), trip}
		test(t, store.NewDenyCache(r), r)
	})
}

// answerOf takes, ends the test if the store fails, and tells whether the store was asked.
func answerOf(t *testing.T, c store.Store, f *failing, requests []store.Request) (allowed, asked bool) {
	t.Helper()
	before := f.asked.Load()
	allowed, err := c.Take(t.Context(), requests)
	if err != nil {
		t.Fatal(err)
	}
	return allowed, f.asked.Load() > before
}

func one(cost int64, limits ...store.Limit) []store.Request {
	return []store.Request{{Zone: "z", Key: "k", Cost: cost, Limits: limits}}
}

// exhaust takes until the first refusal.
func exhaust(t *testing.T, c store.Store, requests []store.Request) {
	t.Helper()
	for n := 0; ; n++ {
		allowed, err := c.Take(t.Context(), requests)
		if err != nil || n == 1000 {
			t.Fatal("it never refuses", err)
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

// A refusal is remembered from before it was asked for, as long as its retry-after. The store
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
			denying(t, trip, func(t *testing.T, c *store.DenyCache, r remote) {
				requests := one(1, window(t, 1, test.window))
				exhaust(t, r.failing, requests) // at once
				requests[0].Cost = test.cost
				sent := time.Now()
				if _, asked := answerOf(t, c, r.failing, requests); !asked {
					t.Fatal("the store was not asked at first")
				}
				told := requests[0].Outcome.Decisions[0]
				if until := time.Duration(told.RetryAfter-1) * time.Microsecond; test.window < time.Hour && until != test.until {
					t.Fatalf("remembered for %v, want %v", until, test.until)
				}
				came := time.Now()
				time.Sleep(time.Until(sent.Add(test.until)) - 1)
				if _, asked := answerOf(t, c, r.failing, requests); asked {
					t.Error("the store was asked before the refusal ended")
				}
				d, since := requests[0].Outcome.Decisions[0], time.Since(came).Microseconds()
				if told.RetryAfter == algorithms.Forever {
					if d.RetryAfter != algorithms.Forever {
						t.Errorf("retry after %d µs, want never", d.RetryAfter)
					}
				} else if d.RetryAfter != told.RetryAfter-since ||
					d.ResetAfter != told.ResetAfter-since || d.MoreAfter != told.MoreAfter-since || d.Remaining != told.Remaining {
					t.Errorf("%d µs later %+v, told was %+v", since, d, told)
				}
				time.Sleep(time.Nanosecond)
				if _, asked := answerOf(t, c, r.failing, requests); !asked {
					t.Error("the store was not asked when the refusal had ended")
				}
			})
		})
	}
}

// A refusal refuses requests that cost as much or more and have as much burst or less, of that
// limit and key, and no others, unless they may be held for so long that they would pass.
func TestDenyCacheRefusesWhatItCovers(t *testing.T) {
	denying(t, 0, func(t *testing.T, c *store.DenyCache, r remote) {
		limit := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "token_bucket", Events: 10, Window: 10_000_000_000, Burst: 10})
		other := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "token_bucket", Events: 11, Window: 10_000_000_000, Burst: 10})
		scaled := func(factor int64) store.Limit {
			l := limit
			l.Limit = limit.Scaled(factor * 1_000_000)
			return l
		}
		with := func(cost int64, wait time.Duration, l store.Limit) []store.Request {
			requests := one(cost, l)
			requests[0].MaxWait = wait.Microseconds()
			return requests
		}
		exhaust(t, r.failing, with(1, 0, limit))
		half := scaled(2)
		refused := with(3, time.Minute, half)
		if _, asked := answerOf(t, c, r.failing, refused); !asked {
			t.Fatal("the store was not asked at first")
		}
		enough := time.Minute + time.Duration(refused[0].Outcome.Decisions[0].RetryAfter)*time.Microsecond
		for _, test := range []struct {
			what     string
			requests []store.Request
			known    bool
		}{
			{"the same", refused, true},
			{"more cost, for longer", with(4, time.Minute, half), false},
			{"more cost than its burst", with(6, time.Minute, half), true},
			{"less burst, for longer", with(3, time.Minute, scaled(3)), false},
			{"a shorter wait", with(3, 0, half), true},
			{"a longer wait", with(3, time.Hour, half), true},
			{"a wait that is nearly long enough", with(3, enough-time.Second, half), true},
			{"a wait that is long enough", with(3, enough, half), false},
			{"another limit", with(3, time.Minute, other), false},
			{"another key", []store.Request{{Zone: "z", Key: "K", Cost: 3, MaxWait: refused[0].MaxWait, Limits: refused[0].Limits}}, false},
			{"more burst", with(3, time.Minute, limit), false},
			{"less cost", with(2, time.Minute, half), false},
			{"a look", with(0, 0, half), false},
		} {
			_, asked := answerOf(t, c, r.failing, test.requests)
			if asked == test.known {
				t.Errorf("%s: the store was asked: %v", test.what, asked)
			}
			if !test.known {
				continue
			}
			is := append([]store.Request(nil), test.requests...)
			is[0].Outcome.Decisions = nil
			_, _ = r.failing.Take(t.Context(), is)
			got, want := test.requests[0].Outcome.Decisions[0].RetryAfter, is[0].Outcome.Decisions[0].RetryAfter
			if got != want {
				t.Errorf("%s: retry after %d µs, the store says %d µs", test.what, got, want)
			}
		}
	})
}

// Refusals of different kinds are remembered side by side.
func TestDenyCacheKinds(t *testing.T) {
	denying(t, 0, func(t *testing.T, c *store.DenyCache, r remote) {
		limit := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "gcra", Events: 4, Window: 10_000_000_000})
		large := limit
		large.Limit = limit.Scaled(500_000)
		kinds := [][]store.Request{one(3, large), one(1, limit)}
		exhaust(t, r.failing, one(1, large))
		for i := range 10 {
			for _, requests := range kinds {
				if _, asked := answerOf(t, c, r.failing, requests); asked != (i == 0) {
					t.Errorf("round %d: %+v: asked %v", i, requests, asked)
				}
			}
		}
		kinds[1][0].MaxWait = 1
		if _, asked := answerOf(t, c, r.failing, kinds[1]); asked || c.Held() != 2 {
			t.Errorf("a longer wait: asked %v, %d refusals are remembered; want 2, because it is of the same kind", asked, c.Held())
		}
		for i, kind := range [][]store.Request{one(2, large), one(4, large)} {
			if _, asked := answerOf(t, c, r.failing, kind); !asked {
				t.Errorf("kind %d is not remembered, but the store was not asked", i+3)
			}
			if _, asked := answerOf(t, c, r.failing, kind); asked {
				t.Errorf("kind %d is not remembered", i+3)
			}
		}
		fifth := one(5, large) // these are all that are remembered, and cover it
		if _, asked := answerOf(t, c, r.failing, fifth); asked || fifth[0].Outcome.Decisions[0].RetryAfter != 20_000_000_000 {
			t.Errorf("the fifth kind: asked %v, %+v, want it to wait until the budget is untouched", asked, fifth[0].Outcome.Decisions)
		}
		if _, asked := answerOf(t, c, r.failing, one(1, large)); !asked {
			t.Error("refused because something that costs more was")
		}
	})
}

// A request that is charged or begins a budget although it is refused is never answered
// from the cache, in whichever of its zones.
func TestDenyCachePassesOn(t *testing.T) {
	initial := int64(1)
	refusing := func(t *testing.T) store.Request {
		return store.Request{Zone: "z", Key: "k", Cost: 1, Limits: []store.Limit{window(t, 1, time.Hour)}}
	}
	with := func(t *testing.T, mode algorithms.Mode, q algorithms.Quota) store.Request {
		return store.Request{Zone: "y", Key: "k", Cost: 1, Mode: mode, Limits: []store.Limit{storetest.Limit(t, "y", q)}}
	}
	plain := algorithms.Quota{Algorithm: "gcra", Events: 100, Window: 1_000_000_000}
	begins := algorithms.Quota{Algorithm: "token_bucket", Events: 100, Window: 1_000_000_000, Initial: &initial}
	for _, test := range []struct {
		mode  algorithms.Mode
		quota algorithms.Quota
		asks  bool
	}{
		{algorithms.Binary, plain, false},
		{algorithms.Nary, plain, true},
		{algorithms.Uniform, plain, true},
		{algorithms.Force, plain, true},
		{algorithms.Binary, begins, true},
	} {
		t.Run(fmt.Sprint(test.mode, test.quota.Algorithm), func(t *testing.T) {
			for first := range 2 {
				denying(t, 0, func(t *testing.T, c *store.DenyCache, r remote) {
					exhaust(t, c, []store.Request{refusing(t)})
					requests := []store.Request{refusing(t), with(t, test.mode, test.quota)}
					requests[0], requests[1] = requests[first], requests[1-first]
					for range 3 {
						if allowed, asked := answerOf(t, c, r.failing, requests); allowed || asked != test.asks {
							t.Errorf("allowed %v, asked %v, want %v", allowed, asked, test.asks)
						}
					}
				})
			}
		})
	}
}

// A budget that begins with less than its burst begins with its first request, even if
// another limit refuses that; once it refuses itself it has begun.
func TestDenyCacheLetsBudgetsBegin(t *testing.T) {
	denying(t, 0, func(t *testing.T, c *store.DenyCache, r remote) {
		none := int64(0)
		limit := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "token_bucket", Events: 1, Window: 10_000_000, Initial: &none})
		answerOf(t, c, r.failing, one(1, limit))
		if _, asked := answerOf(t, c, r.failing, one(1, limit)); asked {
			t.Error("the store was asked about a budget that has begun")
		}
	})
}

// A cached answer says what the refusing limits said, and of the others that they were
// not asked.
func TestDenyCacheDecisions(t *testing.T) {
	denying(t, 0, func(t *testing.T, c *store.DenyCache, r remote) {
		tight, loose := window(t, 1, time.Hour), window(t, 100, time.Hour)
		exhaust(t, c, one(1, loose, tight))
		requests := append(one(1, loose, tight), store.Request{Zone: "y", Key: "other", Cost: 1, Limits: []store.Limit{loose}})
		requests[0].Outcome.Decisions = make([]algorithms.Decision, 5)
		kept := &requests[0].Outcome.Decisions[0]
		if allowed, asked := answerOf(t, c, r.failing, requests); allowed || asked {
			t.Fatalf("allowed %v, asked %v", allowed, asked)
		}
		if len(requests[0].Outcome.Decisions) != 2 || &requests[0].Outcome.Decisions[0] != kept || len(requests[1].Outcome.Decisions) != 1 {
			t.Fatalf("decisions %+v", requests)
		}
		for _, d := range []algorithms.Decision{requests[0].Outcome.Decisions[0], requests[1].Outcome.Decisions[0]} {
			if d != (algorithms.Decision{NotAsked: true}) {
				t.Errorf("a limit that was not asked: %+v", d)
			}
		}
		if d := requests[0].Outcome.Decisions[1]; d.NotAsked || d.Allowed || d.RetryAfter != 3_600_000_000 || d.Remaining != 0 {
			t.Errorf("the limit that refuses: %+v", d)
		}
		for i, want := range []store.Verdict{store.Denied, store.NotAsked} {
			if o := requests[i].Outcome; o.Verdict != want || o.Cached != (want == store.Denied) {
				t.Errorf("zone %s: verdict %d, cached %v, want %d", requests[i].Zone, o.Verdict, o.Cached, want)
			}
		}
		c.Correct(storetest.Refunds(requests, 1), nil) // nothing was charged
		if allowed, asked := answerOf(t, c, r.failing, requests); allowed || asked {
			t.Errorf("after giving back nothing: allowed %v, asked %v", allowed, asked)
		}
		if _, asked := answerOf(t, c, r.failing, one(1, loose)); !asked {
			t.Error("a limit that had room refuses because another did not")
		}
	})
}

// Only the store's own answers are remembered, not those of what stands in for it, and
// they hold while the store isn't asked.
func TestDenyCacheInOutage(t *testing.T) {
	f := newFailing()
	b := store.NewBreaker(f, nil)
	t.Cleanup(b.Close)
	s := store.NewFailover(store.NewDenyCache(b), store.NewSharedMemory().Bounded(1000, zones(1), nil), func(error) {})
	known, unknown := window(t, 1, time.Hour), window(t, 2, time.Hour)
	exhaust(t, s, one(1, known))
	f.fail(errGone)
	for range 10 {
		exhaust(t, s, one(1, unknown))
	}
	if !b.Open() {
		t.Fatal("the breaker is closed")
	}
	requests := one(1, known)
	if allowed, asked := answerOf(t, s, f, requests); allowed || asked || !requests[0].Outcome.Cached || requests[0].Outcome.Local {
		t.Errorf("refused before: allowed %v, asked %v, %+v", allowed, asked, requests[0].Outcome)
	}
	requests = one(1, unknown)
	if allowed, asked := answerOf(t, s, f, requests); allowed || asked || requests[0].Outcome.Cached || !requests[0].Outcome.Local {
		t.Errorf("refused by what stands in: allowed %v, asked %v, %+v", allowed, asked, requests[0].Outcome.Decisions)
	}
}

// What is given back through the cache is there at once, what is given back elsewhere
// within a second.
func TestDenyCacheRefund(t *testing.T) {
	denying(t, 0, func(t *testing.T, c *store.DenyCache, r remote) {
		limit := window(t, 1, time.Hour)
		here, there := one(1, limit), one(1, limit)
		answerOf(t, c, r.failing, here)
		if allowed, _ := answerOf(t, c, r.failing, there); allowed {
			t.Fatal("allowed twice")
		}
		c.Correct(storetest.Refunds(here, 1), nil)
		if allowed, _ := answerOf(t, c, r.failing, there); !allowed {
			t.Error("refused although it was given back")
		}
		time.Sleep(time.Nanosecond)     // what is asked at the instant of a refund may have been decided before
		answerOf(t, c, r.failing, here) // refused
		r.Correct(storetest.Refunds(there, 1), nil)
		time.Sleep(750*time.Millisecond - 1)
		if allowed, _ := answerOf(t, c, r.failing, here); allowed {
			t.Error("the cache does not remember")
		}
		time.Sleep(time.Nanosecond)
		if allowed, _ := answerOf(t, c, r.failing, here); !allowed {
			t.Error("the store was not asked again")
		}
	})
}

// heldBack is a store whose next answers to takes arrive when they are let through.
type heldBack struct {
	store.Store
	hold    atomic.Bool
	decided chan struct{}
	pass    chan struct{}
}

func (h *heldBack) Take(ctx context.Context, requests []store.Request) (bool, error) {
	allowed, err := h.Store.Take(ctx, requests)
	if h.hold.Load() {
		h.decided <- struct{}{}
		<-h.pass
	}
	return allowed, err
}

// Nothing is remembered of a take that the store may have decided before events of its key
// were given back, or the key was changed, through the same cache.
func TestDenyCacheForgetsWhatWasDecidedBefore(t *testing.T) {
	limit := window(t, 1, time.Hour)
	ask := func(key string) []store.Request {
		return []store.Request{{Zone: "z", Key: key, Cost: 1, Limits: []store.Limit{limit}}}
	}
	forget := store.Change{Zone: "z", Key: "k", Forget: []string{limit.ID}}
	tests := []struct {
		name string
		free func(t *testing.T, c *store.DenyCache, charged []store.Request) error
	}{
		{"refund", func(t *testing.T, c *store.DenyCache, charged []store.Request) error {
			c.Correct(storetest.Refunds(charged, 1), nil)
			return nil
		}},
		{"change", func(t *testing.T, c *store.DenyCache, _ []store.Request) error { return c.Change(t.Context(), forget) }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFailing()
				h := &heldBack{Store: f, decided: make(chan struct{}), pass: make(chan struct{})}
				c := store.NewDenyCache(h)
				charged, others := ask("k"), []string{"a", "b", "c"} // by chance one may be taken to have changed, too
				answerOf(t, c, f, charged)
				for _, key := range others {
					answerOf(t, c, f, ask(key))
				}
				h.hold.Store(true)
				var late sync.WaitGroup
				for _, key := range append(others, "k") {
					late.Go(func() {
						if allowed, err := c.Take(t.Context(), ask(key)); allowed || err != nil {
							t.Errorf("key %s: allowed %v, error %v", key, allowed, err)
						}
					})
					<-h.decided
				}
				h.hold.Store(false)
				if err := test.free(t, c, charged); err != nil {
					t.Fatal(err)
				}
				close(h.pass) // the denials arrive now
				late.Wait()
				if allowed, asked := answerOf(t, c, f, ask("k")); !allowed || !asked {
					t.Errorf("once it is free: allowed %v, asked %v", allowed, asked)
				}
				remembered := 0
				for _, key := range others {
					if allowed, asked := answerOf(t, c, f, ask(key)); !allowed && !asked {
						remembered++
					}
				}
				if remembered == 0 {
					t.Error("the denials of other keys are not remembered")
				}
				time.Sleep(time.Millisecond)
				answerOf(t, c, f, ask("k"))
				if allowed, asked := answerOf(t, c, f, ask("k")); allowed || asked {
					t.Errorf("a later denial is not remembered: allowed %v, asked %v", allowed, asked)
				}
			})
		})
	}
}

// A decision from the cache, and one past it, allocates nothing.
func TestDenyCacheAllocatesNothing(t *testing.T) {
	f := newFailing()
	c := store.NewDenyCache(f)
	limit := window(t, 1_000_000, time.Hour)
	passes, refused := one(1, limit), one(2_000_000, limit)
	other := []store.Request{{Zone: "z", Key: "other", Cost: 1, Limits: []store.Limit{limit}}}
	for _, test := range []struct {
		what     string
		requests []store.Request
	}{{"nothing is remembered", passes}, {"refused", refused}, {"another refusal of the key", passes}, {"another key", other}} {
		take := func() { _, _ = c.Take(context.Background(), test.requests) }
		if test.what == "refused" {
			take()
		}
		if n := testing.AllocsPerRun(1000, take); n > 0.1 && !raceEnabled {
			t.Errorf("%s: %v allocations", test.what, n)
		}
	}
}

func BenchmarkDenyCache(b *testing.B) {
	limit := window(b, 1_000_000_000, time.Hour)
	passes, refused := one(1, limit), one(2_000_000_000, limit)
	f := store.NewSharedMemory().Bounded(1000, zones(1), nil)
	c := store.NewDenyCache(f)
	for _, test := range []struct {
		name     string
		store    store.Store
		requests []store.Request
	}{{"store", f, passes}, {"empty", c, passes}, {"refused", c, refused}, {"passes", c, passes}} {
		b.Run(test.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = test.store.Take(context.Background(), test.requests)
			}
		})
	}
}
