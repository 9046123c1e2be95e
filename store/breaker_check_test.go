package store_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// hangingCheck is a store whose checks end with their contexts.
type hangingCheck struct{ store.Store }

func (hangingCheck) Check(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// A check that takes too long opens a breaker. One that nobody waits for any more doesn't.
func TestBreakerOpensAfterLateCheck(t *testing.T) {
	for _, late := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := store.NewBreaker(hangingCheck{store.NewMemory(10)}, nil)
			defer b.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if !late {
				time.AfterFunc(time.Millisecond, cancel)
			}
			if err := b.Check(ctx); err == nil || b.Open() != late {
				t.Errorf("late %t: the breaker is open %t, error %v", late, b.Open(), err)
			}
		})
	}
}
