package algorithms

import (
	"math/rand/v2"
	"testing"
)

// The promises of every algorithm, checked on random limits and histories.

func TestPeekChangesNothing(t *testing.T) {
	eachHistory(t, func(t *testing.T, r *rand.Rand, h *history) {
		now, before := h.now+r.Int64N(h.limit.Window), h.copy()
		if r.IntN(4) == 0 {
			now -= r.Int64N(10 * second) // also if the clock steps back
		}
		for _, cost := range []int64{0, 1, 1 + r.Int64N(2*h.limit.Burst), 1<<31 - 1} {
			peek := h.peek(now, cost)
			if before.text() != h.text() {
				t.Fatalf("a peek of cost %d changed %+v to %+v", cost, before.state, h.state)
			}
			want, none := h.ask(now, cost), h.ask(now, 0)
			if h.mode == Uniform && !want.Allowed {
				want.RetryAfter = peek.RetryAfter // it would also wait for its own charge
			}
			want.Charged, want.Receipt, want.Remaining, want.MoreAfter, want.ResetAfter = 0, none.Receipt, none.Remaining, none.MoreAfter, none.ResetAfter
			if want.Used = none.Used; want.Used != before.state.B && want.Used != 0 { // 0 in a new period
				t.Fatalf("a peek finds that %d events were used, want %d", want.Used, before.state.B)
			}
			if peek != want {
				t.Fatalf("a peek of cost %d says %+v, want %+v", cost, peek, want)
			}
		}
	})
}

func TestRetryAfterIsExact(t *testing.T) {
	eachHistory(t, func(t *testing.T, r *rand.Rand, h *history) {
		cost := 1 + r.Int64N(h.limit.Burst)
		d := h.take(h.now, cost)
		if !d.Allowed && h.mode == Force {
			t.Fatal("force denied")
		}
		if d.Allowed {
			if d.RetryAfter != 0 {
				t.Errorf("allowed with retry after %d", d.RetryAfter)
			}
			return
		}
		if d.RetryAfter <= 0 || d.RetryAfter == Forever {
			t.Fatalf("denied cost %d with retry after %d", cost, d.RetryAfter)
		}
		if h.ask(h.now+d.RetryAfter-1, cost).Allowed {
			t.Errorf("cost %d allowed 1 µs before its retry after of %d", cost, d.RetryAfter)
		}
		if !h.ask(h.now+d.RetryAfter, cost).Allowed {
			t.Errorf("cost %d denied at its retry after of %d", cost, d.RetryAfter)
		}
	})
}

// All of what remains can be taken at once, and not more. A denial changes nothing.
func TestRemainingCanBeTakenAtOnce(t *testing.T) {
	eachHistory(t, func(t *testing.T, _ *rand.Rand, h *history) {
		h.mode = Binary // which says of the same budget whether something fits
		remaining := h.ask(h.now, 0).Remaining
		if h.limit.algorithm.Name == "smooth" { // which serves any cost, and knows how many single events
			c := h.copy()
			for i := range remaining + 1 {
				before := c.text()
				if d := c.take(h.now, 1); d.Allowed != (i < remaining) || !d.Allowed && c.text() != before {
					t.Errorf("request %d with %d remaining: %+v changed %s to %s", i+1, remaining, d, before, c.text())
				}
			}
			return
		}
		if !h.ask(h.now, remaining).Allowed {
			t.Errorf("%d remaining could not be taken", remaining)
		}
		before := h.copy()
		if h.take(h.now, remaining+1).Allowed {
			t.Errorf("more than the %d remaining could be taken", remaining)
		} else if before.text() != h.text() {
			t.Errorf("a denial changed %+v to %+v", before.state, h.state)
		}
	})
}

// The debt that uniform makes of denied requests is bounded. So a client that pauses waits for a
// bounded time.
func TestUniformDebtIsBounded(t *testing.T) {
	eachHistory(t, func(t *testing.T, r *rand.Rand, h *history) {
		if h.limit.algorithm.BinaryOnly || h.ask(h.now, 0).ResetAfter > 2*ceilDiv(h.limit.Burst, h.limit.Events)*h.limit.Window {
			return // it has charged more in advance
		}
		h.mode = Uniform
		events := max(h.limit.Events, slidingLogLength(h.limit, h.state.Log)) // a larger limit may have allowed more
		for range 50 {
			h.take(h.now, 1+r.Int64N(1<<31-1))
		}
		h.now += h.limit.MinInterval
		d := h.ask(h.now, 0)
		l := h.limit
		most := 2 * max(ceilDiv(l.Burst, l.Events), 1) * l.Window // two bursts, or two windows
		if l.algorithm.Name == "sliding_window" {
			most = 2 * l.Window
		}
		if d.ResetAfter > most+l.Window+slidingLogGrid(l) { // and what is left of a window or drip
			t.Errorf("reset after %d µs, want at most about %d", d.ResetAfter, most)
		}
		if held := slidingLogLength(l, h.state.Log); held > events {
			t.Errorf("the log holds %d of %d events", held, events)
		}
		h.now += d.ResetAfter
		if !h.ask(h.now, l.Burst).Allowed {
			t.Error("a client that paused does not get a full burst")
		}
	})
}

func TestMoreAfterIsWhenRemainingGrows(t *testing.T) {
	eachHistory(t, func(t *testing.T, _ *rand.Rand, h *history) {
		d := h.ask(h.now, 0)
		if (d.MoreAfter == 0) != (d.Remaining == h.full()) {
			t.Fatalf("more after %d with %d of %d remaining", d.MoreAfter, d.Remaining, h.full())
		}
		if d.MoreAfter == 0 {
			return
		}
		if got := h.ask(h.now+d.MoreAfter-1, 0).Remaining; got != d.Remaining {
			t.Errorf("remaining went from %d to %d before more after", d.Remaining, got)
		}
		if got := h.ask(h.now+d.MoreAfter, 0).Remaining; got <= d.Remaining {
			t.Errorf("remaining is %d at more after, and was %d", got, d.Remaining)
		}
	})
}

func TestPastResetAfterIsFresh(t *testing.T) {
	eachHistory(t, func(t *testing.T, r *rand.Rand, h *history) {
		if h.keepsLarger() {
			return
		}
		h.now += h.ask(h.now, 0).ResetAfter
		untouched := h.limit.Quota
		untouched.Initial = nil
		if !h.limit.Scalable() {
			untouched.Burst = 0
		}
		fresh := &history{limit: mustLimit(t, untouched), mode: h.mode, state: new(State)}
		for range 20 {
			cost := r.Int64N(3)
			if got, want := h.withoutHighest(h.take(h.now, cost)), h.withoutHighest(fresh.take(h.now, cost)); got != want {
				t.Fatalf("past reset after %+v, fresh %+v", got, want)
			}
			h.now += r.Int64N(h.limit.Window/h.limit.Events + 1)
		}
	})
}

// facts has the knowledge of the tests about each algorithm.
var facts = map[string]struct {
	// bound returns how many events may be granted in a span.
	bound func(l *Limit, span Micros) int64
	// newest returns the newest instant in the state of a budget that was charged.
	newest func(l *Limit, s *State) Micros
}{
	"calendar": {
		bound:  func(l *Limit, span Micros) int64 { return l.Events * (span/(l.Window*22/25) + 2) },
		newest: func(l *Limit, s *State) Micros { return l.calendar.around(s.A - 1).start },
	},
	"fixed_window": {
		bound:  func(l *Limit, span Micros) int64 { return l.Events * (span/l.Window + 2) },
		newest: func(_ *Limit, s *State) Micros { return s.A },
	},
	"sliding_log": {
		bound: func(l *Limit, span Micros) int64 { return l.Events * (span/l.Window + 1) },
		newest: func(l *Limit, s *State) Micros {
			return slidingLogNewest(l, s.Log) - s.A - slidingLogGrid(l) + 1
		},
	},
	"sliding_window": {
		bound:  func(l *Limit, span Micros) int64 { return l.Events * (span/l.Window + 2) },
		newest: func(_ *Limit, s *State) Micros { return s.A },
	},
	"leaky_bucket": {
		bound:  func(l *Limit, span Micros) int64 { return l.Burst + ceilDiv(span, l.Window)*l.Events },
		newest: func(_ *Limit, s *State) Micros { return s.B },
	},
	"token_bucket": {
		bound:  func(l *Limit, span Micros) int64 { return l.Burst + span*l.Events/l.Window },
		newest: func(_ *Limit, s *State) Micros { return s.B },
	},
	"gcra": {
		bound:  func(l *Limit, span Micros) int64 { return l.Burst + span*l.Events/l.Window },
		newest: func(_ *Limit, s *State) Micros { return s.B },
	},
	"smooth": {
		bound: func(l *Limit, span Micros) int64 { // and one request
			if l.WarmUp > 0 {
				return span * l.Events / l.Window
			}
			return l.Burst + span*l.Events/l.Window
		},
		newest: func(_ *Limit, s *State) Micros { return s.C },
	},
}

// In every span at most what the algorithm promises is granted, however the
// requests are timed.
func TestGrantedStaysWithinTheBound(t *testing.T) {
	eachHistory(t, func(t *testing.T, r *rand.Rand, h *history) {
		if h.chargesInFull() {
			return
		}
		bound := facts[h.limit.algorithm.Name].bound
		h.charges = h.charges[:0] // only granted events are counted, not charges of denials by uniform
		for range 100 {           // greedy: as soon and as much as it will give
			d := h.ask(h.now, 1)
			if h.mode == Force {
				d.RetryAfter = r.Int64N(h.limit.Window)
			}
			h.now += d.RetryAfter
			if h.record(max(h.ask(h.now, 0).Remaining+r.Int64N(3)-1, 1)); r.IntN(8) == 0 {
				h.refund(r)
			}
		}
		h.withinBound(t, bound)
	})
}

// Requests that are charged in advance pass no sooner, and no more of them, than
// if they had come when there was room.
func TestDelayedStayWithinTheBound(t *testing.T) {
	eachHistory(t, func(t *testing.T, r *rand.Rand, h *history) {
		if h.mode != Binary || h.limit.CheckDelay(minute) != nil {
			return
		}
		h.maxWait = 1 + r.Int64N(5*h.limit.Window)
		h.charges = h.charges[:0]
		for range 100 {
			h.now += r.Int64N(h.limit.Window/h.limit.Events + 1)
			cost := int64(1)
			if h.limit.algorithm.Name != "fixed_window" { // where one that spans two windows passes in the later
				cost += r.Int64N(3)
			}
			last := len(h.charges)
			h.record(cost)
			if last > 0 && r.IntN(3) == 0 { // somebody leaves who has not passed yet
				if c := &h.charges[last-1-r.IntN(min(last, 10))]; c.at > h.now && c.events > 0 {
					Refund(h.limit, h.state, h.now, c.receipt, c.events)
					c.events = 0
				}
			}
			if last > 0 && last < len(h.charges) && h.charges[last].at < h.charges[last-1].at && h.charges[last-1].events > 0 {
				t.Fatalf("%v overtakes %v", h.charges[last], h.charges[last-1])
			}
		}
		h.withinBound(t, func(l *Limit, span Micros) int64 {
			if l.algorithm.Name == "leaky_bucket" { // all that were waiting for one drip pass with it
				span += l.Window
			}
			return facts[l.algorithm.Name].bound(l, span+1) // each passes up to a µs late
		})
	})
}

// withinBound checks that what was granted is within the bound in every span.
func (h *history) withinBound(t *testing.T, bound func(*Limit, Micros) int64) {
	t.Helper()
	for i, first := range h.charges {
		granted := int64(0)
		for _, c := range h.charges[i:] {
			span := c.at - first.at
			counted := granted + c.events
			if h.limit.algorithm.Name == "smooth" { // the last request of a span comes on top
				counted = granted
			}
			if counted > bound(h.limit, span) {
				t.Fatalf("%d granted within %d µs, the bound is %d", counted, span, bound(h.limit, span))
			}
			if c != first && c.events > 0 && first.events > 0 && span < h.limit.MinInterval && h.mode != Force {
				t.Fatalf("granted %d µs apart", span)
			}
			granted += c.events
		}
	}
}

// A charge that is given back at once leaves no trace. Later, a refund gives back at most the
// charge, a budget never gets more than full, and never more than without the charge.
func TestRefundGivesBackTheCharge(t *testing.T) {
	eachHistory(t, func(t *testing.T, r *rand.Rand, h *history) {
		if h.keepsLarger() {
			return
		}
		if h.mode == Uniform {
			h.mode = Binary // else a denial would be charged
		}
		never := h.copy()
		d := h.take(h.now, 1+r.Int64N(3))
		later := h.copy()
		Refund(h.limit, h.state, h.now, d.Receipt, d.Charged)
		before, after := never.ask(h.now, 0), h.ask(h.now, 0)
		if h.limit.algorithm.Name == "smooth" { // charges are rounded up to whole µs, and what warmed up stays warm
			if late := after.ResetAfter - before.ResetAfter; late >= 0 && late <= 2 || h.limit.WarmUp > 0 {
				after = before
			}
		}
		if after != before {
			t.Fatalf("before %+v, charged %d and given back %+v", before, d.Charged, after)
		}
		later.now += r.Int64N(2 * h.limit.Window)
		more := r.Int64N(later.ask(later.now, 0).Remaining + 1) // fits in both, also in a window that has begun since
		later.take(later.now, more)
		never.take(later.now, more)
		was := later.ask(later.now, 0)
		Refund(h.limit, later.state, later.now, d.Receipt, d.Charged)
		is := later.ask(later.now, 0)
		if is.Remaining > later.full() || is.Remaining < was.Remaining {
			t.Fatalf("a refund of %d took remaining from %d to %d of %d", d.Charged, was.Remaining, is.Remaining, later.full())
		}
		if h.limit.MinInterval == 0 && h.limit.WarmUp == 0 && is.Remaining > was.Remaining+d.Charged {
			t.Fatalf("a refund of %d took remaining from %d to %d", d.Charged, was.Remaining, is.Remaining)
		}
		if without := never.ask(later.now, 0); is.Remaining > without.Remaining {
			t.Fatalf("after a refund of %d %d remain, and %d without the charge", d.Charged, is.Remaining, without.Remaining)
		}
	})
}

// State that has been dropped stays dropped.
func TestRefundOfNothing(t *testing.T) {
	eachHistory(t, func(t *testing.T, _ *rand.Rand, h *history) {
		h.mode = Binary
		d := h.take(h.now, 1)
		dropped := &history{state: new(State)}
		Refund(h.limit, dropped.state, h.now, d.Receipt, 1)
		if *dropped.state != (State{}) {
			t.Errorf("a refund made %+v", dropped.state)
		}
	})
}
