package store_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
	"github.com/caddy-rate-limit/caddy-rate-limit/store/storetest"
)

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

// A flood of a banned key costs one check per second, in any mode; before that each
// refusal is counted.
func TestDenyCacheBanFlood(t *testing.T) {
	for _, mode := range []algorithms.Mode{algorithms.Binary, algorithms.Nary, algorithms.Uniform} {
		const after, lasts = 50, 10 * time.Second
		denying(t, time.Millisecond, func(t *testing.T, c *store.DenyCache, r remote) {
			initial := int64(0)
			begins := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "token_bucket", Events: 1, Window: 3_600_000_000, Initial: &initial})
			ban := storetest.Ban(t, "z", algorithms.Ban{After: after, Window: 3_600_000_000, Duration: 3_600_000_000, Most: 3_600_000_000})
			ask := func(cost int64) []store.Request {
				requests := one(cost, begins)
				requests[0].Mode, requests[0].Ban = mode, ban
				return requests
			}
			flood := func(cost int64) bool {
				requests := ask(cost)
				allowed, asked := answerOf(t, c, r.failing, requests)
				if allowed {
					t.Errorf("%v: a request passed", mode)
				}
				return asked
			}
			var banned time.Time
			for n := range after {
				banned = time.Now()
				if !flood(1) {
					t.Fatalf("%v: denial %d was not asked about", mode, n+1)
				}
			}
			if flood(1) {
				t.Errorf("%v: the store was asked about a ban that is known to stand", mode)
			}
			first := r.asked.Load()
			var all sync.WaitGroup
			for n := range 20 {
				all.Go(func() {
					for began := time.Now(); time.Since(began) < lasts; time.Sleep(time.Millisecond) {
						requests := ask(int64(n % 3))
						if mode == algorithms.Binary {
							requests[0].MaxWait = int64(n%2) * 100_000
						}
						allowed, err := c.Take(t.Context(), requests)
						rest := time.Duration(requests[0].Outcome.Ban.EndsAfter)*time.Microsecond + time.Since(banned)
						if allowed || err != nil || rest < time.Hour || rest > time.Hour+3*time.Millisecond {
							t.Errorf("%v: allowed %v, %v: the ban stands for %v: %+v", mode, allowed, err, rest, requests[0].Outcome)
						}
					}
				})
			}
			all.Wait()
			if asked := r.asked.Load() - first; asked < 9 || asked > 11 {
				t.Errorf("%v: asked %d times in %v", mode, asked, lasts)
			}
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
	r.Outcome.Decisions = r.Outcome.Decisions[:0]
	for range r.Limits {
		r.Outcome.Decisions = append(r.Outcome.Decisions, algorithms.Decision{Allowed: retry == 0, RetryAfter: retry.Microseconds()})
	}
	return retry == 0, nil
}

func (scripted) Correct([]store.Correction, func(error))    {}
func (scripted) Change(context.Context, store.Change) error { return nil }

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
