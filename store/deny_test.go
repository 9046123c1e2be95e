package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
	"github.com/caddy-rate-limit/caddy-rate-limit/store/storetest"
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

const redisTimeout = 100 * time.Millisecond

// denying runs a test with a cache before a store that is a trip away, in invented time.
func denying(t *testing.T, trip time.Duration, test func(t *testing.T, c *store.DenyCache, r remote)) {
	synctest.Test(t, func(t *testing.T) {
		r := remote{newFailing(), trip}
		test(t, store.NewDenyCache(r, redisTimeout), r)
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
		return &storetest.Decorated{Store: store.NewDenyCache(f, time.Minute), Inner: f, LateRefunds: true}
	})
}

// Whatever the cache refuses, the store refuses at that instant, too, by the same
// limits, and for at least as long; whatever it does not refuse, the store has decided.
func TestDenyCacheIsRight(t *testing.T) {
	hits := make(map[string]int)
	for seed := range uint64(400) {
		synctest.Test(t, func(t *testing.T) { checkDenyCache(t, seed, hits) })
		if t.Failed() {
			return
		}
	}
	names := []string{"ban"}
	for _, a := range algorithms.All() {
		names = append(names, a.Name)
	}
	for _, name := range names {
		if t.Logf("%s refused from the cache %d times", name, hits[name]); hits[name] < 500 {
			t.Errorf("%s was refused from the cache only %d times", name, hits[name])
		}
	}
}

// checkDenyCache runs a random program: requests of one or two zones through the cache,
// and others past it, as from another instance.
func checkDenyCache(t *testing.T, seed uint64, hits map[string]int) {
	rng := rand.New(rand.NewPCG(seed, 7))
	f := newFailing()
	c := store.NewDenyCache(remote{f, time.Duration(rng.IntN(3)) * time.Millisecond}, time.Minute)
	windows := []algorithms.Micros{1_000, 50_000, 700_003, 3_000_000, 100_000_000}
	quotas := storetest.Variants(1+rng.Int64N(6), windows[rng.IntN(len(windows))])
	var limits [2][]store.Limit
	for z := range limits {
		for _, i := range rng.Perm(len(quotas))[:1+rng.IntN(2)] {
			limits[z] = append(limits[z], storetest.Limit(t, fmt.Sprint("z", z), quotas[i]))
		}
	}
	var bans [2][]store.Limit // one or none of each zone
	for z := range bans {
		if rng.IntN(3) == 0 {
			length := 1 + rng.Int64N(3_000_000)
			bans[z] = []store.Limit{storetest.Ban(t, fmt.Sprint("z", z), algorithms.Ban{After: 1 + rng.Int64N(3), Window: 5_000_000, Duration: length, Most: 4 * length})}
		}
	}
	random := func() (requests []store.Request) {
		for z := range 1 + rng.IntN(2) {
			r := store.Request{Zone: fmt.Sprint("z", z), Key: fmt.Sprint(rng.IntN(2)), Cost: rng.Int64N(5), Shadow: rng.IntN(8) == 0}
			factor, wait := int64(1+rng.IntN(3))*500_000, rng.Int64N(2)*rng.Int64N(200_000)
			for _, l := range limits[z] {
				if l.Scalable() && l.Initial == nil {
					l.Limit = l.Scaled(factor)
				}
				if l.CheckDelay(wait) != nil {
					wait = 0
				}
				r.Limits = append(r.Limits, l)
			}
			r.MaxWait = wait
			if rng.IntN(20) == 0 && !strings.Contains(fmt.Sprint(r.Limits), "smooth") {
				r.Mode, r.MaxWait = algorithms.Mode(rng.IntN(4)), 0
			}
			r.Limits = append(r.Limits, bans[z]...)
			requests = append(requests, r)
		}
		return requests
	}
	for range 200 {
		requests := random()
		if rng.IntN(8) == 0 { // another instance
			_, _ = f.Take(t.Context(), requests)
			continue
		}
		allowed, asked := answerOf(t, c, f, requests)
		if remembered := requests[0].Decisions[0].Remembered; remembered == asked || remembered && allowed {
			t.Fatalf("seed %d: asked %v, allowed %v: %+v", seed, asked, allowed, requests)
		}
		if !asked {
			check := append([]store.Request(nil), requests...)
			for i := range check {
				check[i].Decisions = nil
			}
			if allowed, _ := f.Take(t.Context(), check); allowed {
				t.Fatalf("seed %d: the store allows what the cache refused: %+v\nthe store: %+v", seed, requests, check)
			}
			for i, r := range requests {
				if last := r.Decisions[len(r.Decisions)-1]; r.Limits[len(r.Limits)-1].Bans() && (last.Allowed || r.Shadow) {
					t.Fatalf("seed %d: a zone with a ban that may count was not asked: %+v", seed, r)
				}
				for j, d := range r.Decisions {
					is := check[i].Decisions[j]
					if d.Unknown() {
						continue
					}
					if hits[r.Limits[j].Quota.Algorithm]++; is.Allowed || d.Charged != 0 || d.Receipt != (algorithms.Receipt{}) {
						t.Fatalf("seed %d: %v does not refuse: %+v, remembered %+v", seed, r.Limits[j].Limit, is, d)
					}
					const trip = 2000 // at most: decisions age from when the answer came
					if d.RetryAfter > is.RetryAfter+trip {
						t.Fatalf("seed %d: %v: retry after %d µs, remembered %d µs", seed, r.Limits[j].Limit, is.RetryAfter, d.RetryAfter)
					}
				}
			}
		}
		time.Sleep(time.Duration(rng.Int64N(2)*rng.Int64N(rng.Int64N(400_000)+1)) * time.Microsecond)
	}
}

// A refusal is remembered from before it was asked for, as long as its retry-after, and
// a second at most; a request that never passes, a second.
func TestDenyCacheUntil(t *testing.T) {
	const trip = 40 * time.Millisecond
	for _, test := range []struct {
		window time.Duration // of one event
		cost   int64
		until  time.Duration // since it was sent
	}{
		{300 * time.Millisecond, 1, 300*time.Millisecond - trip/2 - time.Microsecond}, // the event before it was trip/2 in the window
		{time.Hour, 1, time.Second},
		{time.Hour, 2, time.Second},
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
				told := requests[0].Decisions[0]
				if until := time.Duration(told.RetryAfter-1) * time.Microsecond; test.until < time.Second && until != test.until {
					t.Fatalf("remembered for %v, want %v", until, test.until)
				}
				came := time.Now()
				time.Sleep(time.Until(sent.Add(test.until)) - 1)
				if _, asked := answerOf(t, c, r.failing, requests); asked {
					t.Error("the store was asked before the refusal ended")
				}
				d, since := requests[0].Decisions[0], time.Since(came).Microseconds()
				if told.RetryAfter == algorithms.Forever {
					if d.RetryAfter != algorithms.Forever {
						t.Errorf("retry after %d µs, want never", d.RetryAfter)
					}
				} else if d.RetryAfter != told.RetryAfter-since || d.ResetAfter != told.ResetAfter-since || d.MoreAfter != told.MoreAfter-since || d.Remaining != told.Remaining {
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

// A refusal refuses requests that cost as much or more, have as much burst or less, and
// may be held as long or shorter, of that limit and key, and no others.
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
		if _, asked := answerOf(t, c, r.failing, with(3, time.Minute, half)); !asked {
			t.Fatal("the store was not asked at first")
		}
		refused := with(3, time.Minute, half)
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
			{"a longer wait", with(3, time.Minute+time.Microsecond, half), false},
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
			is[0].Decisions = nil
			_, _ = r.failing.Take(t.Context(), is)
			got, want := test.requests[0].Decisions[0].RetryAfter, is[0].Decisions[0].RetryAfter
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
		if _, asked := answerOf(t, c, r.failing, kinds[1]); !asked || c.Held() != 2 {
			t.Errorf("a longer wait: asked %v, %d refusals are remembered; want 2, for it takes the place of a shorter one", asked, c.Held())
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
		if _, asked := answerOf(t, c, r.failing, fifth); asked || fifth[0].Decisions[0].RetryAfter != 10_000_000_000 {
			t.Errorf("the fifth kind: asked %v, %+v", asked, fifth[0].Decisions)
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
		requests[0].Decisions = make([]algorithms.Decision, 5)
		kept := &requests[0].Decisions[0]
		if allowed, asked := answerOf(t, c, r.failing, requests); allowed || asked {
			t.Fatalf("allowed %v, asked %v", allowed, asked)
		}
		if len(requests[0].Decisions) != 2 || &requests[0].Decisions[0] != kept || len(requests[1].Decisions) != 1 {
			t.Fatalf("decisions %+v", requests)
		}
		for _, d := range []algorithms.Decision{requests[0].Decisions[0], requests[1].Decisions[0]} {
			if !d.Unknown() || d.RetryAfter != 0 || d.Charged != 0 {
				t.Errorf("a limit that was not asked: %+v", d)
			}
		}
		if d := requests[0].Decisions[1]; d.Unknown() || d.Allowed || d.RetryAfter != 3_600_000_000 || d.Remaining != 0 {
			t.Errorf("the limit that refuses: %+v", d)
		}
		if err := c.Refund(t.Context(), requests, 1); err != nil { // nothing was charged
			t.Error(err)
		}
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
	s := store.NewFailover(store.NewDenyCache(b, time.Minute), store.NewMemory().Bound(1000, zones(1), nil), func(error) {})
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
	if allowed, asked := answerOf(t, s, f, requests); allowed || asked || !requests[0].Decisions[0].Remembered {
		t.Errorf("refused before: allowed %v, asked %v, %+v", allowed, asked, requests[0].Decisions)
	}
	requests = one(1, unknown)
	if allowed, asked := answerOf(t, s, f, requests); allowed || asked || requests[0].Decisions[0].Remembered {
		t.Errorf("refused by what stands in: allowed %v, asked %v, %+v", allowed, asked, requests[0].Decisions)
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
		if err := c.Refund(t.Context(), here, 1); err != nil {
			t.Fatal(err)
		}
		if allowed, _ := answerOf(t, c, r.failing, there); !allowed {
			t.Error("refused although it was given back")
		}
		time.Sleep(time.Nanosecond)     // what is asked at the instant of a refund may have been decided before
		answerOf(t, c, r.failing, here) // refused
		if err := r.Refund(t.Context(), there, 1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second - 1)
		if allowed, _ := answerOf(t, c, r.failing, here); allowed {
			t.Error("the cache does not remember")
		}
		time.Sleep(time.Nanosecond)
		if allowed, _ := answerOf(t, c, r.failing, here); !allowed {
			t.Error("refused more than a second after it was given back")
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
	forget := store.Change{Zone: "z", Key: "k", Forget: []store.Limit{limit}}
	tests := []struct {
		name string
		free func(t *testing.T, c *store.DenyCache, charged []store.Request) error
	}{
		{"refund", func(t *testing.T, c *store.DenyCache, charged []store.Request) error {
			return c.Refund(t.Context(), charged, 1)
		}},
		{"change", func(t *testing.T, c *store.DenyCache, _ []store.Request) error { return c.Change(t.Context(), forget) }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFailing()
				h := &heldBack{Store: f, decided: make(chan struct{}), pass: make(chan struct{})}
				c := store.NewDenyCache(h, redisTimeout)
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

// However many keys are refused, so many are remembered and no more, and those that
// stand stay; what has ended makes room.
func TestDenyCacheIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &failing{Store: store.NewMemory().Bound(1_000_000, zones(1), nil)}
		c := store.NewDenyCache(f, redisTimeout)
		limit := window(t, 1, time.Hour)
		ask := func(key string) bool {
			_, asked := answerOf(t, c, f, []store.Request{{Zone: "z", Key: key, Cost: 2, Limits: []store.Limit{limit}}})
			return asked
		}
		ask("early")
		long := strings.Repeat("long", 100)
		ask(long)
		for i := range 100_000 {
			if ask(fmt.Sprint(i)); i%20_000 == 0 {
				time.Sleep(100 * time.Millisecond)
			}
		}
		if n := c.Held(); n > 1<<16 || n < 60_000 {
			t.Errorf("%d refusals are remembered", n)
		}
		if ask("early") || ask(long) {
			t.Error("a flood of keys displaced a refusal that stands")
		}
		for i := range 200 {
			if !ask(fmt.Sprint(long, i)) {
				t.Fatal("a long key is mistaken for another")
			}
		}
		time.Sleep(time.Second)
		for i := range 1000 {
			if key := fmt.Sprint("late ", i); !ask(key) || ask(key) {
				t.Fatal("what has ended makes no room")
			}
		}
		if n := c.Held(); n > 1<<16 {
			t.Errorf("%d refusals are remembered", n)
		}
		time.Sleep(3 * time.Second)
		for i := range 2000 {
			ask(fmt.Sprint("last ", i))
		}
		if n := c.Held(); n > 2000 {
			t.Errorf("%d refusals are remembered, though all but 2000 ended long ago", n)
		}
	})
}

// A decision from the cache, and one past it, allocates nothing.
func TestDenyCacheAllocatesNothing(t *testing.T) {
	f := newFailing()
	c := store.NewDenyCache(f, redisTimeout)
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
	f := store.NewMemory().Bound(1000, zones(1), nil)
	c := store.NewDenyCache(f, redisTimeout)
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

// A refusal that can end at any moment is not remembered.
func TestDenyCacheForgetsFleeting(t *testing.T) {
	s := store.NewMemory().Bound(1000, zones(1), nil)
	c := store.NewDenyCache(s, time.Minute)
	ctx := context.Background()
	r := func() []store.Request {
		return []store.Request{{Zone: "z", Key: "k", Cost: 1, Limits: []store.Limit{window(t, 1, time.Hour)}, Fleeting: true}}
	}
	first := r()
	if ok, err := s.Take(ctx, first); !ok || err != nil {
		t.Fatal(ok, err)
	}
	for range 2 {
		if ok, err := c.Take(ctx, r()); ok || err != nil || c.Held() != 0 {
			t.Errorf("taken: %v, %v; %d are remembered", ok, err, c.Held())
		}
	}
	_ = s.Refund(ctx, first, 1)
	if ok, err := c.Take(ctx, r()); !ok || err != nil {
		t.Errorf("refused though it was given back: %v, %v", ok, err)
	}
}
