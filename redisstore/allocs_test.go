package redisstore_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Requests that travel together share the allocations of their message. A request that travels
// alone has its own.
func TestTakeAllocates(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	s, err := redisstore.New(redisstore.Options{Address: redistest.Start(t).Addr, Timeout: 10 * time.Second}, redisstore.Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	limit := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "token_bucket", Events: 1_000_000, Window: 1_000_000})
	for _, test := range []struct{ callers, most int }{{1, 14}, {64, 8}} {
		const each = 100
		requests := make([][]store.Request, test.callers)
		for i := range requests {
			requests[i] = []store.Request{{Zone: "z", Key: fmt.Sprint(i), Limits: []store.Limit{limit}, Cost: 1}}
		}
		got := testing.AllocsPerRun(5, func() {
			var all sync.WaitGroup
			for _, r := range requests {
				all.Go(func() {
					for range each {
						if _, err := s.Take(context.Background(), r); err != nil {
							t.Error(err)
						}
					}
				})
			}
			all.Wait()
		}) / float64(each*test.callers)
		if got > float64(test.most) {
			t.Errorf("%d callers: %.1f allocations for a request, want at most %d", test.callers, got, test.most)
		}
		t.Logf("%d callers: %.1f allocations for a request", test.callers, got)
	}
}
