package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// A decision is one round trip for any number of events in a budget. The script runs a fixed number
// of commands. Where it searches a large log, the number of commands grows with the logarithm of
// the entries.
func TestWorkPerDecision(t *testing.T) {
	server := redistest.Shared(t)
	ctx := context.Background()
	s := open(t, redisstore.Options{Address: server.Addr})
	for _, g := range storetest.Growths(t) {
		t.Run(g.String(), func(t *testing.T) {
			most := 2 // MGET and SET
			if g.Entries > 0 {
				const readAtOnce = 10 // what is left of a log after so many doublings less
				most = 8 + max(bits.Len64(uint64(g.Entries))-readAtOnce, 0)
			}
			passes := g.Fill(t, s, "k")
			key := "caddy_rl:{k}:" + g.Limit.ID
			errtest.None(t, server.Client.Rename(ctx, key, "full").Err())
			decide := func(what string, now algorithms.Micros, cost int64, want bool) {
				server.Client.Copy(ctx, "full", key, server.Client.Options().DB, true)
				before, _ := stats(server.Client)
				r := g.Ask("k", cost)
				if allowed, err := s.TakeAt(ctx, now, r); err != nil || allowed != want {
					t.Fatalf("%s: %v, %v, want %v", what, allowed, err, want)
				}
				after, _ := stats(server.Client)
				ran, commands := make(map[string]int), 0
				for name, n := range after {
					if n -= before[name]; n > 0 && name != "info" && name != "evalsha" {
						ran[name] = n
						commands += n
					}
				}
				if commands > most {
					t.Errorf("%s: %d commands, want at most %d: %v", what, commands, most, ran)
				}
				if calls := after["evalsha"] - before["evalsha"]; calls != 1 {
					t.Errorf("%s: %d script calls, want 1", what, calls)
				}
			}
			decide("denied", g.Last, 1, false)
			decide("peek", g.Last, 0, true)
			decide("allowed", passes, 1, true)
			if g.Entries > 0 {
				decide("half has expired", (g.First+g.Last)/2+g.Limit.Window, 1, true)
				decide("almost all has expired", g.Last+g.Limit.Window-1, 1, true)
			}
			decide("denied, after the clock has stepped back", g.Last-3_600_000_000, 1, false)
			decide("peek, after the clock has stepped back", g.Last-3_600_000_000, 0, true)
		})
	}
}

// BenchmarkGrowth shows how long Redis is busy with a decision, and the weight of a key of 15
// bytes, as the number of events in a budget grows. The time per op is the time of a round trip.
func BenchmarkGrowth(b *testing.B) {
	server := redistest.Start(b)
	ctx := context.Background()
	s := open(b, redisstore.Options{Address: server.Addr})
	const key = "203.000.113.007"
	for _, g := range storetest.Growths(b) {
		b.Run(g.String(), func(b *testing.B) {
			server.Client.FlushDB(ctx)
			passes := g.Fill(b, s, key)
			weight := server.Client.MemoryUsage(ctx, "caddy_rl:{"+key+"}:"+g.Limit.ID, 0).Val()
			for _, l := range g.Loads(passes) {
				now := l.At // continues if -count has this run again
				b.Run(l.Name, func(b *testing.B) {
					r := g.Ask(key, l.Cost)
					server.Client.ConfigResetStat(ctx)
					for ; b.Loop(); now += l.Pace {
						_, _ = s.TakeAt(ctx, now, r)
					}
					calls, usec := stats(server.Client)
					b.ReportMetric(float64(usec["evalsha"])/float64(calls["evalsha"]), "redis-us/op")
					b.ReportMetric(float64(weight), "B/key")
				})
			}
		})
	}
}

// A script call is as many requests as their work allows, one at least.
func TestWorkPerCall(t *testing.T) {
	server := redistest.Shared(t)
	ctx := t.Context()
	const most = algorithms.MaxLogged
	for _, test := range []struct {
		events int64
		cost   int64
		batch  int
		calls  int // for 8 requests
	}{
		{1000, 1, 128, 1},
		{1000, 1, 5, 2},
		{most, 1, 128, 2},
		{most, most / 3, 128, 4},
		{most, most, 128, 8},
		{most, 1 << 31, 128, 8},
	} {
		limit := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "sliding_log", Events: test.events, Window: 3_600_000_000})
		s := open(t, redisstore.WithMaxInFlight(redisstore.Options{Address: server.Addr, Timeout: patient, Batch: test.batch}, 1))
		server.Client.FlushDB(ctx)
		ask := func(key string, cost int64) []store.ZoneRequest {
			return []store.ZoneRequest{{Zone: "z", Key: key, Cost: cost, Limits: []store.Limit{limit}}}
		}
		errtest.None(t, errtest.Of(s.Take(ctx, ask("first", 1)))) // the script is there
		var requests [][]store.ZoneRequest
		for i := range 8 {
			requests = append(requests, ask(fmt.Sprint(i), test.cost))
		}
		errs := make([]error, len(requests))
		if calls := redisstore.TakeTogether(s, requests, errs); calls != test.calls {
			t.Errorf("cost %d of %d: %d script calls, want %d", test.cost, test.events, calls, test.calls)
		}
		errtest.Report(t, errors.Join(errs...))
	}
}

// stats returns how often each command has run, and for how many µs in all, since
// the server started or its statistics were reset.
func stats(client *redis.Client) (calls, usec map[string]int) {
	calls, usec = make(map[string]int), make(map[string]int)
	info := client.Info(context.Background(), "commandstats").Val()
	for line := range strings.Lines(info) {
		name, numbers, _ := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":")
		var n, us int
		if _, err := fmt.Sscanf(numbers, "calls=%d,usec=%d", &n, &us); err == nil {
			calls[name], usec[name] = n, us
		}
	}
	return calls, usec
}
