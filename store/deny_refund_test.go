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

func (h *delaying) Take(ctx context.Context, requests []store.Request) (bool, error) {
	allowed, err := h.Store.Take(ctx, requests)
	if h.hold.Load() {
		h.decided <- struct{}{}
		<-h.pass
	}
	return allowed, err
}

// A denial is not remembered if the store may have decided before a refund or a change of the key through
// the same cache.
func TestDenyCacheForgetsEarlierDecisions(t *testing.T) {
	limit := fixedWindow(t, 1, time.Hour)
	requestOf := func(key string) []store.Request {
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
				h := &delaying{Store: f, decided: make(chan struct{}), pass: make(chan struct{})}
				c := store.NewDenyCache(h)
				charged, others := requestOf("k"), []string{"a", "b", "c"} // by chance, one may share the instant of the change
				takeAsked(t, c, f, charged)
				for _, key := range others {
					takeAsked(t, c, f, requestOf(key))
				}
				h.hold.Store(true)
				var late sync.WaitGroup
				for _, key := range append(others, "k") {
					late.Go(func() {
						if allowed, err := c.Take(t.Context(), requestOf(key)); allowed || err != nil {
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
				if allowed, asked := takeAsked(t, c, f, requestOf("k")); !allowed || !asked {
					t.Errorf("once it is free: allowed %v, asked %v", allowed, asked)
				}
				remembered := 0
				for _, key := range others {
					if allowed, asked := takeAsked(t, c, f, requestOf(key)); !allowed && !asked {
						remembered++
					}
				}
				if remembered == 0 {
					t.Error("the denials of other keys are not remembered")
				}
				time.Sleep(time.Millisecond)
				takeAsked(t, c, f, requestOf("k"))
				if allowed, asked := takeAsked(t, c, f, requestOf("k")); allowed || asked {
					t.Errorf("a later denial is not remembered: allowed %v, asked %v", allowed, asked)
				}
			})
		})
	}
}
