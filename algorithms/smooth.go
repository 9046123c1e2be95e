package algorithms

import (
	_ "embed"
	"errors"
	"fmt"
)

//go:embed smooth.lua
var smoothLua string

// smooth is Guava's SmoothRateLimiter. A request passes when the next free instant has come,
// whatever its cost. Its cost moves the next free instant, so the next request waits for it.
// Without warm_up, up to burst unused events are saved up, and spent before the next free instant
// moves. smooth promises that in any span T all requests but the last cost at most
// burst + T·events/window events.
//
// For example, 10 events per second have 2 events saved up. A request of cost 5 passes, spends
// these 2, and moves the next free instant 300 ms ahead. A request 100 ms later is denied, with a
// retry after 200 ms.
//
// With warm_up, the budget grows cold while it is idle, and is cold after warm_up. A cold event
// costs cold_factor times window/events. While the budget warms up, events cost less and less,
// down to window/events. smooth then promises that all requests but the last cost at most
// T·events/window events. smoothWarm has the formula.
//
// State: A is the use. Without warm_up it is the part of burst that is spent, in parts of events as
// in a token_bucket. With warm_up it is the distance from cold, in µs of idleness. B is the next
// free instant, and C the last charge, in µs. D is 4 times the events of the limit that counts A, plus 2 if another limit
// wrote it. The zero State is a budget that was idle for long, unless initial says otherwise.
//
// If A is more than the burst of a limit, then a larger limit has spent more. The smaller one has nothing saved up then,
// and adds what it spends to A.
//
// C is the newest instant; the next free instant is ahead of it by the cost of the last
// requests. If the clock is more than a second behind C, C becomes now, and the next free
// instant moves with it.
func init() {
	register(&Algorithm{
		Name: "smooth", Burst: true, Options: []*Option{warmUp, coldFactor, initial}, BinaryOnly: true,
		lua:       partsLua + smoothLua,
		numbers:   smoothNumbersOf,
		bound:     smoothBound,
		refillIn:  steadyRefill, // with warm_up the time at the full rate
		maxDelay:  func(*Limit) Micros { return maxSpan / 4 },
		keepUntil: smoothKeepUntil,
		decide:    smoothDecide,
		commit:    smoothCommit,
		balance:   3,
		outlook:   smoothOutlook,
		refund:    smoothRefund,
	})
}

var warmUp = &Option{
	Name: "warm_up", Example: "10s", min: 1, max: unbounded, write: describeDuration, phrase: " warming up for %s",
	advice: ": write how long it takes from cold to the full rate, such as 10s",
	value:  func(q *Quota) *int64 { return unlessZero(&q.WarmUp) },
	check: func(q *Quota) error {
		if q.Burst != 0 {
			return fmt.Errorf("burst and warm_up don't go together: leave out %d; with warm_up, "+
				"events saved up while idle are spent slowly, never at once", q.Burst)
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
			return errors.New("cold_factor needs warm_up: write warm_up as well, such as 10s, or leave out cold_factor")
		}
		return nil
	},
	normalize: func(q *Quota) {
		if q.WarmUp > 0 && q.ColdFactor == 0 {
			q.ColdFactor = 3000
		}
	},
}

// smoothNumbers are the numbers of a smooth limit that follow from its quota. W is warm_up and F
// is cold_factor. X = W·(1+F)/(5+F) is the threshold: idleness above X makes an event cost more
// than window/events. All fractions are in lowest terms.
type smoothNumbers struct {
	maxCharge  int64 // the largest charge; its debt is 71 years or more
	refillRate int64 // each µs gives back this much of the use

	// The rest is for limits with warm_up.

	idleNum, idleDen   int64  // the idleness one event uses up: window/events·2(1+F)/(5+F)
	eventsToWarm       int64  // this number of events uses up W
	threshold          Micros // X
	unit               Micros // the least power of ten µs in which products of idleness above X are exact
	coldSpan           int64  // W−X, in units
	steepNum, steepDen int64  // F−1
	ratioNum, ratioDen int64  // the time that a µs of idleness costs: (5+F)/(2(1+F))
}

// smoothBound prepares the numbers. It returns an error if products wouldn't be exact.
func smoothBound(l *Limit) error {
	n := &l.smooth
	l.parts = parts{l.events, l.window, 1, exact}
	n.maxCharge = floorDiv(exact/4*min(l.events, 4), l.window)
	if l.WarmUp == 0 {
		n.refillRate = l.events
		return productBound(l)
	}
	n.refillRate = 1
	if n.maxCharge == 0 || !n.warmUp(l) {
		return errBound
	}
	return nil
}

// warmUp prepares the numbers of a limit with warm_up, and reports whether all products are exact.
func (n *smoothNumbers) warmUp(l *Limit) bool {
	n.ratioNum, n.ratioDen = lowest(5000+l.ColdFactor, 2*(1000+l.ColdFactor))
	n.steepNum, n.steepDen = lowest(l.ColdFactor-1000, 1000)
	part, whole := lowest(1000+l.ColdFactor, 5000+l.ColdFactor)
	if l.window > exact/n.ratioDen || l.events > exact/n.ratioNum || l.WarmUp > exact/whole {
		return false
	}
	n.idleNum, n.idleDen = lowest(l.window*n.ratioDen, l.events*n.ratioNum)
	n.threshold = floorDiv(l.WarmUp*part, whole)
	if l.WarmUp > (exact-n.idleNum)/n.idleDen {
		return false
	}
	n.eventsToWarm = ceilDiv(l.WarmUp*n.idleDen, n.idleNum)
	above := l.WarmUp - n.threshold
	n.unit = 1
	for y := above; max(n.steepNum, 1) > exact/y/y; y = ceilDiv(above, n.unit) {
		n.unit *= 10
	}
	n.coldSpan = max(floorDiv(above, n.unit), 1)
	slowest := above/n.steepDen*n.steepNum + above // in all, more than what using W costs
	return n.coldSpan <= exact/2/n.steepDen && slowest <= maxSpan/4/n.ratioNum
}

func smoothNumbersOf(l *Limit) []int64 {
	n := &l.smooth
	numbers := []int64{l.events, l.window, l.Burst, n.maxCharge, n.refillRate, l.withheld, l.retention(), l.WarmUp, l.Events, l.Window}
	if l.WarmUp > 0 {
		numbers = append(numbers,
			n.idleNum, n.idleDen, n.eventsToWarm, n.threshold, n.unit, n.coldSpan, n.steepNum, n.steepDen, n.ratioNum, n.ratioDen)
	}
	return numbers
}

func lowest(a, b int64) (int64, int64) {
	d := max(gcd(a, b), 1)
	return a / d, b / d
}

// smoothUse returns the use in the limit's own parts. larger is 1 if a larger limit has spent more than the burst.
func smoothUse(l *Limit, used, countedBy int64) (own, larger int64) {
	full, events := l.Burst*l.window, countedBy/4
	if l.WarmUp > 0 {
		return used, 0
	}
	if events != l.Events && events > 0 {
		_, other := partsOf(l, events)
		used = convertParts(used, other, l.window, full+1)
	}
	if used > full {
		return full, min(events, 1)
	}
	return used, 0
}

func smoothKeepUntil(l *Limit, s *State) Micros {
	used, larger := smoothUse(l, s.A, s.D)
	refill := ceilDiv(used, l.smooth.refillRate)
	if larger == 1 {
		rate, _ := partsOf(l, s.D/4)
		refill = max(refill, min(ceilDiv(s.A, rate), maxSpan))
	}
	return s.B + refill + l.retention()
}

// smoothSave saves a use that changes by delta, and returns it as it is read from then on. See [bucketSave].
func smoothSave(l *Limit, s *State, now Micros, used int64, nextFree, eff Micros, larger, delta int64) (usedNow int64) {
	if larger == 1 {
		all, other := countForLarger(l, s.A, s.D/4, max(now-s.B, 0), delta)
		if ceilDiv(all, other) > l.Burst {
			s.A, s.B, s.C, s.D = all, nextFree, eff, s.D-s.D%4+2
			return l.Burst * l.window
		}
	}
	s.A, s.B, s.C, s.D = used, nextFree, eff, 4*l.Events
	return used
}

// smoothRefill returns how much is still used, and the next free instant (now, if it has passed).
// eff is the later of now and the last charge. dirty is as of bucketRefill.
func smoothRefill(l *Limit, used int64, nextFree, lastCharge, now Micros) (usedNow int64, nextFreeNow, eff Micros, dirty int64) {
	window, refillRate, withheld := l.window, l.smooth.refillRate, l.withheld
	if nextFree == 0 && withheld > 0 {
		return withheld * window, now, now, 1
	}
	if lastCharge-now > stepBack {
		nextFree, lastCharge, dirty = nextFree-lastCharge+now, now, 1
	}
	if now > nextFree {
		used = max(used-min(now-nextFree, ceilDiv(used, refillRate))*refillRate, 0)
		nextFree = now
	} else if nextFree > max(now, lastCharge) && l.WarmUp == 0 {
		used = l.Burst * window // also of a limit that was raised
	}
	return used, nextFree, max(now, lastCharge), dirty
}

// smoothWarm returns the distance from cold after a charge, and the time that the charge costs.
//
// Each event uses up window/events · 2(1+F)/(5+F) of the idleness. Above X the cost of idleness
// rises along a line, from the usual cost at X to F times as much at W. Let y1 and y0 be the
// idleness above X before and after a charge. The extra cost of the charge is the area under this
// line between them: (F−1)·(y1−y0)·(y1+y0)/(2(W−X)) of idleness. Idleness costs (5+F)/(2(1+F)) of
// its length in time.
//
// For example, with 1 event per second, W = 10 s and F = 3, X is 5 s, and an event uses up 1 s.
// For the first event of a cold budget y1 is 5 s and y0 is 4 s, so the extra cost is
// 2·1·9/(2·5) = 1.8 s. The event costs 2.8 s, the next one 2.4 s, and from the sixth on 1 s.
func smoothWarm(l *Limit, used, charge int64) (warmer int64, cost Micros) {
	events, window, warmUp, n := l.events, l.window, l.WarmUp, &l.smooth
	idle := warmUp - used
	idleSpent := min(ceilDiv(min(charge, n.eventsToWarm)*n.idleNum, n.idleDen), idle)
	aboveBefore := ceilDiv(max(idle-n.threshold, 0), n.unit)
	aboveAfter := ceilDiv(max(idle-idleSpent-n.threshold, 0), n.unit)
	extra := ceilDiv(n.steepNum*(aboveBefore-aboveAfter)*(aboveBefore+aboveAfter), n.steepDen*2*n.coldSpan) * n.unit
	return used + idleSpent, ceilDiv(charge*window, events) + ceilDiv(extra*n.ratioNum, n.ratioDen)
}

func smoothDecide(l *Limit, s *State, now Micros, cost int64) room {
	used, larger := smoothUse(l, s.A, s.D)
	used, nextFree, eff, dirty := smoothRefill(l, used, s.B, s.C, now)
	fits, retry := Forever, int64(0)
	if nextFree > eff {
		fits = -Forever // never Reserved: a refund moves the next free instant by an unknown time
		if cost > 0 {
			retry = nextFree - now
		}
	}
	return room{fits: fits, retry: retry, a: used, b: nextFree, c: eff, d: dirty + 2*larger}
}

func smoothCommit(l *Limit, s *State, now Micros, charge int64, o outcome, r room) Balance {
	events, window, burst, maxCharge, warmUp := l.events, l.window, l.Burst, l.smooth.maxCharge, l.WarmUp
	used, nextFree, eff, dirty, larger := r.a, r.b, r.c, r.d%2, floorDiv(r.d, 2)
	before := used
	charge = min(charge, maxCharge)
	if warmUp > 0 {
		var cost Micros
		used, cost = smoothWarm(l, used, charge)
		nextFree += cost
	} else {
		spent := max(min(charge*window, burst*window-used), 0)
		used += spent
		nextFree += ceilDiv(charge*window-spent, events)
	}
	if charge > 0 || dirty == 1 && o != peek {
		used = smoothSave(l, s, now, used, nextFree, eff, larger, used-before)
	}
	return Balance{Charged: charge, A: used, B: nextFree, C: eff}
}

func smoothOutlook(l *Limit, b Balance, now Micros) (remaining int64, more, reset Micros) {
	events, window, burst, refillRate := l.events, l.window, l.Burst, l.smooth.refillRate
	used, nextFree, eff := b.A, b.B, b.C
	reset = nextFree + ceilDiv(used, refillRate) - now
	switch {
	case nextFree > eff:
		return 0, nextFree - now, reset
	case l.WarmUp > 0:
		return 1, 0, reset
	}
	free := burst*window - used
	saved := max(floorDiv(free, window), 0)
	if used > 0 {
		more = ceilDiv((saved+1)*window-free, events) + eff - now
	}
	return saved + 1, more, reset
}

// smoothRefund first moves the next free instant back, by window/events for each event. Then it
// saves up the rest of the refund again. A budget that has warmed up stays warm.
func smoothRefund(l *Limit, s *State, now Micros, r Receipt, n int64) {
	events, window, maxCharge, warmUp := l.events, l.window, l.smooth.maxCharge, l.WarmUp
	if s.B == 0 {
		return
	}
	used, larger := smoothUse(l, s.A, s.D)
	used, nextFree, eff, _ := smoothRefill(l, used, s.B, s.C, now)
	refundable, expectedNextFree, _, _ := smoothRefill(l, r.A, r.B, 0, now)
	refunded := min(n, maxCharge) * window
	if nextFree > eff && (nextFree > expectedNextFree || nextFree == expectedNextFree && used != refundable) {
		return // later requests wait behind this charge
	}
	earlier := min(ceilDiv(refunded, events), nextFree-eff) // the whole charge, if nothing was saved up
	nextFree -= earlier
	left := used
	if warmUp == 0 {
		left = max(used-min(max(refunded-earlier*events, 0), refundable), 0)
	}
	if earlier > 0 || left < used {
		smoothSave(l, s, now, left, nextFree, eff, larger, left-used)
	}
}
