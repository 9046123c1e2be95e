package store_test

import (
	"context"
	"errors"
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
	for _, a := range algorithms.All() {
		if t.Logf("%s refused from the cache %d times", a.Name, hits[a.Name]); hits[a.Name] < 500 {
			t.Errorf("%s was refused from the cache only %d times", a.Name, hits[a.Name])
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
	random := func() (requests []store.Request) {
		for z := range 1 + rng.IntN(2) {
			r := store.Request{Zone: fmt.Sprint("z", z), Key: fmt.Sprint(rng.IntN(2)), Cost: rng.Int64N(5)}
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
			{"more cost", with(4, time.Minute, half), true},
			{"more cost than its burst", with(6, time.Minute, half), true},
			{"less burst", with(3, time.Minute, scaled(3)), true},
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
			if exact := !strings.HasPrefix(test.what, "more cost") && test.what != "less burst" || want == algorithms.Forever; got != want && exact || got > want {
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
		answerOf(t, c, r.failing, one(1, large)) // which says all that the two do
		for _, requests := range append(kinds, one(1, large)) {
			if _, asked := answerOf(t, c, r.failing, requests); asked {
				t.Errorf("%+v: asked", requests)
			}
		}
		if n := c.Held(); n != 1 {
			t.Errorf("%d refusals are remembered where one says all", n)
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

// A flood of one key costs one check per second, or per retry-after and trip where that
// is shorter.
func TestDenyCacheFlood(t *testing.T) {
	for _, every := range []time.Duration{200 * time.Millisecond, time.Hour} {
		t.Run(fmt.Sprint(every), func(t *testing.T) {
			const trip, lasts, clients = 5 * time.Millisecond, 10 * time.Second, 20
			denying(t, trip, func(t *testing.T, c *store.DenyCache, r remote) {
				limit := window(t, 1, every)
				exhaust(t, c, one(1, limit))
				first := r.asked.Load()
				var all sync.WaitGroup
				var requests, passed atomic.Int64
				for range clients {
					all.Go(func() {
						for began := time.Now(); time.Since(began) < lasts; time.Sleep(time.Millisecond) {
							allowed, err := c.Take(t.Context(), one(1, limit))
							if err != nil {
								t.Error(err)
							}
							if requests.Add(1); allowed {
								passed.Add(1)
							}
						}
					})
				}
				all.Wait()
				asked := r.asked.Load() - first
				t.Logf("%d requests, %d passed, %d asked", requests.Load(), passed.Load(), asked)
				// When one passes, the others that waited ask for themselves.
				if most := int64(lasts/min(every, time.Second)) + 1 + clients*passed.Load(); asked > most {
					t.Errorf("asked %d times, want at most %d", asked, most)
				}
				if want := int64(lasts / (every + trip)); passed.Load() < want-1 || every == time.Hour && asked < 9 {
					t.Errorf("%d passed, want %d; asked %d times", passed.Load(), want, asked)
				}
			})
		})
	}
}

// Where the store is so far away that a request can't wait for another's answer and its
// own, it doesn't; and a refusal that is over before it is known is not remembered.
func TestDenyCacheFarAway(t *testing.T) {
	const trip = 60_000
	for _, spacing := range []algorithms.Micros{trip - 10_000, trip + 30_000, 3_600_000_000} {
		testFarAway(t, trip, spacing)
	}
}

func testFarAway(t *testing.T, trip, spacing algorithms.Micros) {
	denying(t, time.Duration(trip)*time.Microsecond, func(t *testing.T, c *store.DenyCache, r remote) {
		limit := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "gcra", Events: 1, Window: spacing})
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				for range 50 {
					if _, err := c.Take(t.Context(), one(1, limit)); err != nil {
						t.Error(err)
					}
					time.Sleep(time.Millisecond)
				}
			})
		}
		all.Wait()
		if n := c.Held(); n != 0 && spacing < trip {
			t.Errorf("%d refusals are remembered", n)
		}
	})
}

const trip = 20 * time.Millisecond

// waiters has a refusal end, one request ask about it and 20 wait for that, and returns
// how those went. While they wait, meanwhile is called, with what makes the asker leave.
func waiters(t *testing.T, c *store.DenyCache, f *failing, limit store.Limit, meanwhile func(leave func())) (allowed, refused, asked int64, errs []error, asker error) {
	t.Helper()
	exhaust(t, c, one(1, limit))
	time.Sleep(time.Second)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var all sync.WaitGroup
	all.Go(func() { _, asker = c.Take(ctx, one(1, limit)) })
	synctest.Wait()
	before := f.asked.Load()
	var mu sync.Mutex
	for range 20 {
		all.Go(func() {
			ok, err := c.Take(t.Context(), one(1, limit))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				errs = append(errs, err)
			case ok:
				allowed++
			default:
				refused++
			}
		})
	}
	synctest.Wait()
	meanwhile(leave)
	all.Wait()
	return allowed, refused, f.asked.Load() - before, errs, asker
}

// If the asking request is refused, so are those that wait; if it is allowed, they ask
// for themselves.
func TestDenyCacheWaitersAreAnswered(t *testing.T) {
	for _, test := range []struct {
		limit                  store.Limit
		allowed, refused, asks int64
	}{
		{window(t, 1, time.Hour), 0, 20, 1},
		{window(t, 5, 1010*time.Millisecond), 4, 16, 21}, // whose window is over by then
	} {
		denying(t, trip, func(t *testing.T, c *store.DenyCache, r remote) {
			allowed, refused, asked, errs, asker := waiters(t, c, r.failing, test.limit, func(func()) {})
			if errs != nil || asker != nil || allowed != test.allowed || refused != test.refused || asked != test.asks {
				t.Errorf("of 20 that waited %d passed, %d were refused, %d asked, errors %v %v", allowed, refused, asked, errs, asker)
			}
		})
	}
}

// scripted is a store that says of a request, by its limits, when it has an answer, and
// how long it is refused.
type scripted func(limits int, first string) (after, retry time.Duration)

func (s scripted) Take(_ context.Context, requests []store.Request) (bool, error) {
	r := &requests[0]
	after, retry := s(len(r.Limits), r.Limits[0].ID)
	time.Sleep(after)
	r.Decisions = r.Decisions[:0]
	for range r.Limits {
		r.Decisions = append(r.Decisions, algorithms.Decision{Allowed: retry == 0, RetryAfter: retry.Microseconds()})
	}
	return retry == 0, nil
}

func (scripted) Refund(context.Context, []store.Request, int64) error { return nil }

// A request that waited is refused by what stood when it came, though that has ended
// meanwhile: it does not wait again.
func TestDenyCacheWaitersAreJudgedByWhenTheyCame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := window(t, 1, time.Hour), window(t, 1, time.Minute)
		began, both := time.Now(), 0
		c := store.NewDenyCache(scripted(func(limits int, first string) (after, retry time.Duration) {
			switch {
			case limits == 2:
				both++
				return 0, 0
			case first == b.ID:
				return 5 * time.Millisecond, 10 * time.Millisecond
			case time.Since(began) < time.Second:
				return 0, time.Hour
			}
			return 20 * time.Millisecond, 0
		}), redisTimeout)
		exhaust(t, c, one(1, a))
		time.Sleep(time.Second)
		var all sync.WaitGroup
		all.Go(func() { _, _ = c.Take(t.Context(), one(1, a)) }) // asks for 20 ms, and is allowed
		all.Go(func() { _, _ = c.Take(t.Context(), one(1, b)) }) // is refused until 10 ms from now, as is known in 5 ms
		synctest.Wait()
		time.Sleep(time.Millisecond)
		if allowed, err := c.Take(t.Context(), one(1, a, b)); allowed || err != nil || both != 0 {
			t.Errorf("allowed %v, asked %d times, error %v", allowed, both, err)
		}
		if waited := time.Since(began.Add(time.Second)); waited != 20*time.Millisecond {
			t.Errorf("it waited until %v", waited)
		}
		all.Wait()
	})
}

// If the client of the asking request leaves, one of those that wait asks next.
func TestDenyCacheAskerLeaves(t *testing.T) {
	denying(t, trip, func(t *testing.T, c *store.DenyCache, r remote) {
		allowed, refused, asked, errs, asker := waiters(t, c, r.failing, window(t, 1, time.Hour), func(leave func()) { leave() })
		if errs != nil || !errors.Is(asker, context.Canceled) || allowed != 0 || refused != 20 || asked != 1 {
			t.Errorf("%d passed, %d were refused, %d asked, errors %v, the asker's %v", allowed, refused, asked, errs, asker)
		}
	})
}

// If the store fails, those that wait have failed, too, and later requests ask, each
// for itself.
func TestDenyCacheStoreFails(t *testing.T) {
	denying(t, trip, func(t *testing.T, c *store.DenyCache, r remote) {
		limit := window(t, 1, time.Hour)
		_, _, asked, errs, asker := waiters(t, c, r.failing, limit, func(func()) { r.fail(errGone) })
		if len(errs) != 20 || !errors.Is(asker, errGone) || asked != 1 {
			t.Errorf("%d failed, %d asked, the asker's error is %v", len(errs), asked, asker)
		}
		for _, err := range errs {
			if !errors.Is(err, errGone) {
				t.Errorf("error %v", err)
			}
		}
		if n := c.Held(); n != 0 {
			t.Errorf("%d refusals are remembered after a failure", n)
		}
	})
}

// If the budget of the key alone fails, those that wait see for themselves.
func TestDenyCacheKeyFails(t *testing.T) {
	denying(t, trip, func(t *testing.T, c *store.DenyCache, r remote) {
		_, _, asked, errs, _ := waiters(t, c, r.failing, window(t, 1, time.Hour), func(func()) {
			r.fail(&store.Error{Reason: store.ReasonKey, Err: errors.New("a hash")})
		})
		if len(errs) != 20 || asked != 21 {
			t.Errorf("%d failed, %d asked", len(errs), asked)
		}
	})
}

// Requests that wait do so as long as the store may take, and as their clients stay.
func TestDenyCacheWaitersLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &hanging{failing: newFailing()}
		c := store.NewDenyCache(s, redisTimeout)
		limit := window(t, 1, time.Hour)
		exhaust(t, c, one(1, limit))
		time.Sleep(time.Second)
		s.hangs.Store(true)
		asker, leave := context.WithCancel(t.Context())
		go func() { _, _ = c.Take(asker, one(1, limit)) }()
		synctest.Wait()
		began := time.Now()
		var failed *store.Error
		if _, err := c.Take(t.Context(), one(1, limit)); !errors.As(err, &failed) || failed.Reason != store.ReasonTimeout || time.Since(began) != redisTimeout {
			t.Errorf("after %v: %v, want a timeout after %v", time.Since(began), err, redisTimeout)
		}
		gone, cancel := context.WithTimeout(t.Context(), redisTimeout/2)
		defer cancel()
		if _, err := c.Take(gone, one(1, limit)); errors.As(err, &failed) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a client that left: %v", err)
		}
		// Of one that waited and then asks, the whole counts.
		began = time.Now()
		time.AfterFunc(redisTimeout/2, leave)
		if _, err := c.Take(t.Context(), one(1, limit)); !errors.As(err, &failed) || failed.Reason != store.ReasonTimeout || time.Since(began) != redisTimeout {
			t.Errorf("after %v: %v, want a timeout after %v", time.Since(began), err, redisTimeout)
		}
		s.hangs.Store(false)
		if allowed, asked := answerOf(t, c, s.failing, one(1, limit)); allowed || !asked {
			t.Errorf("when it works again: allowed %v, asked %v", allowed, asked)
		}
	})
}

// hanging is a store that can be told not to answer.
type hanging struct {
	*failing
	hangs atomic.Bool
}

func (h *hanging) Take(ctx context.Context, requests []store.Request) (bool, error) {
	if h.hangs.Load() {
		<-ctx.Done()
		return false, ctx.Err()
	}
	return h.failing.Take(ctx, requests)
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
