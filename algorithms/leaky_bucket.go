package algorithms

import _ "embed"

//go:embed leaky_bucket.lua
var leakyBucketLua string

// leaky_bucket is a counter, its level. A request raises the level by its cost, and passes if the
// level is then at most burst. At the end of each window, events leak out at once, in one drip.
// It promises that at most burst + ⌈T/window⌉·events events pass in any span T.
//
// The first charge to an empty bucket begins the first window. Every instant below is lastDrip
// plus a whole number of windows, so nothing is rounded.
//
// For example, 5 events leak per second, with burst 10. After 7 events at once the level is 7: 3
// events remain, and more after 1 second. Then the level is 2. After 2 seconds it is 0.
//
// State: A is the last drip, in µs. B is the level since then, in events. A level of 0 is the
// same as no state.
//
// A is the newest instant, and never ahead of the charge that wrote it: debt is in B. If the
// clock is more than a second behind A, A becomes now, and B stays.
func init() {
	register(&Algorithm{
		Name: "leaky_bucket", Burst: true,
		lua:       leakyBucketLua,
		numbers:   func(l *Limit) []int64 { return []int64{l.Events, l.Window, l.Burst} },
		bound:     leakyBucketBound,
		refillIn:  func(l *Limit) Micros { return ceilDiv(l.Burst, l.Events) * l.Window },
		maxDelay:  windowsDelay,
		keepUntil: leakyBucketKeepUntil,
		decide:    leakyBucketDecide,
		commit:    leakyBucketCommit,
		balance:   2,
		outlook:   leakyBucketOutlook,
		refund:    leakyBucketRefund,
	})
}

// leakyBucketBound returns an error if the largest debt takes too long to leak.
func leakyBucketBound(l *Limit) error {
	if drips := ceilDiv(2*l.Burst, l.Events); drips > maxSpan/l.Window {
		return errBound
	}
	return nil
}

func leakyBucketKeepUntil(l *Limit, s *State) Micros { return s.A + ceilDiv(s.B, l.Events)*l.Window }

// leakyBucketLeak returns the last drip until now and the level since then, given an earlier drip
// and its level. dirty is 1 if the clock has stepped back and the state must be saved.
func leakyBucketLeak(l *Limit, lastDrip Micros, level int64, now Micros) (latestDrip Micros, levelNow, dirty int64) {
	events, window := l.Events, l.Window
	if lastDrip-now > stepBack {
		lastDrip, dirty = now, 1
	}
	drips := min(floorDiv(max(now, lastDrip)-lastDrip, window), ceilDiv(level, events))
	lastDrip, level = lastDrip+drips*window, max(level-drips*events, 0)
	if level == 0 {
		lastDrip = now
	}
	return lastDrip, level, dirty
}

func leakyBucketDecide(l *Limit, s *State, now Micros, cost int64) room {
	events, window, burst := l.Events, l.Window, l.Burst
	lastDrip, level, dirty := leakyBucketLeak(l, s.A, s.B, now)
	fits := max(burst-level, 0)
	retry := int64(0)
	if cost > burst {
		retry = Forever
	} else if cost > fits {
		retry = lastDrip + ceilDiv(level+cost-burst, events)*window - now
	}
	return room{fits: fits, retry: retry, a: lastDrip, b: level, d: dirty}
}

func leakyBucketCommit(l *Limit, s *State, now Micros, charge int64, o outcome, r room) Balance {
	burst := l.Burst
	lastDrip, level, dirty := r.a, r.b, r.d
	if o == denied {
		charge = max(min(charge, 2*burst-level), 0)
	}
	level += charge
	if charge > 0 || dirty == 1 && o != peek {
		s.A, s.B = lastDrip, level
	}
	return Balance{Charged: charge, A: lastDrip, B: level}
}

func leakyBucketOutlook(l *Limit, b Balance, now Micros) (remaining int64, more, reset Micros) {
	events, window, burst := l.Events, l.Window, l.Burst
	lastDrip, level := b.A, b.B
	remaining = max(burst-level, 0)
	if level > 0 {
		more = lastDrip + ceilDiv(level-burst+remaining+1, events)*window - now
		reset = lastDrip + ceilDiv(level, events)*window - now
	}
	return remaining, more, reset
}

func leakyBucketRefund(l *Limit, s *State, now Micros, r Receipt, n int64) {
	receiptDrip, receiptLevel := r.A, r.B
	burst := l.Burst
	lastDrip, level, _ := leakyBucketLeak(l, s.A, s.B, now)
	_, refundable, _ := leakyBucketLeak(l, receiptDrip, receiptLevel, now)
	if level > burst && level > refundable {
		return // later requests wait behind this charge
	}
	n = min(n, refundable)
	if n > 0 && level > 0 {
		level = max(level-n, 0)
		s.A, s.B = lastDrip, level
	}
}
