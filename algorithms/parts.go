package algorithms

import _ "embed"

//go:embed parts.lua
var partsLua string

// parts says how a limit counts in parts of events. unit parts are an event, and each tick gives back rate of them. most is the
// largest use that is counted exactly.
//
// The parts depend on the events of a limit. So a state says which events it was counted with, and a limit with other
// events converts it.
type parts struct {
	rate, unit int64
	tick       Micros
	most       int64
}

// partsOf returns the rate and the unit of a limit with the same window and other events.
func partsOf(l *Limit, events int64) (rate, unit int64) {
	if l.parts.tick == l.Window { // of a leaky_bucket
		return events, 1
	}
	d := gcd(events, l.Window)
	return events / d, l.Window / d
}

// convertParts returns n parts of events as parts of another unit, rounded up, and at most most. No product in it is above
// 2^53: if need be, the parts of an event are counted more coarsely.
func convertParts(n, from, to, most int64) int64 {
	whole := floorDiv(n, from)
	rest := n - whole*from
	if from == to {
		return min(n, most)
	} else if whole > floorDiv(most, to) {
		return most
	}
	coarse := ceilDiv(max(rest, 1), floorDiv(exact/2, to))
	part := ceilDiv(ceilDiv(rest, coarse)*to, floorDiv(from, coarse))
	return min(whole*to+min(part, to), most)
}

// countForLarger returns the use that a larger limit has counted with other events, after so many ticks and a change by delta. Only
// delta is in the parts of l. It returns also the unit of the larger limit.
func countForLarger(l *Limit, used, events, ticks, delta int64) (usedNow, unit int64) {
	rate, unit := partsOf(l, events)
	used = max(used-min(ticks, ceilDiv(used, rate))*rate, 0)
	if delta < 0 {
		used = max(used-convertParts(-delta, l.parts.unit, unit, exact/2), 0)
	} else {
		used += min(convertParts(delta, l.parts.unit, unit, exact/2), exact-1-used)
	}
	return used, unit
}
