package algorithms

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
)

//go:embed bucket.lua
var bucketLua string

// token_bucket is a bucket of burst tokens. events tokens per window flow in, continuously. A
// request takes its cost. It promises that at most burst + T·events/window events pass in any
// span T. With initial, a bucket without a state holds that many tokens at first.
//
// For example, with 10 events per second and burst 10, 4 events remain after 6 at once, 5 after 100 ms, and the bucket
// is full after 600 ms.
//
// gcra, the generic cell rate algorithm (ITU-T I.371), decides the same. Its theoretical arrival time is the instant from
// which on the bucket is full.
//
// leaky_bucket is a counter, its level. A request raises the level by its cost, and passes if the level is then at most
// burst. At the end of each window, events leak out at once, in one drip. It promises that at most
// burst + ⌈T/window⌉·events events pass in any span T. The first charge to an empty bucket begins the first window.
//
// For example, 5 events leak per second, with burst 10. After 7 events at once the level is 7: 3 events remain, and more
// after 1 second. Then the level is 2. After 2 seconds it is 0.
//
// All of them are one arithmetic. It counts the use in parts of events. unit parts are an event, and each tick gives back
// rate of them. A tick of a leaky_bucket is a window, which gives back events, so its unit is 1. A tick of the others is a
// µs. With events and window in lowest terms, a µs gives back events parts if window of them are an event. For example,
// 10 events per second are 1 per 100,000 µs: after 6 events 600,000 parts are used. So nothing is ever rounded.
//
// State: A is the use at B, as far as the burst has room for it. B is the last tick, in µs. C is the debt: the use above
// that. D is 4 times the events of the limit that counts them, plus 1 if the debt is owed. A debt is owed if corrections
// charged it. Otherwise later requests were charged in advance, or denied requests in mode uniform.
//
// A limit with other events counts A and C in its own parts. If A is more than its burst, then a larger limit has allowed
// more, and to the smaller one the bucket was full at B. The larger one must not forget what a smaller one charges. So
// the smaller one leaves A as the larger one counts it, and D has 2 more. C is then its credit: how far its own bucket is
// from full. All smaller limits share the credit. If it has a debt instead, C is the debt, and D has 3 more.
//
// B is the newest instant, and never ahead of the charge that wrote it: debt is in C. If the
// clock is more than a second behind B, B becomes now, and A and C stay.
func init() {
	bucket := &Algorithm{
		Name: "token_bucket", Burst: true, Options: []*Option{initial},
		lua: partsLua + bucketLua, luaName: "bucket",
		numbers: func(l *Limit) []int64 {
			p := l.parts
			return []int64{p.rate, p.unit, l.Burst, l.withheld, l.retention(), p.tick, p.most, l.Events, l.Window}
		},
		bound: func(l *Limit) error {
			l.parts = parts{l.events, l.window, 1, min(exact-l.events-l.window, min(l.events, 2)*maxSpan)}
			return productBound(l)
		},
		refillIn:  steadyRefill,
		maxDelay:  productDelay,
		keepUntil: bucketKeepUntil,
		decide:    bucketDecide,
		commit:    bucketCommit,
		balance:   2,
		outlook:   bucketOutlook,
		refund:    bucketRefund,
	}
	register(bucket)
	gcra := *bucket
	gcra.Name, gcra.Options = "gcra", nil
	register(&gcra)
	leaky := gcra
	leaky.Name = "leaky_bucket"
	leaky.bound = leakyBucketBound
	leaky.refillIn = func(l *Limit) Micros { return ceilDiv(l.Burst, l.Events) * l.Window }
	leaky.maxDelay = windowsDelay
	register(&leaky)
}

// leakyBucketBound returns an error if the largest debt takes too long to leak.
func leakyBucketBound(l *Limit) error {
	ticks := maxSpan / l.Window
	if ceilDiv(2*l.Burst, l.Events) > ticks {
		return errBound
	}
	l.parts = parts{l.Events, 1, l.Window, min(ticks, (exact-1)/l.Events-1) * l.Events}
	return nil
}

var initial = &Option{
	Name: "initial", Example: "0", write: writeCount, phrase: " beginning with %s",
	value: func(q *Quota) *int64 { return q.Initial },
	check: func(q *Quota) error {
		if q.WarmUp != 0 {
			return errors.New("initial and warm_up don't go together: with warm_up a new budget is cold, and holds nothing to begin with")
		}
		if burst := cmp.Or(q.Burst, q.Events); *q.Initial < 0 || *q.Initial > burst {
			return fmt.Errorf("initial must be from 0 to %d, the burst, not %d: write how many events a new budget holds", burst, *q.Initial)
		}
		return nil
	},
	normalize: func(q *Quota) {
		if q.Initial != nil && *q.Initial == q.Burst {
			q.Initial = nil
		}
	},
}

// bucketUse returns the use at the last tick. owed is 1 if its debt is owed, and larger is 1 if a larger limit counts it.
func bucketUse(l *Limit, s *State) (used, owed, larger int64) {
	unit, most := l.parts.unit, l.parts.most
	full, admitted, rest, events, kind := l.Burst*unit, s.A, s.C, s.D/4, s.D%4
	if events != l.Events && events > 0 {
		_, other := partsOf(l, events)
		admitted = convertParts(admitted, other, unit, full+1)
		if kind == 2 { // rounded down
			rest = full - convertParts(max(convertParts(full, unit, other, exact/2)-rest, 0), other, unit, full)
		} else {
			rest = convertParts(rest, other, unit, most-full)
		}
	}
	if admitted > full || kind >= 2 && events > l.Events {
		admitted, larger = full, min(events, 1)
	}
	if kind == 2 {
		admitted, rest = admitted-larger*min(rest, admitted), 0
	}
	if kind == 1 {
		owed = 1
	}
	return min(admitted+rest, most), owed, larger
}

func bucketKeepUntil(l *Limit, s *State) Micros {
	used, _, larger := bucketUse(l, s)
	ticks := ceilDiv(used, l.parts.rate)
	if larger == 1 {
		rate, _ := partsOf(l, s.D/4)
		ticks = max(ticks, min(ceilDiv(bucketAll(s), rate), maxSpan/l.parts.tick))
	}
	return s.B + ticks*l.parts.tick + l.retention()
}

// bucketAll returns the use as the limit counts it that D names.
func bucketAll(s *State) int64 {
	if s.D%4 == 2 {
		return min(s.A, exact-1)
	}
	return min(s.A+s.C, exact-1)
}

// bucketRefill returns the use at eff, given the use at the last tick. eff is the latest tick, or now if nothing is used. dirty is 1 if
// the state must be saved even for a denied request. This is so if a new bucket begins to refill, or the clock has stepped
// back.
func bucketRefill(l *Limit, used int64, lastTick, now Micros) (usedNow int64, eff Micros, dirty int64) {
	rate, tick, unit, withheld := l.parts.rate, l.parts.tick, l.parts.unit, l.withheld
	if lastTick == 0 && withheld > 0 {
		return withheld * unit, now, 1
	}
	if lastTick-now > stepBack {
		lastTick, dirty = now, 1
	}
	eff = lastTick
	if elapsed := now - lastTick; elapsed > 0 {
		if ticks := floorDiv(elapsed, tick); ticks < ceilDiv(used, rate) {
			used, eff = used-ticks*rate, lastTick+ticks*tick
		} else {
			used, eff = 0, now
		}
	}
	return used, eff, dirty
}

// bucketSave saves a use that changes by delta. It returns the use as it is read from then on, which can be rounded up.
func bucketSave(l *Limit, s *State, used int64, eff Micros, owed, larger, delta int64) (usedNow int64) {
	unit, full := l.parts.unit, l.Burst*l.parts.unit
	debt := max(used-full, 0)
	if larger == 1 {
		all, other := countForLarger(l, bucketAll(s), s.D/4, floorDiv(max(eff-s.B, 0), l.parts.tick), delta)
		if all > convertParts(used, unit, other, exact-1) {
			kind, rest := int64(2), max(convertParts(full, unit, other, exact/2)-convertParts(used, unit, other, exact/2), 0)
			if debt > 0 {
				kind, rest = 3, convertParts(debt, unit, other, all)
				all -= rest
			}
			s.A, s.B, s.C, s.D = all, eff, rest, s.D-s.D%4+kind
			usedNow, _, _ = bucketUse(l, s)
			return usedNow
		}
	}
	s.A, s.B, s.C, s.D = used-debt, eff, debt, 4*l.Events+min(owed, debt)
	return used
}

func bucketDecide(l *Limit, s *State, now Micros, cost int64) room {
	rate, tick, unit, burst := l.parts.rate, l.parts.tick, l.parts.unit, l.Burst
	used, owed, larger := bucketUse(l, s)
	used, eff, dirty := bucketRefill(l, used, s.B, now)
	free := burst*unit - used
	fits := floorDiv(free, unit)
	retry := int64(0)
	if cost > burst {
		retry = Forever
	} else if cost > max(fits, 0) {
		retry = ceilDiv(cost*unit-free, rate)*tick + eff - now
	}
	return room{fits: fits, retry: retry, a: used, b: eff, c: owed + 2*larger, d: dirty}
}

func bucketCommit(l *Limit, s *State, now Micros, charge int64, o outcome, r room) Balance {
	unit, full, most := l.parts.unit, l.Burst*l.parts.unit, l.parts.most
	used, eff, owed, larger, dirty := r.a, r.b, r.c%2, floorDiv(r.c, 2), r.d
	before := used
	if o == denied {
		maxUsed := max(used, 2*full)
		charge = min(charge, ceilDiv(maxUsed-used, unit))
		used = min(used+charge*unit, maxUsed)
	} else {
		charge = min(charge, floorDiv(most-used, unit))
		used += charge * unit
	}
	if charge > 0 && o != settled {
		owed = 0
	} else if charge > 0 && before <= full {
		owed = 1
	}
	if charge > 0 || dirty == 1 && o != peek {
		used = bucketSave(l, s, used, eff, owed, larger, used-before)
	}
	return Balance{Charged: charge, A: used, B: eff}
}

func bucketOutlook(l *Limit, b Balance, now Micros) (remaining int64, more, reset Micros) {
	rate, tick, unit := l.parts.rate, l.parts.tick, l.parts.unit
	used, eff := b.A, b.B
	free := l.Burst*unit - used
	remaining = max(floorDiv(free, unit), 0)
	if used > 0 {
		more = ceilDiv((remaining+1)*unit-free, rate)*tick + eff - now
		reset = eff + ceilDiv(used, rate)*tick - now
	}
	return remaining, more, reset
}

func bucketRefund(l *Limit, s *State, now Micros, r Receipt, n int64) {
	receiptUsed, receiptAt := r.A, r.B
	unit, full, lastTick := l.parts.unit, l.Burst*l.parts.unit, s.B
	if lastTick == 0 {
		return
	}
	used, owed, larger := bucketUse(l, s)
	used, eff, _ := bucketRefill(l, used, lastTick, now)
	refundable, _, _ := bucketRefill(l, receiptUsed, receiptAt, now)
	if refundable == 0 || owed == 0 && used > full && used > refundable {
		return // all of it has refilled, or later requests wait behind this charge
	}
	if n < ceilDiv(refundable, unit) {
		refundable = n * unit
	}
	refundable = min(refundable, used)
	if s.D%4 == 2 && larger == 0 && s.D/4 == l.Events { // smaller limits keep their credit, which is as of the last tick
		s.A -= refundable
		return
	}
	bucketSave(l, s, used-refundable, eff, owed, larger, -refundable)
}
