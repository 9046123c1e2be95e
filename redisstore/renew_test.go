package redisstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
	"github.com/caddy-rate-limit/caddy-rate-limit/store/storetest"
)

// What is renewed among takes and refunds is charged in Redis as it is in memory, event
// for event, whatever the limit.
func TestRenewParity(t *testing.T) {
	server := redistest.Start(t)
	ctx := context.Background()
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 0))
		there := open(t, redisstore.Options{Address: server.Addr, KeyPrefix: fmt.Sprint("test", seed), Timeout: patient})
		here := store.NewMemory().Bound(1000, func() int { return 1 }, nil)
		all := storetest.Quotas(6, 60_000_000)
		all = append(all, algorithms.Quota{Algorithm: "sliding_log", Events: 6, Window: 60_000_000, Buckets: 7})
		limits := []store.Limit{storetest.Limit(t, "z", all[r.IntN(len(all))]), storetest.Limit(t, "z", algorithms.Quota{Algorithm: "sliding_log", Events: 8, Window: 30_000_000})}
		now := algorithms.Micros(1_763_640_000_000_000)
		var inRedis, inMemory []store.Request // that were charged
		var did strings.Builder
		for range 60 {
			if now += r.Int64N(5_000_000) - 500_000; r.IntN(12) == 0 { // the clock steps back
				now -= 1_000_001 + r.Int64N(120_000_000)
			}
			switch what := r.IntN(3); {
			case what > 0 || len(inRedis) == 0:
				q := store.Request{Zone: "z", Key: fmt.Sprint(r.IntN(2)), Limits: limits, Cost: 1 + r.Int64N(3)}
				a, b := []store.Request{q}, []store.Request{q}
				fmt.Fprintf(&did, "\n%d: take %d of key %s", now, q.Cost, q.Key)
				allowed, err := there.TakeAt(ctx, now, a)
				if err != nil {
					t.Fatal(err)
				}
				also, _ := here.TakeAt(ctx, now, b)
				if allowed != also || !slices.Equal(a[0].Decisions, b[0].Decisions) {
					t.Fatalf("seed %d %v: Redis says\n%+v, memory\n%+v of%s", seed, limits[0].Limit, a[0].Decisions, b[0].Decisions, did.String())
				}
				if allowed {
					inRedis, inMemory = append(inRedis, a[0]), append(inMemory, b[0])
				}
			case r.IntN(2) == 0:
				i := r.IntN(len(inRedis))
				fmt.Fprintf(&did, "\n%d: give %d back", now, i)
				if err := there.RefundAt(ctx, now, inRedis[i:i+1], 2); err != nil {
					t.Fatal(err)
				}
				_ = here.RefundAt(ctx, now, inMemory[i:i+1], 2)
				inRedis, inMemory = slices.Delete(inRedis, i, i+1), slices.Delete(inMemory, i, i+1)
			default:
				i := r.IntN(len(inRedis))
				fmt.Fprintf(&did, "\n%d: renew from %d on", now, i)
				if err := there.RenewAt(ctx, now, inRedis[i:]); err != nil {
					t.Fatal(err)
				}
				_ = here.RenewAt(ctx, now, inMemory[i:])
				for j := range inRedis[i:] {
					if a, b := inRedis[i+j].Decisions, inMemory[i+j].Decisions; !slices.Equal(a, b) {
						t.Fatalf("seed %d %v: Redis renews as\n%+v, memory as\n%+v in%s", seed, limits[0].Limit, a, b, did.String())
					}
				}
			}
		}
	}
}

// A key that holds something else fails alone, and says so.
func TestRenewForeignValue(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, redisstore.Options{Address: server.Addr})
	ctx := context.Background()
	good, bad := request(t, "good"), request(t, "bad")
	for _, r := range [][]store.Request{good, bad} {
		if ok, err := s.Take(ctx, r); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	key := "caddy_rl:{bad}:" + bad[0].Limits[0].ID
	if err := server.Client.Set(ctx, key, "strange", 0).Err(); err != nil {
		t.Fatal(err)
	}
	before := good[0].Decisions[0].Receipt
	err := s.Renew(ctx, append(slices.Clone(bad), good...))
	wantReason(t, "renewing", err, store.ReasonKey)
	if good[0].Decisions[0].Receipt == before {
		t.Error("the other one was not renewed")
	}
}

// What Redis comes to when nobody waits for it any more is not renewed: the request may have
// ended by then. With a clock of Redis that is known too badly it is done at once.
func TestRenewLate(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, redisstore.Options{Address: server.Addr, Timeout: 500 * time.Millisecond})
	ctx := context.Background()
	limit := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "sliding_log", Events: 10, Window: 3_600_000_000})
	r := []store.Request{{Zone: "z", Key: "k", Cost: 1, Limits: []store.Limit{limit}}}
	if ok, err := s.Take(ctx, r); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := s.Renew(ctx, r); err != nil { // the script is there
		t.Fatal(err)
	}
	redisstore.Pretend(s, time.Now().Add(-time.Hour))
	before := r[0].Decisions[0].Receipt
	if err := s.Renew(ctx, r); err != nil || r[0].Decisions[0].Receipt == before {
		t.Errorf("when the clock of Redis was set ahead: %v, %+v", err, r[0].Decisions[0])
	}
	server.Freeze(t)
	before = r[0].Decisions[0].Receipt
	err := s.Renew(ctx, r)
	wantReason(t, "renewing when Redis hangs", err, store.ReasonTimeout)
	time.Sleep(200 * time.Millisecond) // past the last instant
	server.Thaw(t)
	patience := open(t, redisstore.Options{Address: server.Addr, Timeout: patient})
	if err := patience.Refund(ctx, r, 1); err != nil || r[0].Decisions[0].Receipt != before {
		t.Fatal(err, r[0].Decisions[0])
	}
	peek := []store.Request{{Zone: "z", Key: "k", Limits: []store.Limit{limit}}}
	if _, err := patience.Take(ctx, peek); err != nil || peek[0].Decisions[0].Remaining != 10 {
		t.Errorf("%v, %d remain, want 10: it was renewed late, and its receipt is good for nothing", err, peek[0].Decisions[0].Remaining)
	}
}
