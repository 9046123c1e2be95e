package redisstore_test

import (
	"fmt"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// An instance finds out that Redis may have lost its counts: calls failed, or a count is missing. The next
// take of each key with requests in flight then sets the count before it takes a slot. So this instance
// admits nothing above the limit, except the one request that finds the missing count.
func TestSlotsAfterLoss(t *testing.T) {
	const keys = 50
	for _, test := range []struct {
		name     string
		lose     func(t *testing.T, server *redistest.Server, s store.Store)
		admitted int
	}{
		{"killed", func(t *testing.T, server *redistest.Server, s store.Store) {
			server.Kill(t)
			if _, err := s.Take(t.Context(), request(t, "k")); err == nil {
				t.Error("a take succeeds without a Redis")
			}
			server.Restart(t)
		}, 0},
		{"flushed", func(t *testing.T, server *redistest.Server, _ store.Store) { server.Client.FlushAll(t.Context()) }, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := redistest.Start(t)
			s := open(t, redisstore.Options{Address: server.Addr, Timeout: patient})
			for n := range keys {
				takeSlot(t, s, fmt.Sprint(n), 1)
			}
			test.lose(t, server, s)
			admitted := 0
			for n := range keys {
				if takeSlot(t, s, fmt.Sprint(n), 1).Outcome.Slots.Taken {
					admitted++
				}
			}
			if admitted > test.admitted {
				t.Errorf("%d requests were admitted above the limit, want at most %d", admitted, test.admitted)
			}
		})
	}
}
