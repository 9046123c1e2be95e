package simulate

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
)

// orderOf adds visits in the order of the log, and returns them in the order in which they are passed on.
func orderOf(t *testing.T, window int, visits []*Visit) (passed []*Visit, late int64) {
	t.Helper()
	o := order{window: window, passOn: func(v logged) { passed = append(passed, v[0]) }}
	for _, v := range visits {
		o.add(logged{v})
		if o.waiting.Len() >= 2*window {
			t.Fatalf("%d requests wait, with a window of %d", o.waiting.Len(), window)
		}
	}
	o.finish()
	return passed, o.late
}

// logOf returns visits as a log has them: in the order in which they end.
func logOf(r *rand.Rand, n int, longest int64) (visits []*Visit) {
	for range n {
		start := algorithms.Micros(r.Int64N(int64(n) * 1000))
		visits = append(visits, &Visit{Start: start, End: start + algorithms.Micros(r.Int64N(longest))})
	}
	slices.SortStableFunc(visits, func(a, b *Visit) int { return int(a.End - b.End) })
	return visits
}

// With a window for all requests that overlap, the order is that of a stable sort.
func TestOrderSorts(t *testing.T) {
	for seed := range seedtest.Cases(t, uint64(50)) {
		r := rand.New(rand.NewPCG(seed, 1))
		visits := logOf(r, 2000, 100_000)
		want := slices.Clone(visits)
		slices.SortStableFunc(want, func(a, b *Visit) int { return int(a.Start - b.Start) })
		passed, late := orderOf(t, 400, visits)
		if !slices.Equal(passed, want) || late != 0 {
			t.Fatalf("seed %d: not sorted, %d late", seed, late)
		}
	}
}

// With a window that is too small, all requests are still passed on once, their instants never go back, and
// those that came too late are counted and postponed.
func TestOrderPostponesLateRequests(t *testing.T) {
	for seed := range seedtest.Cases(t, uint64(50)) {
		r := rand.New(rand.NewPCG(seed, 2))
		visits := logOf(r, 2000, 1_000_000)
		began := make(map[*Visit]algorithms.Micros)
		for _, v := range visits {
			began[v] = v.Start
		}
		passed, late := orderOf(t, 10, visits)
		var postponed int64
		var last algorithms.Micros
		for _, v := range passed {
			if v.Start < last || v.End < v.Start || v.Start < began[v] {
				t.Fatalf("seed %d: began at %d, decided at %d after %d, ended at %d", seed, began[v], v.Start, last, v.End)
			}
			last = v.Start
			if v.Start != began[v] {
				postponed++
			}
			delete(began, v)
		}
		if len(began) > 0 || late == 0 || late != postponed {
			t.Fatalf("seed %d: %d requests are lost; %d late, %d postponed", seed, len(began), late, postponed)
		}
	}
}

// The instant of the decision counts if the log has it. The span of the log is from its first to its last start.
func TestOrderByInstant(t *testing.T) {
	first, second := &Visit{Start: 2, Instant: 10, End: 20}, &Visit{Start: 1, Instant: 11, End: 15}
	passed, _ := orderOf(t, 10, []*Visit{second, first})
	if passed[0] != first || passed[1] != second {
		t.Error("requests are sorted by their starts, although the log has the instants")
	}
	late := &Visit{Start: 3, Instant: 4, End: 5}
	passed, n := orderOf(t, 1, []*Visit{second, first, late, {Start: 10}})
	if n != 1 || passed[1] != late || late.Instant != 10 || late.Start != 10 || late.End != 10 {
		t.Errorf("%d late: %+v", n, *late)
	}
	r := newReplayer(ReplayOptions{})
	if r.replay(&batch{requests: []logged{{first}, {late}, {second}}}); r.first != 1 || r.last != 10 {
		t.Errorf("the log is from %d to %d, want 1 to 10", r.first, r.last)
	}
}
