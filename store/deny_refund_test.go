package store_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// The denials of the main store are remembered, also while the breaker is open. The denials of the
// local store are not.
func TestDenyCacheInOutage(t *testing.T) {
	f := newFailing()
	b := store.NewBreaker(f, nil)
	t.Cleanup(b.Close)
	s := store.NewFailover(store.NewDenyCache(b), store.NewSharedMemory().Bounded(1000, zoneCount(1), nil), func(error) {})
	known, unknown := fixedWindow(t, 1, time.Hour), fixedWindow(t, 2, time.Hour)
	takeUntilDenied(t, s, request(1, known))
	f.fail(errGone)
	for range 10 {
		takeUntilDenied(t, s, request(1, unknown))
	}
	if !b.Open() {
		t.Fatal("the breaker is closed")
	}
	requests := request(1, known)
	if allowed, asked := takeAsked(t, s, f, requests); allowed || asked || !requests[0].Outcome.Cached || requests[0].Outcome.Local {
		t.Errorf("denied before: allowed %v, asked %v, %+v", allowed, asked, requests[0].Outcome)
	}
	requests = request(1, unknown)
	if allowed, asked := takeAsked(t, s, f, requests); allowed || asked || requests[0].Outcome.Cached || !requests[0].Outcome.Local {
		t.Errorf("denied by the local store: allowed %v, asked %v, %+v", allowed, asked, requests[0].Outcome.Decisions)
	}
}

// A denial because of reserved events isn't remembered: another instance can give them back at any instant.
func TestDenyCacheAsksBesideReserved(t *testing.T) {
	withDenyCache(t, 0, func(t *testing.T, c *store.DenyCache, r remote) {
		requests := request(1, fixedWindow(t, 1, time.Hour))
		requests[0].ReservedID = store.ReservedID(requests[0].Zone, "")
		takeAsked(t, c, r.failing, requests)
		for range 3 {
			if allowed, asked := takeAsked(t, c, r.failing, requests); allowed || !asked || !requests[0].LacksReserved() {
				t.Errorf("allowed %v, asked %v, %+v", allowed, asked, requests[0].Outcome)
			}
		}
	})
}

// A refund through the cache takes effect at once, and a refund elsewhere within a second.
func TestDenyCacheRefund(t *testing.T) {
	withDenyCache(t, 0, func(t *testing.T, c *store.DenyCache, r remote) {
		limit := fixedWindow(t, 1, time.Hour)
		here, there := request(1, limit), request(1, limit)
		takeAsked(t, c, r.failing, here)
		if allowed, _ := takeAsked(t, c, r.failing, there); allowed {
			t.Fatal("allowed twice")
		}
		c.Correct(storetest.Refunds(here, 1), nil)
		if allowed, _ := takeAsked(t, c, r.failing, there); !allowed {
			t.Error("denied although it was given back")
		}
		time.Sleep(time.Nanosecond)      // virtual time; a request at the instant of a refund may have been decided before
		takeAsked(t, c, r.failing, here) // denied
		r.Correct(storetest.Refunds(there, 1), nil)
		time.Sleep(750*time.Millisecond - 1) // virtual time
		if allowed, _ := takeAsked(t, c, r.failing, here); allowed {
			t.Error("the cache does not remember")
		}
		time.Sleep(time.Nanosecond) // virtual time
		if allowed, _ := takeAsked(t, c, r.failing, here); !allowed {
			t.Error("the store was not asked again")
		}
	})
}

// delaying is a store that can delay its answers: it sends to decided, and waits for pass.
type delaying struct {
	store.Store
	hold    atomic.Bool
	decided chan struct{}
	pass    chan struct{}
}

func (h *delaying) Take(ctx context.Context, requests []store.ZoneRequest) (bool, error) {
	allowed, err := h.Store.Take(ctx, requests)
	if h.hold.Load() {
		h.decided <- struct{}{}
		<-h.pass
	}
	return allowed, err
}

// A denial is not remembered if the store may have decided before a refund or a change of the key through
// the same cache. A later denial is.
func TestDenyCacheForgetsEarlierDecisions(t *testing.T) {
	limit := fixedWindow(t, 1, time.Hour)
	for name, free := range map[string]func(c *store.DenyCache, charged []store.ZoneRequest){
		"refund": func(c *store.DenyCache, charged []store.ZoneRequest) { c.Correct(storetest.Refunds(charged, 1), nil) },
		"change": func(c *store.DenyCache, _ []store.ZoneRequest) {
			_ = c.Change(context.Background(), store.Change{Zone: "z", Key: "k", Forget: []string{limit.ID}}) // never fails
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFailing()
				h := &delaying{Store: f, decided: make(chan struct{}), pass: make(chan struct{})}
				c := store.NewDenyCache(h)
				charged := request(1, limit)
				takeAsked(t, c, f, charged)
				h.hold.Store(true)
				var late sync.WaitGroup
				late.Go(func() {
					if allowed, err := c.Take(t.Context(), request(1, limit)); allowed || err != nil {
						t.Errorf("allowed %v, error %v", allowed, err)
					}
				})
				<-h.decided
				h.hold.Store(false)
				free(c, charged)
				close(h.pass) // the denial arrives now
				late.Wait()
				time.Sleep(time.Nanosecond) // virtual time; a request at the instant of a refund may have been decided before
				for n, want := range []bool{true, true, false} {
					if allowed, asked := takeAsked(t, c, f, request(1, limit)); allowed != (n == 0) || asked != want {
						t.Errorf("request %d: allowed %v, asked %v", n, allowed, asked)
					}
				}
			})
		})
	}
}
