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
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// A flood of one key costs one check per 750 ms, or one of each client per retry-after and trip
// where that is shorter, because then one passes.
func TestDenyCacheFlood(t *testing.T) {
	for _, every := range []time.Duration{200 * time.Millisecond, time.Hour} {
		t.Run(fmt.Sprint(every), func(t *testing.T) {
			const trip, lasts, clients = 5 * time.Millisecond, 10 * time.Second, 20
			withDenyCache(t, trip, func(t *testing.T, c *store.DenyCache, r remote) {
				limit := fixedWindow(t, 1, every)
				takeUntilDenied(t, c, request(1, limit))
				first := r.asked.Load()
				var all sync.WaitGroup
				var requests, passed atomic.Int64
				for range clients {
					all.Go(func() {
						for began := time.Now(); time.Since(began) < lasts; time.Sleep(2 * time.Millisecond) { // virtual time
							allowed, err := c.Take(t.Context(), request(1, limit))
							errtest.Report(t, err)
							if requests.Add(1); allowed {
								passed.Add(1)
							}
						}
					})
				}
				all.Wait()
				asked := r.asked.Load() - first
				t.Logf("%d requests, %d passed, %d asked", requests.Load(), passed.Load(), asked)
				if maxAsked := int64(lasts/(750*time.Millisecond)) + 1 + clients*passed.Load(); asked > maxAsked {
					t.Errorf("asked %d times, want at most %d", asked, maxAsked)
				}
				if want := int64(lasts / (every + trip)); passed.Load() < want-1 || every == time.Hour && asked < 12 {
					t.Errorf("%d passed, want %d; asked %d times", passed.Load(), want, asked)
				}
			})
		})
	}
}

// withEndingDenial runs a test with a cache that remembers a denial, 750 ms later. By then the next request
// asks the store.
func withEndingDenial(
	t *testing.T, trip time.Duration, limit store.Limit, test func(t *testing.T, c *store.DenyCache, r remote, began time.Time),
) {
	withDenyCache(t, trip, func(t *testing.T, c *store.DenyCache, r remote) {
		takeUntilDenied(t, r.failing, request(1, limit))
		began := time.Now()
		takeAsked(t, c, r.failing, request(1, limit))
		time.Sleep(time.Until(began.Add(750 * time.Millisecond))) // virtual time
		test(t, c, r, began)
	})
}

// others sends 20 requests at once, and reports how many were denied, and how many asked.
func others(t *testing.T, c *store.DenyCache, f *failing, limit store.Limit) (denied, asked int64) {
	t.Helper()
	var all sync.WaitGroup
	var allowed atomic.Int64
	before := f.asked.Load()
	for range 20 {
		all.Go(func() {
			if ok, err := c.Take(t.Context(), request(1, limit)); ok || err != nil {
				allowed.Add(1)
			}
		})
	}
	all.Wait()
	return 20 - allowed.Load(), f.asked.Load() - before
}

// While one request asks whether a denial still stands, the others are denied by it at once. If
// it does, nobody else has to ask.
func TestDenyCacheAsksBeforeTheEnd(t *testing.T) {
	limit := fixedWindow(t, 1, time.Hour)
	withEndingDenial(t, 50*time.Millisecond, limit, func(t *testing.T, c *store.DenyCache, r remote, began time.Time) {
		var asker sync.WaitGroup
		asker.Go(func() {
			if allowed, asked := takeAsked(t, c, r.failing, request(1, limit)); allowed || !asked {
				t.Errorf("the first: allowed %v, asked %v", allowed, asked)
			}
		})
		synctest.Wait()
		if denied, asked := others(t, c, r.failing, limit); denied != 20 || asked != 0 {
			t.Errorf("of 20 others %d were denied, %d asked", denied, asked)
		}
		asker.Wait()
		for _, at := range []time.Duration{time.Second - 1, time.Second, 1500*time.Millisecond - 1} {
			time.Sleep(time.Until(began.Add(at))) // virtual time
			if denied, asked := others(t, c, r.failing, limit); denied != 20 || asked != 0 {
				t.Errorf("after %v %d were denied, %d asked", at, denied, asked)
			}
		}
		time.Sleep(time.Nanosecond) // virtual time
		if denied, asked := others(t, c, r.failing, limit); denied != 20 || asked != 1 {
			t.Errorf("after 1.5 s %d were denied, %d asked", denied, asked)
		}
	})
}

// If the client of the request that asks leaves, or there is no answer in time, another one asks
// soon; and when the second is over, all do.
func TestDenyCacheAskerLeaves(t *testing.T) {
	const again = 62500 * time.Microsecond
	synctest.Test(t, func(t *testing.T) {
		s := &hanging{failing: newFailing()}
		c := store.NewDenyCache(s)
		limit := fixedWindow(t, 1, time.Hour)
		takeUntilDenied(t, s.failing, request(1, limit))
		began := time.Now()
		takeAsked(t, c, s.failing, request(1, limit))
		time.Sleep(750 * time.Millisecond)
		s.hangs.Store(true)
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		asker := func() { _, _ = c.Take(ctx, request(1, limit)) }
		before := s.came.Load()
		for n := range int64(4) {
			go asker()
			synctest.Wait()
			if n == 0 {
				leave()
			}
			for _, wait := range []time.Duration{0, again - 1} {
				time.Sleep(wait)
				if allowed, err := c.Take(t.Context(), request(1, limit)); allowed || err != nil || s.came.Load() != before+n+1 {
					t.Errorf("allowed %v, error %v, %d have asked, want %d", allowed, err, s.came.Load()-before, n+1)
				}
			}
			time.Sleep(time.Nanosecond)
		}
		if since := time.Since(began); since != time.Second {
			t.Fatal(since)
		}
		s.hangs.Store(false)
		if denied, asked := others(t, c, s.failing, limit); denied != 20 || asked < 1 {
			t.Errorf("%d were denied, %d asked", denied, asked)
		}
	})
}

// hanging is a store that stops to answer on demand.
type hanging struct {
	*failing
	hangs atomic.Bool
	came  atomic.Int64
}

func (h *hanging) Take(ctx context.Context, requests []store.ZoneRequest) (bool, error) {
	if h.came.Add(1); h.hangs.Load() {
		<-ctx.Done()
		return false, ctx.Err()
	}
	return h.failing.Take(ctx, requests)
}

// In mode Uniform the request that begins a ban is also charged to limits with room. The RetryAfter of
// the remembered ban has this charge.
func TestDenyCacheBanAfterUniformCharge(t *testing.T) {
	const hour, ends = 3_600_000_000, 30_000_000
	withDenyCache(t, time.Millisecond, func(t *testing.T, c *store.DenyCache, r remote) {
		hourly := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "token_bucket", Events: 12, Window: hour})
		quick := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "token_bucket", Events: 6, Window: 60_000_000})
		ban := storetest.Ban(t, "z", algorithms.Ban{After: 1, Window: hour, Duration: ends, Max: ends})
		for n := range 3 {
			requests := request(6, hourly, quick)
			requests[0].Ban, requests[0].Mode = ban, algorithms.Uniform
			allowed, asked := takeAsked(t, c, r.failing, requests)
			if allowed != (n == 0) || asked != (n < 2) {
				t.Fatalf("request %d: allowed %v, asked %v", n+1, allowed, asked)
			}
			if wait := requests[0].Outcome.Decisions[0].RetryAfter; n > 0 && (wait < hour/2-10_000 || wait > hour/2) {
				t.Errorf("request %d: retry after %d µs", n+1, wait)
			}
		}
	})
}

// A request that only looks a ban up is denied by the remembered ban, and the other way round. A request with
// limits asks once, because their waits aren't known.
func TestDenyCacheBanLookup(t *testing.T) {
	const hour = 3_600_000_000
	withDenyCache(t, time.Millisecond, func(t *testing.T, c *store.DenyCache, r remote) {
		limit := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "gcra", Events: 1, Window: 2 * hour})
		ban := storetest.Ban(t, "z", algorithms.Ban{After: 1, Window: hour, Duration: hour, Max: hour})
		take := func(whole, allowed, asked bool) {
			t.Helper()
			requests := []store.ZoneRequest{{Zone: "z", Key: "k", Ban: ban}}
			if whole {
				requests = request(1, limit)
				requests[0].Ban = ban
			}
			gotAllowed, gotAsked := takeAsked(t, c, r.failing, requests)
			if gotAllowed != allowed || gotAsked != asked {
				t.Errorf("allowed %v, asked %v, want %v, %v", gotAllowed, gotAsked, allowed, asked)
			}
		}
		take(false, true, true)
		take(true, true, true)
		begins := request(1, limit)
		begins[0].Ban = ban
		errtest.None(t, errtest.Of(r.failing.Take(t.Context(), begins))) // by another instance
		take(false, false, true)
		take(false, false, false)
		take(true, false, true)
		take(true, false, false)
		take(false, false, false)
		time.Sleep(750 * time.Millisecond) // virtual time
		take(false, false, true)
		take(true, false, false)
	})
}
