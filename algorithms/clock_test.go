package algorithms

import (
	"math/rand/v2"
	"testing"
)

// The promises if the clock steps back.

// newest is the newest instant in a budget's state; 0 if nothing was charged.
func (h *history) newest() Micros {
	if *h.state == (State{}) {
		return 0
	}
	return facts[h.limit.algorithm.Name].newest(h.limit, h.state)
}

// aligned reports whether the clock says where the limit's windows or periods begin.
func (h *history) aligned() bool {
	return h.limit.Align == "clock" || h.limit.algorithm.Name == "sliding_window" || h.limit.algorithm.Calendar
}

// withoutHighest is a decision without the highest count of a calendar, which a refund doesn't change.
func (h *history) withoutHighest(d Decision) Decision {
	if h.limit.algorithm.Calendar {
		d.Receipt.B = 0
	}
	return d
}

// A clock that is behind by up to a second adds nothing and takes nothing, and everything
// comes at the instant that was told.
func TestClockSlightlyBehindHoldsStill(t *testing.T) {
	eachHistory(t, func(t *testing.T, r *rand.Rand, h *history) {
		before := h.ask(h.now, 0)
		back := r.Int64N(second + 1)
		after := h.ask(h.now-back, 0)
		if after.Remaining > before.Remaining {
			t.Errorf("stepping back %d µs took remaining from %d to %d", back, before.Remaining, after.Remaining)
		}
		if before.Remaining < h.full() && after.ResetAfter < before.ResetAfter {
			t.Errorf("stepping back %d µs took reset after from %d to %d", back, before.ResetAfter, after.ResetAfter)
		}
		if h.newest() > 0 {
			if held, newest := h.ask(h.newest()-back, 0).Remaining, h.ask(h.newest(), 0).Remaining; held != newest {
				t.Errorf("%d remain %d µs before the newest instant, and there %d", held, back, newest)
			}
		}
		h.mode = Binary
		if d := h.ask(h.now, 1); !d.Allowed {
			if e := h.ask(h.now-back, 1); e.Allowed || e.RetryAfter != d.RetryAfter+back {
				t.Errorf("stepping back %d µs took retry after from %d to %d", back, d.RetryAfter, e.RetryAfter)
			}
		}
	})
}

// A clock that steps back further adds nothing, too. No wait is longer than at the newest instant
// in the budget's state, where the budget continues. Windows with align clock end sooner, and the
// previous window of a sliding one can weigh less.
func TestClockSteppingBackGoesOn(t *testing.T) {
	eachHistory(t, func(t *testing.T, r *rand.Rand, h *history) {
		if h.newest() == 0 { // nothing was charged
			return
		}
		for range r.IntN(3) { // it is not the first step
			h.now = h.newest() - second - 1 - r.Int64N(minute)
			h.take(h.now, 1)
			h.now += r.Int64N(h.limit.Window)
			h.take(h.now, 1)
		}
		before, newest := h.ask(h.now, 0), h.ask(h.newest(), 0)
		now := h.newest() - second - 1 - []Micros{0, 1, r.Int64N(1000), r.Int64N(10 * minute), r.Int64N(1e15)}[r.IntN(5)]
		was := h.text()
		after := h.take(now, 0)
		if h.text() != was {
			t.Errorf("a peek %d µs before the newest instant changed %s to %s", h.newest()-now, was, h.text())
		}
		spared := int64(0)
		if h.limit.algorithm.Name == "sliding_window" {
			spared = h.state.B
		}
		if after.Remaining > before.Remaining+spared || after.ResetAfter > newest.ResetAfter && !h.limit.algorithm.Calendar {
			t.Errorf("stepping back took %+v to %+v, and at the newest instant it is %+v", before, after, newest)
		}
		if !h.aligned() {
			if after != newest {
				t.Errorf("stepping back decides %+v, and at the newest instant %+v", after, newest)
			}
			h.mode = Binary
			cost := r.Int64N(h.limit.Burst + 2)
			got, want := h.ask(now, cost), h.ask(h.newest(), cost)
			if got.Receipt, want.Receipt = (Receipt{}), (Receipt{}); got != want {
				t.Errorf("stepping back decides of cost %d %+v, and at the newest instant %+v", cost, got, want)
			}
		}
	})
}

// Every request but a peek saves the instant from which a budget continues, also a denied one. So a
// promised wait ends when it should.
func TestClockSteppingBackIsSaved(t *testing.T) {
	eachHistory(t, func(t *testing.T, r *rand.Rand, h *history) {
		if h.newest() == 0 {
			return
		}
		now := h.newest() - second - 1 - r.Int64N(1e15)
		cost := 1 + r.Int64N(2)
		if h.mode != Uniform && r.IntN(2) == 0 { // denied permanently, or it would be charged
			h.mode, cost = Binary, exact/4
		}
		d := h.take(now, cost)
		if d.Charged == 0 && h.limit.Initial == nil && h.newest() > now {
			t.Fatalf("%+v by a clock that stepped back left the newest instant %d µs ahead", d, h.newest()-now)
		}
		if e := h.ask(now, 0); e.Remaining != d.Remaining || e.ResetAfter != d.ResetAfter {
			t.Errorf("%+v, and right afterwards %+v", d, e)
		}
		if h.aligned() && !h.limit.algorithm.Calendar && h.newest()%h.limit.Window != 0 {
			t.Errorf("a window begins at %d, which is no multiple of %d", h.newest(), h.limit.Window)
		}
		if h.keepsLarger() {
			return
		}
		now += d.ResetAfter
		if e := h.ask(now, 0); e.Remaining != h.full() || e.ResetAfter != 0 {
			t.Errorf("%+v, and at its reset after %+v", d, e)
		}
		fresh := &history{limit: h.limit, mode: h.mode, state: new(State)}
		for range 10 {
			if got, want := h.withoutHighest(h.take(now, 1)), h.withoutHighest(fresh.take(now, 1)); got != want && h.limit.Initial == nil {
				t.Fatalf("at its reset after %+v, and a fresh one %+v", got, want)
			}
			now += 1 + r.Int64N(h.limit.Window)
		}
	})
}

// If a clock steps back any number of times, the promise for each span of true time holds. If a
// clock goes back and forth, one more budget is granted each time it goes ahead. Windows with align
// clock can end at each step.
func TestGrantedStaysWithinTheBoundByAnyClock(t *testing.T) {
	eachHistory(t, func(t *testing.T, r *rand.Rand, h *history) {
		if h.chargesInFull() {
			return
		}
		type grant struct {
			charged
			jumps int64
		}
		var grants []grant
		ahead, jumps := Micros(0), int64(0)
		returns := r.IntN(2) == 0
		for range 60 {
			switch {
			case r.IntN(6) == 0:
				ahead -= second + 1 + r.Int64N(2*minute)
				if h.aligned() {
					jumps++
				}
			case returns && r.IntN(6) == 0:
				ahead += r.Int64N(2 * minute)
				jumps++
			}
			if d := h.take(h.now+ahead, 1+r.Int64N(3)); d.Allowed && d.Charged > 0 {
				grants = append(grants, grant{charged{at: h.now, events: d.Charged}, jumps})
			}
			h.now += []Micros{0, 1, r.Int64N(h.limit.Window), min(h.ask(h.now+ahead, 1).RetryAfter, 3*h.limit.Window)}[r.IntN(4)]
		}
		bound := facts[h.limit.algorithm.Name].bound
		for i, first := range grants {
			granted := int64(0)
			for _, g := range grants[i:] {
				counted := granted + g.events
				if h.limit.algorithm.Name == "smooth" { // the last request of a span comes on top
					counted = granted
				}
				budget := h.full() + 3 // and a request that smooth serves whatever its cost
				if most := bound(h.limit, g.at-first.at) + (g.jumps-first.jumps)*budget; counted > most {
					t.Fatalf("%d granted within %d µs in which the clock jumped %d times, the bound is %d", counted, g.at-first.at, g.jumps-first.jumps, most)
				}
				granted += g.events
			}
		}
	})
}

// A receipt that is more than a second ahead gives nothing back; one of a log gives back
// what it is for.
func TestRefundAfterTheClockSteppedBack(t *testing.T) {
	eachHistory(t, func(t *testing.T, r *rand.Rand, h *history) {
		h.mode = Binary
		never := h.copy()
		d := h.take(h.now, 1+r.Int64N(2))
		if d.Charged == 0 {
			return
		}
		was, back := h.text(), second+1+r.Int64N(10*minute)
		if r.IntN(2) == 0 {
			h.take(h.now-back, 0)
		}
		Refund(h.limit, h.state, h.now-back, d.Receipt, d.Charged)
		if !h.limit.algorithm.log {
			if h.text() != was {
				t.Errorf("a receipt %d µs ahead took %s to %s", back, was, h.text())
			}
			return
		}
		if got, want := h.ask(h.now, 0), never.ask(h.now, 0); got != want {
			t.Errorf("before %+v, charged %d and given back %d µs earlier %+v", want, d.Charged, back, got)
		}
		h.take(h.now, 1)
		again := h.take(h.now, 1)
		held := slidingLogLength(h.limit, h.state.Log)
		h.take(h.now-back, exact/4) // denied, and the log continues from there
		if Refund(h.limit, h.state, h.now-back, again.Receipt, again.Charged); slidingLogLength(h.limit, h.state.Log) != held-again.Charged {
			t.Errorf("the log holds %d events of %d after %d were given back", slidingLogLength(h.limit, h.state.Log), held, again.Charged)
		}
		alone := &history{limit: h.limit, state: new(State)}
		only := alone.take(h.now, 1)
		alone.take(h.now-back, exact/4)
		if Refund(h.limit, alone.state, h.now-back, only.Receipt, 1); *alone.state != (State{}) {
			t.Errorf("of a log that was given back as a whole %+v is left", alone.state)
		}
	})
}
