package propose

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
)

// A limit with as many events as the peak of a key denies it nothing. For other keys the replay is skipped.
func TestLimitsAdmitThePeak(t *testing.T) {
	checked := map[string]int{}
	seeds := seedtest.Cases(t, uint64(1000))
	byStore := newReplayStore()
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 18))
		q := drawQuota(r)
		if q.WarmUp > 0 || q.MinInterval > 0 || q.Initial != nil && *q.Initial == 0 {
			continue
		}
		if q.Buckets > 0 {
			q.Buckets = 1 + r.Int64N(2)
		}
		candidates := candidatesLike(newLimit(t, q), 0, algorithms.MaxWork, maxCost)
		log := drawLog(r, 1+r.IntN(40), 1, []algorithms.Mode{algorithms.Binary, algorithms.Uniform}[r.IntN(2)], r.IntN(3) == 0)
		meter := candidates.meter()
		for i := range log {
			meter.add(log[i].request)
		}
		limit := newLimit(t, candidates.quota(candidates.eventsFor(max(meter.peak(), 1))))
		if limit.Algorithm().BinaryOnly {
			for i := range log {
				log[i].mode = algorithms.Binary
			}
		}
		if largestPeak(limit.Quota) < meter.peak() {
			t.Fatalf("seed %d: %v allows a peak of %d, and not %d", seed, limit, largestPeak(limit.Quota), meter.peak())
		}
		if denied, _ := byStore.denied(t, log, limit, 0); denied.requests > 0 {
			t.Fatalf("seed %d: %v denies %d requests with a peak of %d", seed, limit, denied.requests, meter.peak())
		}
		checked[q.Algorithm]++
	}
	for _, a := range algorithms.All() {
		if n := uint64(checked[a.Name]); n < seeds/30 && !a.Calendar {
			t.Errorf("%s: %d of %d checked", a.Name, n, seeds)
		}
	}
}

// A proposal has the burst and the initial in proportion, and all other options as they are.
func TestCandidatesKeepOptions(t *testing.T) {
	five := int64(5)
	tests := []struct {
		quota algorithms.Quota
		want  string // with twice the events
	}{
		{algorithms.Quota{Algorithm: "token_bucket", Events: 10, Window: 1_000_000, Burst: 25, Initial: &five}, "token_bucket 20 1s 50 {\n\tinitial 10\n}"},
		{algorithms.Quota{Algorithm: "token_bucket", Events: 10, Window: 1_000_000}, "token_bucket 20 1s"},
		{algorithms.Quota{Algorithm: "fixed_window", Events: 10, Window: 1_000_000, Align: "clock"}, "fixed_window 20 1s {\n\talign clock\n}"},
		{
			algorithms.Quota{Algorithm: "sliding_log", Events: 10, Window: 1_000_000, MinInterval: 1000, Buckets: 7},
			"sliding_log 20 1s {\n\tmin_interval 1ms\n\tbuckets 7\n}",
		},
		{
			algorithms.Quota{Algorithm: "smooth", Events: 10, Window: 1_000_000, WarmUp: 2_000_000, ColdFactor: 5000},
			"smooth 20 1s {\n\twarm_up 2s\n\tcold_factor 5\n}",
		},
	}
	for _, test := range tests {
		l := newLimit(t, test.quota)
		candidates := candidatesLike(l, 0, algorithms.MaxWork, 1)
		if r, ok := candidates.with(2 * test.quota.Events); !ok || r.line != test.want {
			t.Errorf("%v: %q, want %q", l, r.line, test.want)
		}
		if same, ok := candidates.with(test.quota.Events); !ok || same.line != caddyfileLine(l) {
			t.Errorf("%v: %q, want itself", l, same.line)
		}
	}
}

// Very large numbers can be counted only if they have much in common with the window. A proposal has
// such a number, and the largest log has a bound.
func TestCandidatesWithGaps(t *testing.T) {
	day := candidatesLike(newLimit(t, algorithms.Quota{Algorithm: "token_bucket", Events: 10, Window: 24 * hour}), 0, algorithms.MaxWork, 1)
	log := candidatesLike(newLimit(t, algorithms.Quota{Algorithm: "sliding_log", Events: 10, Window: 24 * hour}), 0, algorithms.MaxWork, 1)
	for _, n := range []int64{1, 51_111, 60_001, 1_234_567, 987_654_321, 12_345_678_901} {
		below, ok := day.atMost(n)
		above, ok2 := day.atLeast(n)
		if !ok || !ok2 || below.events > n || above.events < n {
			t.Fatalf("%d: %+v, %+v", n, below, above)
		}
		if float64(above.events-below.events) > 0.01*float64(n) {
			t.Errorf("%d: from %d to %d no limit is found", n, below.events, above.events)
		}
	}
	if _, ok := day.with(60_001); ok {
		t.Error("60001 events a day can be counted: choose another number for this test")
	}
	if r, ok := log.atMost(10_000_000); !ok || r.events != algorithms.MaxLogged {
		t.Errorf("the largest log is %+v", r)
	}
	if _, ok := log.atLeast(10_000_000); ok {
		t.Error("a larger log is possible")
	}
	heavy := candidatesLike(newLimit(t, algorithms.Quota{Algorithm: "sliding_log", Events: 10, Window: 24 * hour}), 0, 10_000, maxCost)
	if r, ok := heavy.atMost(10_000_000); !ok || r.events > 60_000 || r.events < 10_000 {
		t.Errorf("beside other limits the largest log is %+v", r)
	}
}

// Proposals know each algorithm, and each option of a limit.
func TestProposalsKnowAllLimits(t *testing.T) {
	options := map[string]string{
		"initial": "grows in proportion", "warm_up": "is kept, and the largest peak is 0", "cold_factor": "is kept, with warm_up",
		"align": "is kept: two windows of a grid bound each window", "buckets": "is kept: the grid is a bucket wider",
		"min_interval": "is kept, and the largest peak is 0",
	}
	for _, a := range algorithms.All() {
		if a.Calendar { // no limit is proposed
			continue
		}
		if !slices.Contains(provenAlgorithms, a.Name) {
			t.Errorf("proposals lack the algorithm %s: add it to provenAlgorithms, if TestLimitsAdmitThePeak finds its largest peak", a.Name)
		}
		for _, o := range a.Options {
			if options[o.Name] == "" {
				t.Errorf("proposals lack the option %s of %s: candidatesLike, largestPeak and meter must know what it does to a peak", o.Name, a.Name)
			}
		}
	}
}
