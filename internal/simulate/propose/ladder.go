package propose

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/agenda"
)

// ladder is the limits among which one is proposed: one for each number of events that can be
// counted exactly. Limits with more events allow more.
type ladder interface {
	// rung returns the limit with that number of events, or false if there is no such limit.
	rung(events int64) (*rung, bool)
	// meter measures the peak of the demand of a key.
	meter() meter
	// admitting returns the least number of events that [rung.admits] a peak.
	admitting(peak int64) int64
	// largest is the largest number of events of any limit.
	largest() int64
	// endless reports whether limits larger than admitting returns can deny less.
	endless() bool
}

// rung is one limit of a ladder.
type rung struct {
	events int64
	line   string // for a Caddyfile
	// admits is the largest peak of a key to which the limit certainly denies nothing.
	admits int64
	replay func() replay
}

// meter measures an upper bound of the demand of a key.
type meter interface {
	reset()
	add(e request)
	peak() int64
}

// limitLadder has the limits that differ in their events alone. Numbers that are fixed with events
// grow in proportion.
type limitLadder struct {
	quota   func(events int64) algorithms.Quota
	maxWait algorithms.Micros // the longest delay
	// work is the most work of a decision by the limit, and maxCost the largest cost of a request.
	work, maxCost int64
}

// ladderOf returns the ladder of a limit. Burst and initial grow in proportion to the events.
func ladderOf(l *algorithms.Limit, maxWait algorithms.Micros, work, maxCost int64) *limitLadder {
	scale := func(part, events int64) int64 {
		return max(scaled(part, events, l.Events), 1)
	}
	return &limitLadder{maxWait: maxWait, work: work, maxCost: maxCost, quota: func(events int64) algorithms.Quota {
		q := l.Quota
		q.Events = events
		if q.Burst = 0; l.Burst != l.Events {
			q.Burst = scale(l.Burst, events)
		}
		if q.Initial != nil && *q.Initial > 0 {
			initial := scale(*l.Initial, events)
			q.Initial = &initial
		}
		return q
	}}
}

// scaled returns part · n / total, rounded to the nearest whole number.
func scaled(part, n, total int64) int64 {
	high, low := bits.Mul64(uint64(part), uint64(n))
	low, carry := bits.Add64(low, uint64(total/2), 0)
	if high += carry; high >= uint64(total) {
		return math.MaxInt64
	}
	quotient, _ := bits.Div64(high, low, uint64(total))
	return int64(min(quotient, math.MaxInt64))
}

func (a *limitLadder) rung(events int64) (*rung, bool) {
	l := algorithms.TryLimit(a.quota(events))
	if l == nil || l.WorstWork(a.maxCost) > a.work || a.maxWait > 0 && l.CheckDelay(a.maxWait) != nil {
		return nil, false
	}
	return &rung{
		events: events,
		line:   l.Algorithm().CaddyfileText(l.String()),
		admits: admits(l.Quota),
		replay: func() replay { return newLimitReplay(l, a.maxWait) },
	}, true
}

// admits returns the largest peak to which a limit certainly denies nothing, by [windowMeter]. A peak
// bounds the demand of every window, and of two adjacent ones. So fixed windows and logs never have
// more. A bucket that holds a peak and gets as much in each window is never empty.
func admits(q algorithms.Quota) int64 {
	switch {
	case q.WarmUp > 0 || q.MinInterval > 0: // deny also by time alone
		return 0
	case q.Initial != nil:
		return min(q.Events, *q.Initial)
	case q.Burst > 0:
		return min(q.Events, q.Burst)
	}
	return q.Events
}

func (a *limitLadder) meter() meter {
	q := a.quota(1)
	span := q.Window
	if q.Buckets > 0 { // an event counts up to one bucket longer
		span += (q.Window + q.Buckets - 1) / q.Buckets
	}
	return &windowMeter{span: span}
}

// admitting bisects, because bursts are rounded. For limits that deny by time alone, it returns the
// events from which on their number denies nothing.
func (a *limitLadder) admitting(peak int64) int64 {
	low, high := int64(0), a.largest()
	for high-low > 1 {
		middle := low + (high-low)/2
		q := a.quota(middle)
		q.WarmUp, q.MinInterval = 0, 0
		if q.Initial != nil && *q.Initial == 0 {
			q.Initial = nil
		}
		if admits(q) >= peak {
			high = middle
		} else {
			low = middle
		}
	}
	return high
}

// largest is the largest number of events of any limit, as in [algorithms.NewLimit].
func (a *limitLadder) largest() int64 { return 1 << 51 }

// endless: with warm_up, and with initial 0, a larger rate always helps. With min_interval it doesn't.
func (a *limitLadder) endless() bool {
	q := a.quota(1)
	return q.WarmUp > 0 || q.Initial != nil && *q.Initial == 0
}

// windowMeter measures the largest demand of two adjacent windows of a grid. No window has more. If
// responses can charge a key later, it measures the whole demand.
type windowMeter struct {
	span        algorithms.Micros
	window      int64 // the number of the present window
	previous    int64 // the demand of the window before
	present     int64
	largest     int64
	all         int64
	lateCharges bool
}

func (m *windowMeter) reset() { *m = windowMeter{span: m.span} }

func (m *windowMeter) add(e request) {
	switch window := e.at / m.span; {
	case window == m.window:
	case window == m.window+1:
		m.window, m.previous, m.present = window, m.present, 0
	default:
		m.window, m.previous, m.present = window, 0, 0
	}
	m.present += e.cost
	m.largest = max(m.largest, m.previous+m.present)
	late := e.lateCharge()
	m.all += e.cost + late
	m.lateCharges = m.lateCharges || late > 0
}

func (m *windowMeter) peak() int64 {
	if m.lateCharges {
		return m.all
	}
	return m.largest
}

// slotsLadder has the numbers of slots.
type slotsLadder struct {
	maxWait algorithms.Micros
}

func (a slotsLadder) rung(slots int64) (*rung, bool) {
	if slots < 1 || slots > a.largest() {
		return nil, false
	}
	return &rung{
		events: slots, admits: slots, line: fmt.Sprintf("concurrency %d", slots),
		replay: func() replay { return &slotsReplay{slots: int(slots), maxWait: a.maxWait} },
	}, true
}

func (a slotsLadder) meter() meter               { return &overlapMeter{} }
func (a slotsLadder) admitting(peak int64) int64 { return max(peak, 1) }
func (a slotsLadder) largest() int64             { return math.MaxInt32 }
func (a slotsLadder) endless() bool              { return false }

// overlapMeter measures the largest number of requests in flight.
type overlapMeter struct {
	inFlight agenda.Agenda[struct{}] // by their ends
	largest  int64
}

func (m *overlapMeter) reset() {
	m.inFlight.Clear()
	m.largest = 0
}

func (m *overlapMeter) add(e request) {
	for m.inFlight.Len() > 0 && m.inFlight.First() <= e.at {
		m.inFlight.Pop()
	}
	m.inFlight.Add(e.end, struct{}{})
	m.largest = max(m.largest, int64(m.inFlight.Len()))
}

func (m *overlapMeter) peak() int64 { return m.largest }

// The largest number of limits that atMost and atLeast try one by one.
const nearby = 2000

// atMost returns the limit with most events, of those with at most that number. Where few numbers can
// be counted exactly, it prefers round ones, and can miss others.
func atMost(a ladder, events int64) (*rung, bool) {
	for n := events; n > max(events-nearby, 0); n-- {
		if r, ok := a.rung(n); ok {
			return r, true
		}
	}
	for step := int64(nearby); step <= events; step *= 10 {
		for n := events - events%step; n > max(events-10*step, 0); n -= step {
			if r, ok := a.rung(n); ok {
				return r, true
			}
		}
	}
	var largest *rung
	for low, high := int64(0), events; high-low > 1; {
		middle := low + (high-low)/2
		if r, ok := a.rung(middle); ok {
			low, largest = middle, r
		} else {
			high = middle
		}
	}
	return largest, largest != nil
}

// atLeast returns the limit with the fewest events, of those with at least that number. It tries as
// many numbers as atMost.
func atLeast(a ladder, events int64) (*rung, bool) {
	for n := events; n < events+nearby && n <= a.largest(); n++ {
		if r, ok := a.rung(n); ok {
			return r, true
		}
	}
	for step := int64(nearby); step <= a.largest()/10; step *= 10 {
		for n := events - events%step + step; n <= min(events+10*step, a.largest()); n += step {
			if r, ok := a.rung(n); ok {
				return r, true
			}
		}
	}
	return nil, false
}
