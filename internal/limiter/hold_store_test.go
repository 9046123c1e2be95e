package limiter

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// slowChanges is a store whose changes take a while.
type slowChanges struct {
	store.Store
	mu                 sync.Mutex
	all, running, most int
}

func (s *slowChanges) Change(context.Context, store.Change) error {
	count := func(n int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all, s.running = s.all+max(n, 0), s.running+n
		s.most = max(s.most, s.running)
	}
	count(1)
	time.Sleep(10 * time.Millisecond) // virtual time
	count(-1)
	return nil
}

// Many responses begin holds at once. Holds of one key are one change of the store, and few changes are made at a time.
func TestManyHolds(t *testing.T) {
	for keys, want := range map[int][2]int{1: {1, 1}, 100: {100, 8}} {
		synctest.Test(t, func(t *testing.T) {
			s := new(slowChanges)
			l := &Limiter{Store: s}
			var responses sync.WaitGroup
			for i := range 500 {
				responses.Go(func() {
					errtest.Report(t, l.hold(t.Context(), store.Change{Zone: "z", Key: fmt.Sprint(i % keys), BanFor: 5_000_000, Holds: true}))
				})
			}
			responses.Wait()
			if got := [2]int{s.all, s.most}; got != want {
				t.Errorf("%d keys: %d changes and how many at a time, want %d", keys, got, want)
			}
		})
	}
}
