package agenda

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
)

// The order is that of a stable sort by instants.
func TestOrder(t *testing.T) {
	type due struct {
		at    algorithms.Micros
		thing int
	}
	for seed := range seedtest.Cases(t, uint64(200)) {
		r := rand.New(rand.NewPCG(seed, 26))
		var a Agenda[int]
		var want []due
		for thing := range 300 {
			if r.IntN(100) == 0 {
				a.Clear()
				want = nil
			}
			at := r.Int64N(50)
			a.Add(at, thing)
			want = append(want, due{at, thing})
			slices.SortStableFunc(want, func(a, b due) int { return cmp.Compare(a.at, b.at) })
			for range r.IntN(3) {
				if len(want) == 0 {
					break
				}
				first := a.First()
				at, thing := a.Pop()
				if (due{at, thing}) != want[0] || at != first {
					t.Fatalf("seed %d: thing %d at %d, and first at %d, want %+v", seed, thing, at, first, want[0])
				}
				want = want[1:]
			}
			if a.Len() != len(want) {
				t.Fatalf("seed %d: %d things, want %d", seed, a.Len(), len(want))
			}
		}
	}
}
