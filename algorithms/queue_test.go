package algorithms

import (
	"math/rand/v2"
	"testing"
)

// Of charges in advance the later one is known by its receipt. Given back from the last
// to the first, they leave the budget as it would be without them.
func TestQueueIsGivenBack(t *testing.T) {
	eachHistory(t, func(t *testing.T, r *rand.Rand, h *history) {
		longest := 20 * h.limit.Window
		if h.mode != Binary || h.limit.CheckDelay(longest) != nil {
			return
		}
		h.take(h.now, 1) // one that passes: a first charge can make a grid of drips, or a window
		h.maxWait = longest
		never := h.copy()
		var queue []Decision
		soonest := longest
		for range 1 + r.IntN(20) {
			if d := h.take(h.now, 1+r.Int64N(2)); d.Wait > 0 {
				soonest = min(soonest, d.Wait)
				queue = append(queue, d)
			} else if d.Allowed {
				never = h.copy()
				queue = nil
			}
			h.now += r.Int64N(max(soonest/20, 1))
			soonest -= max(soonest/20, 1)
		}
		for i := range queue {
			for j := range queue {
				if later := queue[i].Receipt.ChargedLater(queue[j].Receipt); later != (i > j) {
					t.Fatalf("charge %d is later than charge %d: %v; receipts %+v and %+v", i, j, later, queue[i].Receipt, queue[j].Receipt)
				}
			}
		}
		for i := len(queue) - 1; i >= 0; i-- {
			Refund(h.limit, h.state, h.now, queue[i].Receipt, queue[i].Charged)
		}
		h.maxWait, never.maxWait = 0, 0
		for _, cost := range []int64{0, 1, h.limit.Burst} {
			left, want := h.ask(h.now, cost), never.ask(h.now, cost)
			left.Receipt, want.Receipt = Receipt{}, Receipt{}
			rounded := h.limit.algorithm.Name == "smooth" // whose charges are rounded up to whole µs, and what warmed up stays warm
			if late := left.ResetAfter - want.ResetAfter; rounded && late >= 0 && late <= 2*int64(len(queue)) || h.limit.WarmUp > 0 {
				left = want
			}
			if left != want {
				t.Fatalf("cost %d after %d were given back: %+v, want %+v", cost, len(queue), left, want)
			}
		}
	})
}
