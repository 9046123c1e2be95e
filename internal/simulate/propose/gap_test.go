package propose

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
)

// drawCrowd draws requests of some quiet keys and of a few busy ones.
func drawCrowd(r *rand.Rand) (log []zoneRequest) {
	quiet, busy, cost := 10+r.IntN(20), r.IntN(4), 1+r.Int64N(8)
	at := algorithms.Micros(1_700_000_000_000_000)
	for range 300 {
		at += r.Int64N(2_000_000)
		key := r.IntN(quiet)
		if busy > 0 && r.IntN(2) == 0 {
			key = quiet + r.IntN(busy)
		}
		log = append(log, zoneRequest{key: fmt.Sprint("key ", key), request: request{at: at, end: at, cost: cost, mode: algorithms.Binary}})
	}
	return log
}

// A real store decides the log by each number of events, and finds the same gap and the same keys. No wider gap
// exists.
func TestGap(t *testing.T) {
	found := 0
	seeds := seedtest.Cases(t, uint64(100))
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 31))
		log := drawCrowd(r)
		name := []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "gcra"}[r.IntN(5)]
		current := newLimit(t, algorithms.Quota{Algorithm: name, Events: 1 + r.Int64N(100), Window: 30_000_000})
		zone := simulate.Zone{Name: "zone", Sets: []simulate.LimitSet{{Limits: []*algorithms.Limit{current}}}}
		proposals := record(t, log, zone).proposeFor(DefaultTarget)
		p := proposals["zone"][0]
		byStore := newReplayStore()
		deniedBy := func(events int64) map[string]int64 {
			return byStore.deniedKeys(t, log, newLimit(t, algorithms.Quota{Algorithm: name, Events: events, Window: 30_000_000}))
		}
		denied := []int{0} // keys, by events
		widest, least := 0.0, 1
		for events := 1; ; events++ {
			denied = append(denied, len(deniedBy(int64(events))))
			if denied[events] != denied[least] {
				least = events
			}
			if n := int64(denied[events]); n == 0 {
				break
			} else if n*mostGapKeys <= p.Keys {
				widest = max(widest, float64(events)/float64(least))
			}
		}
		where := fmt.Sprintf("seed %d: %s, keys denied by events %v", seed, name, denied)
		checkChange(t, where, p.Change, deniedBy(current.Events), deniedBy(eventsOf(p.Curve, p.Line)))
		g := p.Gap
		if (g == nil) != (widest < leastGap) {
			t.Fatalf("%s: the widest quotient is %v, and the gap is %+v", where, widest, g)
		}
		if g == nil {
			continue
		}
		found++
		least, largest, n := int(g.Least.Events), int(g.Largest.Events), int(g.Middle.DeniedKeys)
		if float64(largest)/float64(least) != widest || slices.Min(denied[least:largest+1]) != n || slices.Max(denied[least:largest+1]) != n {
			t.Fatalf("%s: the gap is %+v, and not as wide as %v", where, g, widest)
		}
		if g.Middle.Events < g.Least.Events || g.Middle.Events > g.Largest.Events {
			t.Errorf("%s: %+v is not in the middle", where, g)
		}
		checkChange(t, where, &g.Change, deniedBy(current.Events), deniedBy(g.Middle.Events))
	}
	if seeds >= 100 && (found < 30 || found > 90) {
		t.Errorf("the draw is not wide enough: %d gaps", found)
	}
}

func eventsOf(curve []report.CurvePoint, line string) int64 {
	return curve[slices.IndexFunc(curve, func(c report.CurvePoint) bool { return c.Line == line })].Events
}

// checkChange compares a change with the keys that a store denies before and after it.
func checkChange(t *testing.T, where string, c *report.Change, before, after map[string]int64) {
	t.Helper()
	newly, noMore := int64(0), int64(0)
	for key := range before {
		if after[key] == 0 {
			noMore++
		}
	}
	for key := range after {
		if before[key] == 0 {
			newly++
		}
	}
	if c.NewlyDenied != newly || c.NoMoreDenied != noMore || len(c.Keys) != int(min(newly, shownKeys)) {
		t.Fatalf("%s: the change is %+v, but %d keys are newly denied, and %d no more", where, c, newly, noMore)
	}
	for i, k := range c.Keys {
		if before[k.Key] > 0 || after[k.Key] != k.Denied || k.UserAgent != "agent of "+k.Key || i > 0 && k.Denied > c.Keys[i-1].Denied {
			t.Fatalf("%s: %+v, of which the store denies %d, and %d before", where, c.Keys, after[k.Key], before[k.Key])
		}
	}
}

func TestMiddleOf(t *testing.T) {
	for _, c := range [][3]int64{{13, 154, 40}, {29, 128, 60}, {1, 24, 5}, {11, 14, 12}, {700, 1600, 1000}, {1, 2, 1}} {
		if got := middleOf(c[0], c[1]); got != c[2] {
			t.Errorf("the middle of %d and %d is %d, not %d", c[0], c[1], got, c[2])
		}
	}
}
