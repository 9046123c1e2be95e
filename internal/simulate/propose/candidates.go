package propose

import (
	"math"
	"math/bits"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// provenAlgorithms are the algorithms of which [candidate.largestPeak] is proven by a law. Limits are proposed for these alone.
var provenAlgorithms = []string{"fixed_window", "gcra", "leaky_bucket", "sliding_log", "sliding_window", "smooth", "token_bucket"}

// candidates are the limits among which one is proposed: one for each number of events that can be counted exactly.
// They differ in their events alone, and numbers that are fixed with events grow in proportion. Limits with more events
// allow more.
type candidates struct {
	quota   func(events int64) algorithms.Quota
	maxWait algorithms.Micros // the longest delay
	// work is the most work of a decision by the limit, and maxCost the largest cost of a request.
	work, maxCost int64
}

// candidate is one of the candidates.
type candidate struct {
	events int64
	line   string // for a Caddyfile
	// largestPeak is the largest peak of a key to which the limit certainly denies nothing.
	largestPeak int64
	limit       *algorithms.Limit
}

// candidatesLike returns the candidates that replace a limit. Burst and initial grow in proportion to the events.
func candidatesLike(l *algorithms.Limit, maxWait algorithms.Micros, work, maxCost int64) *candidates {
	scale := func(part, events int64) int64 {
		return max(scaled(part, events, l.Events), 1)
	}
	return &candidates{maxWait: maxWait, work: work, maxCost: maxCost, quota: func(events int64) algorithms.Quota {
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

// with returns the limit with this number of events, or false if there is no such limit.
func (c *candidates) with(events int64) (*candidate, bool) {
	l, err := algorithms.NewLimit(c.quota(events))
	if err != nil || l.WorstWork(c.maxCost) > c.work || c.maxWait > 0 && l.CheckDelay(c.maxWait) != nil {
		return nil, false
	}
	return &candidate{events: events, line: caddyfileLine(l), largestPeak: largestPeak(l.Quota), limit: l}, true
}

// largestPeak returns the largest peak to which a limit certainly denies nothing, by [windowMeter]. A peak
// bounds the demand of every window, and of two adjacent ones. So fixed windows and logs never have
// more. A bucket that holds a peak and gets as much in each window is never empty.
func largestPeak(q algorithms.Quota) int64 {
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

// meter returns a meter of the demand of a key.
func (c *candidates) meter() *windowMeter {
	q := c.quota(1)
	span := q.Window
	if q.Buckets > 0 { // an event counts up to one bucket longer
		span += (q.Window + q.Buckets - 1) / q.Buckets
	}
	return &windowMeter{span: span}
}

// eventsFor returns the least number of events whose [candidate.largestPeak] is at least peak. For limits that deny by
// time alone, it returns the events from which on their number denies nothing. It bisects, because bursts are rounded.
func (c *candidates) eventsFor(peak int64) int64 {
	low, high := int64(0), largestEvents
	for high-low > 1 {
		middle := low + (high-low)/2
		q := c.quota(middle)
		q.WarmUp, q.MinInterval = 0, 0
		if q.Initial != nil && *q.Initial == 0 {
			q.Initial = nil
		}
		if largestPeak(q) >= peak {
			high = middle
		} else {
			low = middle
		}
	}
	return high
}

// largestEvents is the largest number of events of any limit, as in [algorithms.NewLimit].
const largestEvents = int64(1) << 51

// isEndless reports whether limits larger than eventsFor returns can deny less: with warm_up, and with initial 0, a larger
// rate always helps. With min_interval it doesn't.
func (c *candidates) isEndless() bool {
	q := c.quota(1)
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

// The largest number of limits that atMost and atLeast try one by one.
const nearby = 2000

// atMost returns the limit with most events, of those with at most that number. Where few numbers can
// be counted exactly, it prefers round ones, and can miss others.
func (c *candidates) atMost(events int64) (*candidate, bool) {
	for n := events; n > max(events-nearby, 0); n-- {
		if r, ok := c.with(n); ok {
			return r, true
		}
	}
	for step := int64(nearby); step <= events; step *= 10 {
		for n := events - events%step; n > max(events-10*step, 0); n -= step {
			if r, ok := c.with(n); ok {
				return r, true
			}
		}
	}
	var largest *candidate
	for low, high := int64(0), events; high-low > 1; {
		middle := low + (high-low)/2
		if r, ok := c.with(middle); ok {
			low, largest = middle, r
		} else {
			high = middle
		}
	}
	return largest, largest != nil
}

// atLeast returns the limit with the fewest events, of those with at least that number. It tries as
// many numbers as atMost.
func (c *candidates) atLeast(events int64) (*candidate, bool) {
	for n := events; n < events+nearby && n <= largestEvents; n++ {
		if r, ok := c.with(n); ok {
			return r, true
		}
	}
	for step := int64(nearby); step <= largestEvents/10; step *= 10 {
		for n := events - events%step + step; n <= min(events+10*step, largestEvents); n += step {
			if r, ok := c.with(n); ok {
				return r, true
			}
		}
	}
	return nil, false
}
