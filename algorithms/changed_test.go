package algorithms

import (
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
)

// Limits that share a budget together allow no more than a limit with the most events and the largest burst of any of them, however
// they alternate.
func TestAlternatingLimitsStayWithinTheLargest(t *testing.T) {
	eachHistory(t, func(t *testing.T, r *rand.Rand, h *history) {
		if h.limit.Initial != nil || h.chargesInFull() {
			return
		}
		h.state, h.charges, h.mode = new(State), nil, Binary
		largest := h.limit.Quota
		limits := []*Limit{h.limit, changed(r, h.limit), changed(r, h.limit)}
		for _, l := range limits {
			largest.Events, largest.Burst = max(largest.Events, l.Events), max(largest.Burst, l.Burst)
		}
		if !h.limit.Scalable() {
			largest.Burst = 0
		}
		for range 200 {
			h.limit = limits[r.IntN(len(limits))]
			d := h.ask(h.now, 1)
			if r.IntN(3) == 0 {
				h.now += d.RetryAfter
			}
			h.record(max(h.ask(h.now, 0).Remaining-r.Int64N(3), 1))
			if r.IntN(3) == 0 {
				h.now += r.Int64N(h.limit.Window/h.limit.Events + 2)
			}
		}
		h.limit = mustLimit(t, largest)
		h.withinBound(t, func(l *Limit, span Micros) int64 {
			if l.algorithm.Name == "smooth" { // which rounds the cost of a request up to whole µs
				span++
			}
			return facts[l.algorithm.Name].bound(l, span)
		})
	})
}

// A refund by the larger limit takes nothing from the smaller one.
func TestRefundByTheLargerLimit(t *testing.T) {
	larger := mustLimit(t, Quota{Algorithm: "token_bucket", Events: 100, Window: minute, Burst: 1000})
	h := &history{limit: larger, state: new(State), now: start}
	d := h.take(start, 500)
	h.limit = mustLimit(t, Quota{Algorithm: "token_bucket", Events: 60, Window: minute, Burst: 60})
	h.take(start+minute, 20)
	Refund(larger, h.state, start+minute+second, d.Receipt, 1)
	if e := h.ask(start+minute+second, 0); e.Remaining != 41 {
		t.Errorf("%d remain, want 41", e.Remaining)
	}
	if h.limit = larger; h.ask(start+minute+second, 0).Remaining != 582 {
		t.Errorf("%+v remain of the larger one, want 582", h.ask(start+minute+second, 0))
	}
}

// Every algorithm keeps what was used under a limit that is raised and lowered. To the lower limit the budget is full, and it owes
// nothing: after what it takes to fill up, all of it is free.
func TestLoweredLimitIsFull(t *testing.T) {
	eachHistory(t, func(t *testing.T, r *rand.Rand, h *history) {
		if h.limit.algorithm.Name == "sliding_log" || h.limit.Initial != nil || h.limit.WarmUp > 0 || h.mode == Uniform {
			return // a log decides by the newest events alone
		}
		h.state, h.mode, h.maxWait = new(State), Binary, 0
		larger := changed(r, h.limit)
		if larger.Events <= h.limit.Events || larger.Burst < h.limit.Burst {
			return
		}
		asked := &history{limit: h.limit, state: new(State)}
		for _, one := range []*history{h, asked} {
			used := larger.Burst
			if one == asked {
				used = h.limit.Burst
			} else {
				one.limit = larger
			}
			if d := one.take(h.now, used); !d.Allowed {
				t.Fatalf("%v does not hold %d", one.limit, used)
			}
			one.limit = asked.limit
		}
		for range 5 {
			got, want := h.ask(h.now, 1), asked.ask(h.now, 1)
			late, most := max(got.RetryAfter-want.RetryAfter, got.ResetAfter-want.ResetAfter), Micros(0)
			if unit := larger.parts.unit; h.limit.algorithm.Name != "leaky_bucket" && unit > 0 { // each charge is rounded up to parts of the larger limit
				most = 5 * (h.limit.Window/h.limit.Events/unit + 2)
			}
			if got.Allowed != want.Allowed || late > most && h.limit.algorithm.Name != "smooth" {
				t.Fatalf("%v, all of %v used: %+v, want as if all of it were used: %+v", h.limit, larger, got, want)
			}
			h.now += r.Int64N(h.limit.Window/h.limit.Events + 2)
		}
		if d := h.ask(h.now, 0); h.limit.algorithm.Name != "smooth" && h.ask(h.now+d.ResetAfter, h.limit.Burst).Allowed != true {
			t.Errorf("%v is not free at its reset after %d", h.limit, d.ResetAfter)
		}
	})
}

// Parts of events are converted exactly, or a little up: never down, never by an event or more.
func TestConvertParts(t *testing.T) {
	for seed := range seedtest.Cases(t, uint64(20_000)) {
		r := rand.New(rand.NewPCG(seed, 5))
		draw := func(most int64) int64 {
			n := 1 + r.Int64N(1<<(1+r.IntN(52)))
			return []int64{min(n, most), most - min(n, most-1), most}[r.IntN(3)]
		}
		from, to := draw(maxSpan), draw(maxSpan)
		n, most := draw(exact)-1, draw(exact)
		got := convertParts(n, from, to, most)
		product := new(big.Int).Mul(big.NewInt(n), big.NewInt(to))
		least := new(big.Int).Add(product, big.NewInt(from-1))
		least.Div(least, big.NewInt(from))
		if least.Cmp(big.NewInt(most)) > 0 {
			least.SetInt64(most)
		}
		whole := new(big.Int).Div(big.NewInt(n), big.NewInt(from))
		ceiling := whole.Add(whole, big.NewInt(1)).Int64()
		if big.NewInt(got).Cmp(least) < 0 || got > most || float64(got) > float64(ceiling)*float64(to) {
			t.Fatalf("seed %d: %d of %d as parts of %d, at most %d: %d, want at least %v", seed, n, from, to, most, got, least)
		}
		if product.IsInt64() && product.Int64() <= exact/2 && least.Cmp(big.NewInt(got)) != 0 {
			t.Fatalf("seed %d: %d of %d as parts of %d, at most %d: %d, want %v", seed, n, from, to, most, got, least)
		}
	}
}
