package store_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// BenchmarkGrowth shows how long a decision takes, and what a key of 15 bytes
// weighs, as the number of events a budget holds grows.
func BenchmarkGrowth(b *testing.B) {
	ctx := context.Background()
	for _, g := range storetest.Growths(b) {
		b.Run(g.String(), func(b *testing.B) {
			keys := 100_000
			if g.Entries > 0 { // fewer of those that take long to fill, or much room
				keys = int(min(1_000_000/min(g.N, 1000), 10_000_000/g.N))
			}
			s := store.NewSharedMemory().Bounded(1<<40, zoneCount(1), nil)
			passes := g.Fill(b, s, "k")
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			for i := range keys {
				g.Fill(b, s, fmt.Sprintf("203.000.%03d.%03d", i/1000, i%1000))
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			weight := float64(after.HeapAlloc-before.HeapAlloc) / float64(keys)
			for _, l := range g.Loads(passes) {
				now := l.At // continues if -count has this run again
				b.Run(l.Name, func(b *testing.B) {
					r := g.Ask("k", l.Cost)
					b.ReportAllocs()
					for ; b.Loop(); now += l.Pace {
						_, _ = s.TakeAt(ctx, now, r)
					}
					b.ReportMetric(weight, "B/key")
				})
			}
		})
	}
}
