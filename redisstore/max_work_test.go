package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

const (
	began algorithms.Micros = 1_763_640_000_000_000
	hour  algorithms.Micros = 3_600_000_000
)

// maxLimit is a limit at its largest legal size.
type maxLimit struct {
	name    string
	limit   store.Limit
	entries int64 // of a log: what it holds when it is full
}

// largest returns the quota with the largest legal number, up to limit.
func largest(limit int64, quota func(n int64) algorithms.Quota) algorithms.Quota {
	n := int64(sort.Search(int(limit), func(n int) bool {
		_, err := algorithms.NewLimit(quota(int64(n) + 1))
		return err != nil
	}))
	return quota(n)
}

// allMaxLimits returns every algorithm at its largest legal size, and also smaller logs. Only the
// size of a log matters.
func allMaxLimits(t testing.TB) (all []maxLimit) {
	for _, q := range storetest.Quotas(1_000_000, hour) {
		switch q.Algorithm {
		case "sliding_log":
			events := largest(1<<30, func(n int64) algorithms.Quota {
				return algorithms.Quota{Algorithm: "sliding_log", Events: n, Window: hour}
			})
			buckets := largest(1<<30, func(n int64) algorithms.Quota {
				return algorithms.Quota{Algorithm: "sliding_log", Events: 1_000_000_000, Window: hour, Buckets: n}
			})
			apart := events
			apart.MinInterval = 1
			all = append(all,
				maxLimit{"sliding_log", storetest.Limit(t, "z", events), events.Events},
				maxLimit{"sliding_log min_interval", storetest.Limit(t, "z", apart), events.Events},
				maxLimit{"sliding_log buckets", storetest.Limit(t, "z", buckets), buckets.Buckets},
			)
			for _, n := range []int64{10, 1000} { // more of these are decided in one call
				small := events
				small.Events = n
				all = append(all, maxLimit{fmt.Sprint("sliding_log of ", n), storetest.Limit(t, "z", small), n})
			}
		case "smooth":
			warm := q
			warm.Burst, warm.WarmUp = 0, hour
			all = append(all, maxLimit{"smooth warm_up", storetest.Limit(t, "z", warm), 0})
			fallthrough
		default:
			all = append(all, maxLimit{q.Algorithm, storetest.Limit(t, "z", q), 0})
		}
	}
	return all
}

// BenchmarkLongest shows how much CPU time Redis takes for the longest script call of each
// kind, in µs, with each algorithm at its largest legal size. No call may take longer than
// 10 ms. The best of all runs counts, for other programs on the same core cost time, too.
func BenchmarkLongest(b *testing.B) {
	server := redistest.Start(b)
	ctx := context.Background()
	s := open(b, redisstore.Options{Address: server.Addr, Timeout: patient, Batch: 1 << 30})
	measure := func(name string, prepare, call func()) {
		b.Run(name, func(b *testing.B) {
			var times []time.Duration
			for b.Loop() {
				server.Client.FlushDB(ctx)
				prepare()
				server.Client.ConfigResetStat(ctx)
				before := redisTime(server)
				call()
				times = append(times, redisTime(server)-before)
				if calls, _ := stats(server.Client); calls["evalsha"] != 1 {
					b.Fatalf("%d script calls, want 1", calls["evalsha"])
				}
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(slices.Min(times).Microseconds()), "redis-µs")
		})
	}
	take := func(now algorithms.Micros, r ...store.Request) []store.Request {
		if _, err := s.TakeAt(ctx, now, r); err != nil {
			b.Fatal(err)
		}
		return r
	}
	ask := func(key string, cost int64, limits ...store.Limit) store.Request {
		return store.Request{Zone: "z", Key: key, Cost: cost, Limits: limits}
	}
	refund := func(now algorithms.Micros, r []store.Request, n int64) {
		var corrections []store.Correction
		for i := range r {
			corrections = append(corrections, store.Correction{Request: &r[i], Refund: n})
		}
		if err := s.CorrectAt(ctx, now, corrections); err != nil {
			b.Fatal(err)
		}
	}
	// Every script is there before it is measured.
	for _, l := range allMaxLimits(b) {
		for _, ban := range []*store.Ban{nil, storetest.Ban(b, "z", algorithms.Ban{After: 1, Window: 1, Duration: 1, Max: 1})} {
			r := ask("k", 1, l.limit)
			r.Ban = ban
			refund(began, take(began, r), 1)
		}
	}
	if err := s.Change(ctx, store.Change{Zone: "z", Key: "k", Forget: []string{allMaxLimits(b)[0].limit.ID}}); err != nil {
		b.Fatal(err)
	}
	for _, l := range allMaxLimits(b) {
		// As many requests as make one call, each with a different limit and override, and a ban.
		var batch [][]store.Request
		begin := func(of int64, cost int64) {
			batch = nil
			for work := int64(0); work <= algorithms.MaxWork; work += l.limit.Work(cost) {
				limit := l.limit
				own := *limit.Limit
				limit.Limit = &own
				r := ask(fmt.Sprint("batch", len(batch)), cost, limit)
				r.Ban = storetest.Ban(b, "z", algorithms.Ban{After: 1, Window: hour, Duration: hour, Max: hour})
				r.Override = new(store.Override)
				batch = append(batch, []store.Request{r})
			}
			if l.entries == 0 {
				for _, r := range batch {
					take(began, r...)
				}
				return
			}
			key := fillLog(b, s, l, began)
			for _, r := range batch {
				server.Client.Copy(ctx, key, "caddy_rl:{"+r[0].Key+"}:"+l.limit.ID, 0, true)
			}
		}
		measure(l.name+"/full batch", func() { begin(0, 1) }, func() { redisstore.SendOneBatch(s, began+hour+hour/2, batch) })
		if l.entries == 0 {
			continue
		}
		name, n := l.name, min(l.limit.Events, 1<<31-1)
		measure(name+"/full batch, large costs", func() { begin(0, n/4) }, func() { redisstore.SendOneBatch(s, began+hour+hour/2, batch) })
		measure(name+"/take all", func() { fillLog(b, s, l, began) }, func() { take(began+3*hour, ask("full", n, l.limit)) })
		measure(name+"/denied, uniform", func() { fillLog(b, s, l, began) }, func() {
			r := ask("full", n, l.limit)
			r.Mode = algorithms.Uniform
			take(began+hour-1, r)
		})
		var r []store.Request
		step := hour / l.entries
		if l.limit.Buckets > 0 {
			measure(name+"/give back to the oldest", func() {
				r = take(began+1, ask("full", 10, l.limit))
				fillLog(b, s, l, began+step)
			}, func() { refund(began+hour, r, 10) })
			continue
		}
		measure(name+"/give back all", func() { r = take(began, ask("k", n, l.limit)) }, func() { refund(began+1, r, n) })
		measure(name+"/give back all between two", func() {
			take(began, ask("k", 1, l.limit))
			r = take(began+1, ask("k", n-2, l.limit))
			take(began+2, ask("k", 1, l.limit))
		}, func() { refund(began+3, r, n-2) })
		measure(name+"/give back half in the middle", func() {
			take(began, ask("k", n/4, l.limit))
			r = take(began+1, ask("k", n/2, l.limit))
			take(began+2, ask("k", n/4, l.limit))
		}, func() { refund(began+3, r, n/2) })
		measure(name+"/forget", func() { fillLog(b, s, l, began) }, func() {
			if err := s.Change(ctx, store.Change{Zone: "z", Key: "full", Forget: []string{l.limit.ID}}); err != nil {
				b.Fatal(err)
			}
		})
		// One request whose limits are all the work that there may be.
		rest := l.limit.Lighter(1<<31, 2*l.limit.WorstWork(1<<31)-algorithms.MaxWork)
		two := []store.Limit{l.limit, store.NewLimit("z", "two", rest)}
		measure(name+"/two limits, take all", func() {
			take(began, ask("k", n, l.limit))
			take(began, ask("k", rest.Events, two[1]))
		}, func() {
			take(began+hour, store.Request{Zone: "z", Key: "k", Cost: n, Mode: algorithms.Uniform, Limits: two})
		})
		measure(name+"/two limits, give back half in the middle", func() {
			take(began, ask("k", n/4, l.limit))
			r = take(began+1, store.Request{Zone: "z", Key: "k", Cost: n / 2, Mode: algorithms.Force, Limits: two})
			take(began+2, ask("k", n/4, l.limit))
		}, func() { refund(began+3, r, n/2) })
	}
}

// fillLog fills a log with charges evenly over an hour, and returns its key in Redis.
func fillLog(t testing.TB, s *redisstore.Store, l maxLimit, from algorithms.Micros) (key string) {
	charges := min(l.entries, 1000)
	if l.limit.Buckets > 0 {
		charges = l.entries
	}
	for i := range charges {
		r := []store.Request{{Zone: "z", Key: "full", Cost: max(min(l.limit.Events, 1<<30)/charges, 1), Limits: []store.Limit{l.limit}}}
		if _, err := s.TakeAt(context.Background(), from+i*(hour/charges), r); err != nil {
			t.Fatal(err)
		}
	}
	return "caddy_rl:{full}:" + l.limit.ID
}

// A script call is as many requests as their work allows, one at least.
func TestWorkPerCall(t *testing.T) {
	server := redistest.Start(t)
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
		ask := func(key string, cost int64) []store.Request {
			return []store.Request{{Zone: "z", Key: key, Cost: cost, Limits: []store.Limit{limit}}}
		}
		if _, err := s.Take(ctx, ask("first", 1)); err != nil { // the script is there
			t.Fatal(err)
		}
		var requests [][]store.Request
		for i := range 8 {
			requests = append(requests, ask(fmt.Sprint(i), test.cost))
		}
		errs := make([]error, len(requests))
		if calls := redisstore.TakeTogether(s, requests, errs); calls != test.calls {
			t.Errorf("cost %d of %d: %d script calls, want %d", test.cost, test.events, calls, test.calls)
		}
		if err := errors.Join(errs...); err != nil {
			t.Error(err)
		}
	}
}

// redisTime is how much CPU time a server has used.
func redisTime(server *redistest.Server) (all time.Duration) {
	info := server.Client.Info(context.Background(), "cpu").Val()
	for _, name := range []string{"used_cpu_user:", "used_cpu_sys:"} {
		_, after, _ := strings.Cut(info, name)
		text, _, _ := strings.Cut(after, "\r")
		seconds, _ := strconv.ParseFloat(text, 64)
		all += time.Duration(seconds * float64(time.Second))
	}
	return all
}
