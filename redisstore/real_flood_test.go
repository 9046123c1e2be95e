//go:build real

package redisstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// counting is a store that counts takes.
type counting struct {
	store.Store
	takes atomic.Int64
}

// A flood of one denied key hardly costs Redis anything, for any number of callers and any cost.
//
// Simulated: TestDenyCacheFlood.
func TestRealFloodOfOneKey(t *testing.T) {
	const lasts = time.Second
	server := redistest.Start(t)
	for _, callers := range []int{64, 256, 4000} {
		for _, most := range []int64{1, 1000} {
			t.Run(fmt.Sprint(callers, " callers, costs up to ", most), func(t *testing.T) {
				redis, err := redisstore.New(redisstore.Options{Address: server.Addr, Timeout: 30 * time.Second}, redisstore.Hooks{})
				if err != nil {
					t.Fatal(err)
				}
				defer redis.Close()
				asked := &counting{Store: redis}
				cache := store.NewDenyCache(asked)
				limit := storetest.Limit(t, t.Name(), algorithms.Quota{Algorithm: "gcra", Events: 1000, Window: 3_600_000_000_000})
				ask := func(cost int64) []store.Request {
					return []store.Request{{Zone: "z", Key: "k", Cost: cost, Limits: []store.Limit{limit}}}
				}
				if allowed, err := redis.Take(t.Context(), ask(1000)); !allowed || err != nil {
					t.Fatal(allowed, err)
				}
				var checks, takes, calls atomic.Int64
				count := func(sign int64) {
					takes.Add(sign * asked.takes.Load())
					calls.Add(sign * int64(server.Calls(t, "evalsha")))
				}
				var all, warmingUp sync.WaitGroup
				var ended atomic.Bool
				warmingUp.Add(callers)
				for range callers {
					all.Go(func() {
						for n := 0; !ended.Load(); n++ {
							allowed, err := cache.Take(context.Background(), ask(1+rand.Int64N(most)))
							if allowed || err != nil && n > 0 { // at first all ask at once
								t.Errorf("allowed %v, error %v", allowed, err)
							}
							if n == 1 {
								warmingUp.Done()
							}
							checks.Add(1)
							time.Sleep(50 * time.Millisecond) // a client asks 20 times a second
						}
					})
				}
				warmingUp.Wait() // then the callers no longer ask all at once
				isCheap := func() bool {
					takes.Store(0)
					calls.Store(0)
					count(-1)
					before := checks.Load()
					time.Sleep(lasts) // of the flood
					count(1)
					n := checks.Load() - before
					t.Logf("%d checks in %v: Redis was asked for %d takes by %d script calls", n, lasts, takes.Load(), calls.Load())
					return takes.Load() <= 100+n/200
				}
				// If the machine stalls for as long as a denial is remembered, all callers ask again.
				cheap := false
				for range 3 {
					cheap = cheap || isCheap()
				}
				if !cheap {
					t.Error("Redis was asked for too many takes")
				}
				ended.Store(true)
				all.Wait()
			})
		}
	}
}

func (c *counting) Take(ctx context.Context, requests []store.Request) (bool, error) {
	c.takes.Add(1)
	return c.Store.Take(ctx, requests)
}
