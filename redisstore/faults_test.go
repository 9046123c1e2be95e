package redisstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Faults of other rate limiters that show in Redis alone.

// expiries returns how long every key of a Redis has left; -1 is for ever.
func expiries(t *testing.T, client *redis.Client) map[string]time.Duration {
	t.Helper()
	const gone = -2 // between the two commands
	left, ctx := make(map[string]time.Duration), context.Background()
	keys := client.Scan(ctx, 0, "*", 1000).Iterator()
	for keys.Next(ctx) {
		one, err := client.PTTL(ctx, keys.Val()).Result()
		if err != nil {
			t.Fatal(err)
		}
		if one != gone {
			left[keys.Val()] = one
		}
	}
	if err := keys.Err(); err != nil {
		t.Fatal(err)
	}
	return left
}

// A key without an expiry, or with one that is refreshed by looking, never goes away (Kong;
// throttled, where a crash came between SETNX and EXPIRE). The key of a budget always expires, at
// most two steps of expiries after the budget is full again.
func TestFaultImmortalKeys(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, redisstore.Options{Address: server.Addr})
	ctx := context.Background()
	seen := 0
	for n, q := range storetest.Variants(3, 60_000_000) {
		rng := rand.New(rand.NewPCG(uint64(n), 6))
		limit := storetest.Limit(t, "z", q)
		server.Client.FlushAll(ctx)
		var charged []store.Request
		longest := algorithms.Micros(0) // for which the key may be kept, because a refund leaves the expiry of some limits
		var slowest time.Duration       // of the calls: Redis may stand still between reading its clock and setting an expiry
		for range 60 {
			r := store.Request{Zone: "z", Key: "k", Cost: []int64{0, 1, 1, 2, 5}[rng.IntN(5)], Limits: []store.Limit{limit}}
			if !limit.Algorithm().BinaryOnly {
				r.Mode = []algorithms.Mode{algorithms.Binary, algorithms.Nary, algorithms.Uniform, algorithms.Force}[rng.IntN(4)]
			}
			if r.Mode == algorithms.Binary && limit.CheckDelay(120_000_000) == nil && rng.IntN(2) == 0 {
				r.MaxWait = rng.Int64N(120_000_000)
			}
			one := []store.Request{r}
			began := time.Now()
			allowed, err := s.Take(ctx, one)
			if err != nil {
				t.Fatal(err)
			}
			slowest = max(slowest, time.Since(began))
			did := fmt.Sprintf("%v of cost %d, max wait %d", r.Mode, r.Cost, r.MaxWait)
			most := one[0].Outcome.Decisions[0].ResetAfter + 2*quantum(limit)
			if limit.KeptAfterReset() {
				most += limit.Window
			}
			longest = max(longest, most)
			if allowed && r.Cost > 0 {
				charged = append(charged, one[0])
			}
			if len(charged) > 0 && rng.IntN(3) == 0 {
				did += " and a refund"
				i := rng.IntN(len(charged))
				began := time.Now()
				if err := refund(s, charged[i:i+1], 1+rng.Int64N(3)); err != nil {
					t.Fatal(err)
				}
				slowest = max(slowest, time.Since(began))
				charged = append(charged[:i], charged[i+1:]...)
			}
			for key, left := range expiries(t, server.Client) {
				if seen++; left < 0 || left > time.Duration(longest)*time.Microsecond+slowest+10*time.Millisecond {
					t.Fatalf("%v: after %s %s expires in %v, the budget is whole in %d µs", limit, did, key, left, longest)
				}
			}
		}
	}
	if seen < 500 {
		t.Errorf("only %d keys seen", seen)
	}
}

// quantum returns the distance of the instants at which budgets of a limit expire. It is the time
// in which 16 events come back, or the whole burst if that is less. It is at least a second.
func quantum(l store.Limit) algorithms.Micros {
	if l.Algorithm().Calendar {
		return 1_000_000
	}
	return max((min(16, l.Burst)*l.Window+l.Events-1)/l.Events, 1_000_000)
}

// A limiter kept state for 2 s, even if a client had to wait longer (Traefik). Another one cut the
// time to whole seconds (throttled). No key goes before its debt is paid.
func TestFaultExpiryShorterThanDebt(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, redisstore.Options{Address: server.Addr})
	ctx := context.Background()
	for _, window := range []algorithms.Micros{1_999_999, 10_500_000, 86_400_000_000, 20 * 365 * 86_400_000_000} {
		for _, q := range storetest.Variants(2, window) {
			if q.WarmUp > 86_400_000_000 {
				q.WarmUp = 86_400_000_000
			}
			limit := storetest.Limit(t, "z", q)
			for _, inAdvance := range storetest.Debts(t, q) {
				server.Client.FlushAll(ctx)
				asked := time.Now()
				retry := storetest.Indebted(t, s, 0, "k", limit, inAdvance)
				left := expiries(t, server.Client)
				if len(left) != 1 {
					t.Fatalf("%v: %d keys", limit, len(left))
				}
				for key, expires := range left {
					if expires+time.Since(asked) < time.Duration(retry)*time.Microsecond {
						t.Errorf("%v, in advance %v: %s expires in %v, its debt is paid in %v", limit, inAdvance, key, expires, time.Duration(retry)*time.Microsecond)
					}
				}
			}
		}
	}
}
