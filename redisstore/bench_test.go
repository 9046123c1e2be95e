package redisstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/relay"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// BenchmarkBatch shows the gain of shared script calls. It varies the number of callers, the number
// of calls in flight, and the distance of Redis.
func BenchmarkBatch(b *testing.B) {
	server := redistest.Start(b)
	for _, roundTrip := range []time.Duration{0, 500 * time.Microsecond, 5 * time.Millisecond} {
		addr := server.Addr
		if roundTrip > 0 {
			addr = farAway(b, addr, roundTrip/2)
		}
		b.Run(fmt.Sprintf("away=%v", roundTrip), func(b *testing.B) {
			benchmarkBatch(b, []*redistest.Server{server}, func(o redisstore.Options) store.Store {
				o.Address = addr
				return open(b, o)
			})
		})
	}
	b.Run("cluster", func(b *testing.B) {
		c := redistest.StartCluster(b)
		benchmarkBatch(b, c.Nodes[:3], func(o redisstore.Options) store.Store { return openCluster(b, c, o) })
	})
}

func benchmarkBatch(b *testing.B, servers []*redistest.Server, open func(redisstore.Options) store.Store) {
	for _, callers := range []int{1, 8, 64, 256, 1024} {
		for name, batch := range map[string]int{"batches": 0, "alone": -1} {
			b.Run(fmt.Sprintf("callers=%d/%s", callers, name), func(b *testing.B) {
				o := redisstore.Options{Batch: batch}
				s := open(o)
				for n := range 20 { // of all nodes
					_, _ = s.Take(context.Background(), request(b, fmt.Sprint(n)))
				}
				for _, server := range servers {
					server.Client.ConfigResetStat(context.Background())
				}
				before := cpuTime(servers)
				b.ReportAllocs()
				b.ResetTimer()
				took := make([][]time.Duration, callers)
				var all sync.WaitGroup
				for c := range callers {
					all.Go(func() {
						r := request(b, "")
						for range max(b.N/callers, 1) {
							r[0].Key = fmt.Sprintf("203.0.%d", rand.IntN(100_000))
							began := time.Now()
							if _, err := s.Take(context.Background(), r); err != nil {
								b.Error(err)
								return
							}
							took[c] = append(took[c], time.Since(began))
						}
					})
				}
				all.Wait()
				b.StopTimer()
				times := slices.Concat(took...)
				slices.Sort(times)
				b.ReportMetric(float64(times[len(times)/2].Microseconds()), "p50-us")
				b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "p99-us")
				var calls, usec int
				for _, server := range servers {
					one, us := stats(server.Client)
					calls, usec = calls+one["evalsha"], usec+us["evalsha"]
				}
				b.ReportMetric(float64(b.N)/float64(max(calls, 1)), "checks/call")
				b.ReportMetric(float64(usec)/float64(b.N), "redis-us/check")
				b.ReportMetric(float64((cpuTime(servers)-before).Microseconds())/float64(b.N), "cpu-us/check")
			})
		}
	}
}

// cpuTime returns the processor time that this process and the servers have used so far.
func cpuTime(servers []*redistest.Server) (all time.Duration) {
	all = ownTime()
	for _, server := range servers {
		all += redisTime(server)
	}
	return all
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

// farAway returns an address through which everything takes so much longer, each way.
func farAway(b testing.TB, addr string, oneWay time.Duration) string {
	b.Helper()
	r, err := relay.Start(addr)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = r.Close() })
	r.Set(relay.Fault{Delay: oneWay}, relay.Fault{Delay: oneWay})
	return r.Addr
}
