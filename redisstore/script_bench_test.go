package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// checked is a kind of check to measure. correct, if not nil, appends the correction of the request.
type checked struct {
	name    string
	request store.ZoneRequest
	correct func(m *wire.Message, r *store.ZoneRequest, now algorithms.Micros)
}

// checkedKinds returns a kind of check for each algorithm, and some others. Limits allow events per window.
func checkedKinds(b *testing.B, events int64, window algorithms.Micros) (kinds []checked) {
	limit := func(algorithm string, events int64) store.Limit {
		quota := algorithms.Quota{Algorithm: algorithm, Events: events, Window: window}
		if algorithm == "calendar" {
			quota.Window, quota.Period = 0, "month"
		}
		return storetest.Limit(b, "zone", quota)
	}
	for _, a := range algorithms.All() {
		most := events
		if a.Name == "sliding_log" {
			most = 100
		}
		kinds = append(kinds, checked{name: a.Name, request: store.ZoneRequest{Limits: []store.Limit{limit(a.Name, most)}}})
	}
	one := []store.Limit{limit("token_bucket", events)}
	three := append(one, limit("gcra", events), limit("fixed_window", events))
	slots := &store.Slots{ID: store.SlotsID("zone", ""), Limit: 10}
	var plans []store.Limit
	for n := range int64(1000) {
		plans = append(plans, limit("token_bucket", events+n))
	}
	kinds = append(
		kinds,
		checked{name: "three limits", request: store.ZoneRequest{Limits: three}},
		checked{
			name: "slots", request: store.ZoneRequest{Limits: one, Slots: slots},
			correct: func(m *wire.Message, r *store.ZoneRequest, _ algorithms.Micros) {
				m.SetSlots(wire.Names{}.CountName(r.Key, r.Slots.ID, 0), 0, false)
			},
		},
		checked{
			name: "settle", request: store.ZoneRequest{Limits: one, ReservedID: store.ReservedID("zone", "")},
			correct: func(m *wire.Message, r *store.ZoneRequest, now algorithms.Micros) {
				r.Outcome.Decisions = []algorithms.Decision{{Charged: 1, Receipt: algorithms.Receipt{A: window, B: now, At: now}}}
				r.Outcome.Reserved.Added = 1
				m.Refund(r, 1, true)
			},
		},
		checked{name: "1000 plans", request: store.ZoneRequest{Limits: plans}},
	)
	for i := range kinds {
		kinds[i].request.Zone, kinds[i].request.Cost = "zone", 1
	}
	return kinds
}

// message returns a message that corrects the requests of earlier keys, and checks the request once with each key. A
// request with many limits has one of them per key. now is 0 for the time of Redis.
func (c *checked) message(now algorithms.Micros, earlier, keys []int) *wire.Message {
	m, r := new(wire.Message), c.request
	expected := cmp.Or(now, time.Now().UnixMicro())
	m.Reset(wire.Names{}, wire.Head{Now: now, Expected: expected, SlotsExpiry: 30_000_000})
	if c.correct != nil {
		for _, key := range earlier {
			r.Key = strconv.Itoa(key)
			c.correct(m, &r, expected)
		}
	}
	for _, key := range keys {
		if r.Key = strconv.Itoa(key); len(c.request.Limits) > 3 {
			r.Limits = c.request.Limits[key%len(c.request.Limits):][:1]
		}
		m.Take([]store.ZoneRequest{r})
	}
	return m
}

// load loads the script of the check, and returns its hash.
func (c *checked) load(b *testing.B, client *redis.Client) (sha string) {
	b.Helper()
	sha, err := client.ScriptLoad(context.Background(), featuresFor([]store.ZoneRequest{c.request}).Script()).Result()
	errtest.None(b, err)
	return sha
}

// BenchmarkInstructions counts the instructions that Redis runs for one check, in messages of 1, 12 and 31. Keys and
// instants are the same in each run, so the numbers repeat.
func BenchmarkInstructions(b *testing.B) {
	const keys, step = 500, 20_000 // 20 ms from one check to the next
	ctx, server := context.Background(), redistest.StartCounting(b)
	for _, c := range checkedKinds(b, 1000, 3_600_000_000) { // the keys outlive the measurement
		server.Client.FlushAll(ctx)
		sha, random, now := c.load(b, server.Client), rand.New(rand.NewPCG(1, 2)), algorithms.Micros(1_800_000_000_000_000)
		var earlier []int
		run := func(batch, messages int, key func() int) {
			for range messages {
				var chosen []int
				for range batch {
					chosen = append(chosen, key())
					now += step
				}
				m := c.message(now, earlier, chosen)
				earlier = chosen
				errtest.None(b, server.Client.EvalSha(ctx, sha, m.AppendKeys(nil), m.Argument()).Err())
			}
		}
		next := 0
		run(25, keys/25, func() int { next++; return next - 1 })
		for _, batch := range []int{1, 12, 31} {
			b.Run(fmt.Sprintf("%s/batch=%d", c.name, batch), func(b *testing.B) {
				messages := 50 * max(8/batch, 1) // after each 50 scripts Redis collects Lua's garbage
				run(batch, 1, func() int { return random.IntN(keys) })
				n := server.Instructions(b, func() { run(batch, messages, func() int { return random.IntN(keys) }) })
				b.ReportMetric(float64(n)/float64(messages*batch), "instructions/check")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
