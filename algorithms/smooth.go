package algorithms

import (
	_ "embed"
	"errors"
	"fmt"
)

//go:embed smooth.lua
var smoothLua string

// smooth: a request passes once the next free instant has come, whatever its
// cost, and it is the next request that waits for what this one cost. What is not
// used is saved up, burst events at most, and spent before the next free instant
// moves. In any span T all requests but the last are together worth at most
// burst + T·events/window events.
//
// With warm_up nothing is spent at once. A budget that was idle for warm_up is
// cold: an event then costs cold_factor times window/events, and less and less
// until, after as long again, it is warm. All requests of a span T but the last
// are together worth at most T·events/window events.
//
// State: A is what was used of that which is saved up, in events×µs as in a
// token_bucket, or, with warm_up, how far the budget is from cold, in µs of
// idleness; B is the next free instant. In both cases the zero State is a budget
// that was idle for long, unless initial says otherwise. C is the
// instant of the last charge.
//
// C is the newest instant; the next free instant is ahead of it by the cost of the last
// requests. If the clock is more than a second behind C, C becomes now, and the next free
// instant moves with it.
func init() {
	register(&Algorithm{
		Name: "smooth", Burst: true, Options: []*Option{warmUp, coldFactor, initial}, BinaryOnly: true,
		lua:          smoothLua,
		numbers:      smoothNumbersOf,
		bound:        smoothBound,
		longestDelay: func(*Limit) Micros { return longest / 4 },
		queued:       func(_ *Limit, used int64, free Micros) (Micros, int64) { return free, used },
		untouched:    smoothUntouched,
		decide:       smoothDecide,
		commit:       smoothCommit,
		refund:       smoothRefund,
	})
}

var warmUp = &Option{
	Name: "warm_up", Example: "10s", min: 1, max: unbounded, write: describeDuration, phrase: " warming up for %s",
	advice: ": write how long it takes from cold to the full rate, such as 10s",
	value:  func(q *Quota) *int64 { return unlessZero(&q.WarmUp) },
	check: func(q *Quota) error {
		if q.Burst != 0 {
			return fmt.Errorf("burst and warm_up don't go together: leave out %d; with warm_up, "+
				"what is saved up while idle is spent slowly, never at once", q.Burst)
		}
		return nil
	},
}

var coldFactor = &Option{
	Name: "cold_factor", Example: "3", min: 1000, max: 1_000_000, phrase: " from a cold factor of %s", usual: "3",
	advice: ": write how many times as much an event costs when cold",
	value:  func(q *Quota) *int64 { return unlessZero(&q.ColdFactor) },
	write:  func(n int64) string { return fmt.Sprint(float64(n) / 1000) },
	check: func(q *Quota) error {
		if q.WarmUp == 0 {
			return errors.New("cold_factor means nothing without warm_up: write warm_up as well, such as 10s, or leave out cold_factor")
		}
		return nil
	},
	normalize: func(q *Quota) {
		if q.WarmUp > 0 && q.ColdFactor == 0 {
			q.ColdFactor = 3000
		}
	},
}

// smoothNumbers are what a smooth limit is computed with beside its quota. All
// fractions are in lowest terms.
type smoothNumbers struct {
	most  int64 // the largest charge; its debt is 71 years or more
	speed int64 // how much of what was used comes back in a µs

	// With warm_up W, its cold factor F, and X = W·(1+F)/(5+F), the µs of idleness
	// from which on an event costs more than usual:
	idle, idlePer   int64  // what one event is worth in idleness: window/events·2(1+F)/(5+F)
	enough          int64  // so many events use up W
	threshold       Micros // X
	unit            Micros // a power of ten µs in which products of what is above X are exact
	span            int64  // W-X, in units
	steep, steepPer int64  // F-1
	ratio, ratioPer int64  // what a µs of idleness costs in time: (5+F)/(2(1+F))
}

// smoothBound prepares the numbers. It returns an error if products wouldn't be exact.
func smoothBound(l *Limit) error {
	n := &l.smooth
	n.most = floorDiv(exact/4*min(l.events, 4), l.window)
	if l.WarmUp == 0 {
		n.speed = l.events
		return productBound(l)
	}
	n.speed = 1
	n.ratio, n.ratioPer = lowest(5000+l.ColdFactor, 2*(1000+l.ColdFactor))
	n.steep, n.steepPer = lowest(l.ColdFactor-1000, 1000)
	part, whole := lowest(1000+l.ColdFactor, 5000+l.ColdFactor)
	if n.most == 0 || l.window > exact/n.ratioPer || l.events > exact/n.ratio || l.WarmUp > exact/whole {
		return errBound
	}
	n.idle, n.idlePer = lowest(l.window*n.ratioPer, l.events*n.ratio)
	n.threshold = floorDiv(l.WarmUp*part, whole)
	if l.WarmUp > (exact-n.idle)/n.idlePer {
		return errBound
	}
	n.enough = ceilDiv(l.WarmUp*n.idlePer, n.idle)
	above := l.WarmUp - n.threshold
	for n.unit = 1; ; n.unit *= 10 {
		n.span = max(floorDiv(above, n.unit), 1)
		if y := ceilDiv(above, n.unit); max(n.steep, 1) <= exact/y/y {
			break
		}
	}
	slowest := above/n.steepPer*n.steep + above // in all, more than what using W costs
	if n.span > exact/2/n.steepPer || slowest > longest/4/n.ratio {
		return errBound
	}
	return nil
}

func smoothNumbersOf(l *Limit) []int64 {
	n := &l.smooth
	numbers := []int64{l.events, l.window, l.Burst, n.most, n.speed, l.withheld, l.linger(), l.WarmUp}
	if l.WarmUp > 0 {
		numbers = append(numbers,
			n.idle, n.idlePer, n.enough, n.threshold, n.unit, n.span, n.steep, n.steepPer, n.ratio, n.ratioPer)
	}
	return numbers
}

func smoothUntouched(l *Limit, s *State) Micros {
	return s.B + ceilDiv(s.A, l.smooth.speed) + l.linger()
}

func smoothDecide(l *Limit, s *State, now Micros, cost int64) verdict {
	used, free, eff, dirty := smoothRest(l, s.A, s.B, s.C, now)
	fits, retry := Forever, int64(0)
	if free > eff {
		fits = 0
		if cost > 0 {
			retry = free - now
		}
	}
	return verdict{fits: fits, retry: retry, a: used, b: free, c: eff, d: dirty}
}

func smoothCommit(l *Limit, s *State, now Micros, charge int64, o outcome, v verdict) (charged, a, b, remaining int64, more, reset Micros) {
	events, window, burst, most, speed, warmUp := l.events, l.window, l.Burst, l.smooth.most, l.smooth.speed, l.WarmUp
	used, free, eff, dirty := v.a, v.b, v.c, v.d
	charge = min(charge, most)
	if warmUp > 0 {
		cost := int64(0)
		used, cost = smoothWarm(l, used, charge)
		free += cost
		if free <= eff {
			remaining = 1
		}
	} else {
		spent := max(min(charge*window, burst*window-used), 0)
		used += spent
		free += ceilDiv(charge*window-spent, events)
		saved := max(floorDiv(burst*window-used, window), 0)
		if free <= eff {
			remaining = saved + 1
		}
		if used > 0 {
			more = ceilDiv((saved+1)*window-(burst*window-used), events) + eff - now
		}
	}
	if free > eff {
		more = free - now
	}
	reset = free - now + ceilDiv(used, speed)
	if charge > 0 || dirty == 1 && o != peek {
		s.A, s.B, s.C = used, free, eff
	}
	return charge, used, free, remaining, more, reset
}

// smoothRefund makes the wait shorter by what the events cost when warm, and saves up
// again what that leaves of them. What has warmed up stays warm.
func smoothRefund(l *Limit, s *State, now Micros, a, b, n int64) {
	events, window, most, warmUp := l.events, l.window, l.smooth.most, l.WarmUp
	if s.B == 0 {
		return
	}
	used, free, eff, _ := smoothRest(l, s.A, s.B, s.C, now)
	left, then, _, _ := smoothRest(l, a, b, 0, now)
	back := min(n, most) * window
	if free > eff && (free > then || free == then && used != left) {
		return // others wait behind it
	}
	sooner := min(ceilDiv(back, events), free-eff) // the whole charge, if nothing was saved up
	free -= sooner
	if warmUp == 0 {
		used = max(used-min(max(back-sooner*events, 0), left), 0)
	}
	s.A, s.B, s.C = used, free, eff
}

// smoothRest returns how much is still used, the next free instant (now, if it has passed),
// and eff, which is the later of now and the last charge. dirty is as in tokenBucketRefill.
func smoothRest(l *Limit, used int64, free, at, now Micros) (left int64, next, eff Micros, dirty int64) {
	window, speed, withheld := l.window, l.smooth.speed, l.withheld
	if free == 0 && withheld > 0 {
		return withheld * window, now, now, 1
	}
	if at-now > stepBack {
		free, at, dirty = free-at+now, now, 1
	}
	if now > free {
		used = max(used-min(now-free, ceilDiv(used, speed))*speed, 0)
		free = now
	}
	return used, free, max(now, at), dirty
}

// smoothWarm returns how far from cold a budget is after a charge, and what the
// charge costs in time: so much per event, and more for the idleness above the
// threshold that is used up, along a line that ends at cold.
func smoothWarm(l *Limit, used, charge int64) (warmer int64, cost Micros) {
	events, window, warmUp, n := l.events, l.window, l.WarmUp, &l.smooth
	idle := warmUp - used
	dx := min(ceilDiv(min(charge, n.enough)*n.idle, n.idlePer), idle)
	y1 := ceilDiv(max(idle-n.threshold, 0), n.unit)
	y0 := ceilDiv(max(idle-dx-n.threshold, 0), n.unit)
	extra := ceilDiv(n.steep*(y1-y0)*(y1+y0), n.steepPer*2*n.span) * n.unit
	return used + dx, ceilDiv(charge*window, events) + ceilDiv(extra*n.ratio, n.ratioPer)
}

func lowest(a, b int64) (int64, int64) {
	d := max(gcd(a, b), 1)
	return a / d, b / d
}
