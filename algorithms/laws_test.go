package algorithms

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// What every algorithm promises, checked on random limits and histories.

const (
	millisecond = 1000
	second      = 1_000_000
	minute      = 60 * second
)

// history is a budget with a random past, and the instant after it.
type history struct {
	limit   *Limit
	mode    Mode
	state   *State
	now     Micros
	charges []charged
}

type charged struct {
	at     Micros
	events int64
}

func (h *history) take(now Micros, cost int64) Decision {
	r := []Request{{Mode: h.mode, Cost: cost, Checks: []Check{{Limit: h.limit, State: h.state}}}}
	Take(r, now)
	return r[0].Checks[0].Decision
}

// ask decides on a copy, so nothing is charged.
func (h *history) ask(now Micros, cost int64) Decision {
	c := h.copy()
	return c.take(now, cost)
}

func (h *history) copy() *history {
	c := *h
	state := *h.state
	if state.Log != nil {
		log := *state.Log
		log.ring = slices.Clone(log.ring)
		state.Log = &log
	}
	c.state = &state
	return &c
}

// text is everything that is remembered.
func (h *history) text() string {
	return fmt.Sprint(h.state.A, h.state.B, h.state.C, h.state.Log)
}

func mustLimit(t testing.TB, q Quota) *Limit {
	t.Helper()
	l, err := NewLimit(q)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// eachHistory runs a law on many histories of every algorithm and mode.
func eachHistory(t *testing.T, law func(t *testing.T, r *rand.Rand, h *history)) {
	for _, a := range All() {
		t.Run(a.Name, func(t *testing.T) {
			for seed := range uint64(2000) {
				r := rand.New(rand.NewPCG(seed, 2))
				q := Quota{Algorithm: a.Name, Events: 1 + r.Int64N(20), Window: 1 + r.Int64N([]int64{5, 1000, minute}[r.IntN(3)])}
				if a.Burst && r.IntN(2) == 0 {
					q.Burst = 1 + r.Int64N(30)
				}
				if slices.Contains(a.Options, "align") && r.IntN(2) == 0 {
					q.Align = "clock"
				}
				if slices.Contains(a.Options, "min_interval") && r.IntN(2) == 0 {
					q.MinInterval = 1 + r.Int64N(2*q.Window)
				}
				mode := []Mode{Binary, Binary, Nary, Uniform, Force}[r.IntN(5)]
				h := &history{limit: mustLimit(t, q), mode: mode, state: new(State), now: 1_763_640_000*second + r.Int64N(minute)}
				for range r.IntN(60) {
					h.now += r.Int64N(2*q.Window/q.Events + 2)
					cost := r.Int64N(3)
					if d := h.take(h.now, cost); d.Charged > 0 {
						h.charges = append(h.charges, charged{h.now, d.Charged})
					}
				}
				if law(t, r, h); t.Failed() {
					t.Fatalf("seed %d: %v %v after %v", seed, h.mode, h.limit, h.charges)
				}
			}
		})
	}
}

func TestPeekChangesNothing(t *testing.T) {
	eachHistory(t, func(t *testing.T, r *rand.Rand, h *history) {
		before := h.copy()
		h.take(h.now+r.Int64N(h.limit.Window), 0)
		if before.text() != h.text() {
			t.Errorf("a peek changed %+v to %+v", before.state, h.state)
		}
	})
}

func TestRefusalChangesNothing(t *testing.T) {
	eachHistory(t, func(t *testing.T, _ *rand.Rand, h *history) {
		if h.mode == Uniform {
			return // there it does
		}
		h.mode = Binary
		before := h.copy()
		h.take(h.now, h.ask(h.now, 0).Remaining+1)
		if before.text() != h.text() {
			t.Errorf("a refusal changed %+v to %+v", before.state, h.state)
		}
	})
}

func TestRetryAfterIsExact(t *testing.T) {
	eachHistory(t, func(t *testing.T, r *rand.Rand, h *history) {
		cost := 1 + r.Int64N(h.limit.Burst)
		d := h.take(h.now, cost)
		if d.Allowed {
			if d.RetryAfter != 0 {
				t.Errorf("allowed with retry after %d", d.RetryAfter)
			}
			return
		}
		if d.RetryAfter <= 0 || d.RetryAfter == Forever {
			t.Fatalf("refused cost %d with retry after %d", cost, d.RetryAfter)
		}
		if h.ask(h.now+d.RetryAfter-1, cost).Allowed {
			t.Errorf("cost %d allowed 1 µs before its retry after of %d", cost, d.RetryAfter)
		}
		if !h.ask(h.now+d.RetryAfter, cost).Allowed {
			t.Errorf("cost %d refused at its retry after of %d", cost, d.RetryAfter)
		}
	})
}

func TestRemainingCanBeTakenAtOnce(t *testing.T) {
	eachHistory(t, func(t *testing.T, _ *rand.Rand, h *history) {
		h.mode = Binary // which says of the same budget whether something fits
		remaining := h.ask(h.now, 0).Remaining
		if !h.ask(h.now, remaining).Allowed {
			t.Errorf("%d remaining could not be taken", remaining)
		}
		if h.ask(h.now, remaining+1).Allowed {
			t.Errorf("more than the %d remaining could be taken", remaining)
		}
	})
}

// The debt that uniform makes of refused requests is bounded, and so is the time
// it keeps a client out once the client pauses.
func TestUniformDebtIsBounded(t *testing.T) {
	eachHistory(t, func(t *testing.T, r *rand.Rand, h *history) {
		h.mode = Uniform
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
		if d.ResetAfter > most+l.Window { // and what is left of a window or drip
			t.Errorf("reset after %d µs, want at most about %d", d.ResetAfter, most)
		}
		if h.state.Log.Len() > l.Events {
			t.Errorf("the log holds %d of %d events", h.state.Log.Len(), l.Events)
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
		if (d.MoreAfter == 0) != (d.Remaining == h.limit.Burst) {
			t.Fatalf("more after %d with %d of %d remaining", d.MoreAfter, d.Remaining, h.limit.Burst)
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
		h.now += h.ask(h.now, 0).ResetAfter
		fresh := &history{limit: h.limit, mode: h.mode, state: new(State)}
		for range 20 {
			cost := r.Int64N(3)
			if got, want := h.take(h.now, cost), fresh.take(h.now, cost); got != want {
				t.Fatalf("past reset after %+v, fresh %+v", got, want)
			}
			h.now += r.Int64N(h.limit.Window/h.limit.Events + 1)
		}
	})
}

func TestClockSteppingBackAddsNothing(t *testing.T) {
	eachHistory(t, func(t *testing.T, r *rand.Rand, h *history) {
		before := h.ask(h.now, 0)
		back := r.Int64N(2 * minute)
		after := h.ask(h.now-back, 0)
		if after.Remaining > before.Remaining {
			t.Errorf("stepping back %d µs took remaining from %d to %d", back, before.Remaining, after.Remaining)
		}
		if before.Remaining < h.limit.Burst && after.ResetAfter < before.ResetAfter {
			t.Errorf("stepping back %d µs took reset after from %d to %d", back, before.ResetAfter, after.ResetAfter)
		}
	})
}

// In every span at most what the algorithm promises is granted, however the
// requests are timed.
func TestGrantedStaysWithinTheBound(t *testing.T) {
	bounds := map[string]func(l *Limit, span Micros) int64{
		"fixed_window":   func(l *Limit, span Micros) int64 { return l.Events * (span/l.Window + 2) },
		"sliding_log":    func(l *Limit, span Micros) int64 { return l.Events * (span/l.Window + 1) },
		"sliding_window": func(l *Limit, span Micros) int64 { return l.Events * (span/l.Window + 2) },
		"leaky_bucket":   func(l *Limit, span Micros) int64 { return l.Burst + ceilDiv(span, l.Window)*l.Events },
		"token_bucket":   func(l *Limit, span Micros) int64 { return l.Burst + span*l.Events/l.Window },
		"gcra":           func(l *Limit, span Micros) int64 { return l.Burst + span*l.Events/l.Window },
	}
	eachHistory(t, func(t *testing.T, r *rand.Rand, h *history) {
		bound := bounds[h.limit.algorithm.Name]
		if bound == nil {
			t.Fatalf("no bound is written down for %s", h.limit.algorithm.Name)
		}
		h.charges = h.charges[:0] // counted is what is granted: not what uniform charges refusals
		for range 100 {           // greedy: as soon and as much as it will give
			d := h.ask(h.now, 1)
			if h.mode == Force {
				d.RetryAfter = r.Int64N(h.limit.Window)
			}
			h.now += d.RetryAfter
			cost := max(h.ask(h.now, 0).Remaining+r.Int64N(3)-1, 1)
			if d := h.take(h.now, cost); d.Allowed && d.Charged > 0 {
				h.charges = append(h.charges, charged{h.now, d.Charged})
			}
		}
		for i := range h.charges {
			granted := int64(0)
			for _, c := range h.charges[i:] {
				granted += c.events
				span := c.at - h.charges[i].at
				if granted > bound(h.limit, span) {
					t.Fatalf("%d granted within %d µs, the bound is %d", granted, span, bound(h.limit, span))
				}
				if c != h.charges[i] && span < h.limit.MinInterval && h.mode != Force {
					t.Fatalf("granted %d µs apart", span)
				}
			}
		}
	})
}
