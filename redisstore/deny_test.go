package redisstore_test

import (
	"context"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// slowDenier is a store that calls a function after each denial, before it returns.
type slowDenier struct {
	*redisstore.Store
	meanwhile func()
}

func (s *slowDenier) Take(ctx context.Context, requests []store.Request) (bool, error) {
	allowed, err := s.Store.Take(ctx, requests)
	if !allowed && s.meanwhile != nil {
		s.meanwhile()
	}
	return allowed, err
}

// A refund frees room at once, even if Redis denied a request before the refund and the denial
// returns after it.
func TestDenialOvertakenByRefund(t *testing.T) {
	s := &slowDenier{Store: open(t, redisstore.Options{Address: redistest.Start(t).Addr, Timeout: patient})}
	cache := store.NewDenyCache(s)
	take := func(requests []store.Request, want bool) {
		t.Helper()
		if allowed, err := cache.Take(t.Context(), requests); err != nil || allowed != want {
			t.Fatalf("allowed %v, error %v, want %v", allowed, err, want)
		}
	}
	limit := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "fixed_window", Events: 1, Window: 3_600_000_000})
	ask := func() []store.Request {
		return []store.Request{{Zone: "z", Key: "k", Cost: 1, Limits: []store.Limit{limit}}}
	}
	charged := ask()
	take(charged, true)
	s.meanwhile = func() {
		s.meanwhile = nil
		if err := refund(cache, charged, 1); err != nil {
			t.Error(err)
		}
	}
	take(ask(), false)
	take(ask(), true)
	take(ask(), false)
}
