package algorithms

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
)

const (
	millisecond = 1000
	second      = 1_000_000
	minute      = 60 * second
)

// history is a budget with a random past, and the instant after it.
type history struct {
	limit   *Limit
	mode    Mode
	maxWait Micros
	state   *State
	now     Micros
	charges []charged
}

// charged is a charge, and when the request passed.
type charged struct {
	at      Micros
	events  int64
	receipt Receipt
	limit   *Limit
}

func (h *history) take(now Micros, cost int64) Decision {
	r := []ZoneRequest{{Mode: h.mode, Cost: cost, MaxWait: h.maxWait, Checks: []Check{{Limit: h.limit, State: h.state}}}}
	Take(r, now)
	return r[0].Checks[0].Decision
}

// peek decides without a charge.
func (h *history) peek(now Micros, cost int64) Decision {
	r := []ZoneRequest{{Mode: h.mode, Cost: cost, Peek: true, MaxWait: h.maxWait, Checks: []Check{{Limit: h.limit, State: h.state}}}}
	Take(r, now)
	return r[0].Checks[0].Decision
}

// record takes, and notes what was granted.
func (h *history) record(cost int64) {
	if d := h.take(h.now, cost); d.Allowed && d.Charged > 0 {
		h.charges = append(h.charges, charged{h.now + d.Wait, d.Charged, d.Receipt, h.limit})
	}
}

// refund gives back a part of some charge, which then was never made.
func (h *history) refund(r *rand.Rand) {
	if len(h.charges) == 0 {
		return
	}
	c := &h.charges[r.IntN(len(h.charges))]
	n := min(1+r.Int64N(3), c.events)
	if h.limit.algorithm.BinaryOnly { // what was charged is given back whole
		n = c.events
	}
	if c.receipt != (Receipt{}) {
		Refund(c.limit, h.state, h.now, c.receipt, n)
		c.events -= n
		for i := range h.charges {
			h.charges[i].receipt = Receipt{} // they tell of a past that has changed
		}
	}
}

// full returns the remaining events of an untouched budget.
func (h *history) full() int64 {
	switch {
	case h.limit.WarmUp > 0:
		return 1
	case h.limit.algorithm.Name == "smooth": // the last one is on account of the next
		return h.limit.Burst + 1
	}
	return h.limit.Burst
}

// chargesInFull reports whether more is charged than fits.
func (h *history) chargesInFull() bool { return h.mode == Force && h.limit.algorithm.Calendar }

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
	return fmt.Sprint(h.state.A, h.state.B, h.state.C, h.state.D, h.state.Log)
}

func mustLimit(t testing.TB, q Quota) *Limit {
	t.Helper()
	l, err := NewLimit(q)
	errtest.None(t, err)
	return l
}

// quotaOf returns a quota of an algorithm. The window of a calendar is a day.
func quotaOf(a *Algorithm, events int64, window Micros) Quota {
	if a.Calendar {
		return Quota{Algorithm: a.Name, Events: events, Period: "day"}
	}
	return Quota{Algorithm: a.Name, Events: events, Window: window}
}

// randomQuota draws a limit of an algorithm.
func randomQuota(r *rand.Rand, a *Algorithm) Quota {
	q := Quota{Algorithm: a.Name, Events: 1 + r.Int64N(20), Window: 1 + r.Int64N([]int64{5, 1000, minute}[r.IntN(3)])}
	if a.Calendar {
		p := periods[r.IntN(len(periods))]
		q.Period, q.Window, q.TimeZone = p.name, p.longest, zonesOfTests[r.IntN(len(zonesOfTests))]
		switch q.Period {
		case "week":
			q.StartDay = Monday + r.Int64N(7)
		case "month":
			q.StartDay = r.Int64N(29)
		}
	}
	if a.Burst && r.IntN(2) == 0 {
		q.Burst = 1 + r.Int64N(30)
	}
	if a.Takes("align") && r.IntN(2) == 0 {
		q.Align = "clock"
	}
	if a.Takes("min_interval") && r.IntN(2) == 0 {
		q.MinInterval = 1 + r.Int64N(2*q.Window)
	}
	if a.Takes("buckets") && r.IntN(2) == 0 {
		q.Buckets = 1 + r.Int64N(12)
	}
	if a.Takes("initial") && r.IntN(3) == 0 {
		q.Initial = new(r.Int64N(cmp.Or(q.Burst, q.Events) + 1))
	}
	if a.Takes("warm_up") && r.IntN(2) == 0 {
		q.Burst, q.Initial, q.WarmUp = 0, nil, 1+r.Int64N(10*q.Window)
		q.ColdFactor = []int64{0, 1000, 1001, 2500, 10_000, 1_000_000}[r.IntN(6)]
	}
	return q
}

// changed draws a limit with other events or another burst, which has the same budgets.
func changed(r *rand.Rand, l *Limit) *Limit {
	for range 10 {
		q := l.Quota
		q.Events = []int64{q.Events, 1 + r.Int64N(20), 1 + r.Int64N(2000)}[r.IntN(3)]
		if q.Burst = 0; l.Scalable() && r.IntN(2) == 0 {
			q.Burst = 1 + r.Int64N(2*l.Burst)
		}
		if c, err := NewLimit(q); err == nil && c.Fingerprint() == l.Fingerprint() {
			return c
		}
	}
	return l
}

// keepsLarger reports whether the state says what a larger limit counts. Then the limit counts what it changes in whole ticks,
// and a smooth limit has nothing saved up.
func (h *history) keepsLarger() bool {
	if h.limit.parts.unit == 0 {
		return false
	}
	_, _, larger := bucketUse(h.limit, h.state)
	return larger == 1
}

// settle charges a correction.
func (h *history) settle(now Micros, cost int64) Decision {
	c := *h
	c.mode, c.maxWait = Settle, 0
	return c.take(now, cost)
}

// eachHistory runs a law on many histories of every algorithm and mode. In some of them the limit has changed, or true costs
// were charged.
func eachHistory(t *testing.T, law func(t *testing.T, r *rand.Rand, h *history)) {
	for _, a := range All() {
		t.Run(a.Name, func(t *testing.T) {
			if facts[a.Name].bound == nil || facts[a.Name].newest == nil {
				t.Fatalf("the table facts lacks %s", a.Name)
			}
			for seed := range seedtest.Cases(t, uint64(1000)) {
				r := rand.New(rand.NewPCG(seed, 2))
				q := randomQuota(r, a)
				h := &history{limit: mustLimit(t, q), state: new(State), now: 1_763_640_000*second + r.Int64N(minute)}
				if !a.BinaryOnly {
					h.mode = []Mode{Binary, Binary, Nary, Uniform, Force}[r.IntN(5)]
				}
				if h.mode == Binary && h.limit.CheckDelay(minute) == nil && r.IntN(2) == 0 {
					h.maxWait = 1 + r.Int64N(5*q.Window)
				}
				h.take(h.now, 1)
				for range r.IntN(60) {
					h.now += r.Int64N(2*q.Window/q.Events + 2)
					if h.record(r.Int64N(3)); r.IntN(5) == 0 {
						h.refund(r)
					}
					switch {
					case seed%3 == 0 && r.IntN(10) == 0:
						h.limit = changed(r, h.limit)
						h.maxWait = 0
					case seed%4 == 0 && r.IntN(10) == 0:
						h.settle(h.now, 1+r.Int64N(3*h.limit.Burst))
					}
				}
				h.maxWait = 0
				func() {
					defer func() { // a law may end the test itself
						if t.Failed() {
							t.Logf("seed %d: %v %v after %v", seed, h.mode, h.limit, h.charges)
						}
					}()
					law(t, r, h)
				}()
				if t.Failed() {
					return
				}
			}
		})
	}
}
