package redisstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// BenchmarkScript measures the CPU time that Redis spends on one check, for 100,000 keys and two
// script calls in flight. It includes reading the message and writing the reply.
func BenchmarkScript(b *testing.B) {
	limit := func(algorithm string, events int64) store.Limit {
		quota := algorithms.Quota{Algorithm: algorithm, Events: events, Window: 1_000_000}
		if algorithm == "calendar" {
			quota.Window, quota.Period = 0, "month"
		}
		l, err := algorithms.NewLimit(quota)
		if err != nil {
			b.Fatal(err)
		}
		return store.NewLimit("zone", "", l)
	}
	run := func(name string, r store.Request, more func(*wire.Message, *store.Request)) {
		r.Zone, r.Cost = "zone", 1
		for _, batch := range []int{9, 32} {
			b.Run(fmt.Sprintf("%s/batch=%d", name, batch), func(b *testing.B) { benchmarkScript(b, batch, r, more) })
		}
	}
	for _, a := range algorithms.All() {
		events := int64(1_000_000)
		if a.Name == "sliding_log" {
			events = 100
		}
		run(a.Name, store.Request{Limits: []store.Limit{limit(a.Name, events)}}, nil)
	}
	one := []store.Limit{limit("token_bucket", 1_000_000)}
	run("three limits", store.Request{Limits: append(one, limit("gcra", 1_000_000), limit("fixed_window", 1_000_000))}, nil)
	run("slots", store.Request{Limits: one, Slots: &store.Slots{ID: store.SlotsID("zone", ""), Limit: 10}},
		func(m *wire.Message, r *store.Request) { m.Set(wire.Names{}.Name(r.Key, r.Slots.ID), 0) })
	run("settle", store.Request{Limits: one}, func(m *wire.Message, r *store.Request) {
		now := time.Now().UnixMicro()
		r.Outcome.Decisions = []algorithms.Decision{{Charged: 1, Receipt: algorithms.Receipt{A: 1_000_000, B: now, At: now}}}
		m.Refund(r, 1)
	})
	var plans []store.Limit
	for n := range int64(1000) {
		plans = append(plans, limit("token_bucket", 1_000_000+n))
	}
	run("1000 plans", store.Request{Limits: plans}, nil)
}

// benchmarkScript checks one request with random keys. A request with many limits has one of them per
// key. more, if not nil, appends what follows the request.
func benchmarkScript(b *testing.B, batch int, r store.Request, more func(*wire.Message, *store.Request)) {
	ctx, client := context.Background(), redistest.Start(b).Client
	sha, err := client.ScriptLoad(ctx, scriptSetFor([]store.Request{r}).Script()).Result()
	if err != nil {
		b.Fatal(err)
	}
	limits := r.Limits
	checks := func(n int) {
		for done := 0; done < n; {
			pipe := client.Pipeline()
			for range 2 {
				m := new(wire.Message)
				m.Reset(wire.Names{}, wire.Head{Expected: time.Now().UnixMicro(), SlotsExpiry: 30_000_000})
				for range batch {
					key := rand.IntN(100_000)
					if r.Key = strconv.Itoa(key); len(limits) > 3 {
						r.Limits = limits[key%len(limits):][:1]
					}
					m.Take([]store.Request{r})
					if more != nil {
						more(m, &r)
					}
				}
				pipe.EvalSha(ctx, sha, m.AppendKeys(nil), m.Argument())
				done += batch
			}
			if _, err := pipe.Exec(ctx); err != nil {
				b.Fatal(err)
			}
		}
	}
	checks(100_000)
	before := cpuSeconds(b, client)
	b.ResetTimer()
	checks(b.N)
	b.ReportMetric((cpuSeconds(b, client)-before)*1e6/float64(b.N), "redis-µs/op")
}

// cpuSeconds returns the CPU time that Redis has used.
func cpuSeconds(b *testing.B, client *redis.Client) (seconds float64) {
	b.Helper()
	info := client.Info(context.Background(), "cpu").Val()
	for _, name := range []string{"used_cpu_user:", "used_cpu_sys:"} {
		_, after, _ := strings.Cut(info, name)
		text, _, _ := strings.Cut(after, "\r")
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			b.Fatal(err)
		}
		seconds += n
	}
	return seconds
}
