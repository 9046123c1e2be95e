package algorithms

import _ "embed"

//go:embed leaky_bucket.lua
var leakyBucketLua string

// leaky_bucket: a counter that a request raises by its cost and that leaks events
// at the end of every window, in one drip; a request passes while the counter
// stays within burst. The grid of drips begins with the first charge to an empty
// bucket. At most burst + ⌈T/window⌉·events events pass in any span T.
//
// State: A is the instant of the last drip, B the level since. A level of 0 is
// the same as no bucket.
//
// A is the newest instant, and never ahead of the charge that wrote it: debt is in B.
// If the clock is more than a second behind A, A becomes now, and B stays.
func init() {
	register(&Algorithm{
		Name: "leaky_bucket", Burst: true,
		lua:          leakyBucketLua,
		numbers:      func(l *Limit) []int64 { return []int64{l.Events, l.Window, l.Burst} },
		bound:        leakyBucketBound,
		longestDelay: windowsDelay,
		queued: func(l *Limit, drip Micros, level int64) (Micros, int64) {
			return drip + level/l.Events*l.Window, level % l.Events
		},
		untouched: leakyBucketUntouched,
		decide:    leakyBucketDecide,
		commit:    leakyBucketCommit,
		refund:    leakyBucketRefund,
	})
}

// leakyBucketBound returns an error if the largest debt takes too long to leak.
func leakyBucketBound(l *Limit) error {
	if drips := ceilDiv(2*l.Burst, l.Events); drips > longest/l.Window {
		return errBound
	}
	return nil
}

func leakyBucketUntouched(l *Limit, s *State) Micros { return s.A + ceilDiv(s.B, l.Events)*l.Window }

func leakyBucketDecide(l *Limit, s *State, now Micros, cost int64) verdict {
	events, window, burst := l.Events, l.Window, l.Burst
	drip, level, dirty := leakyBucketLeak(l, s.A, s.B, now)
	fits := max(burst-level, 0)
	retry := int64(0)
	if cost > burst {
		retry = Forever
	} else if cost > fits {
		retry = drip + ceilDiv(level+cost-burst, events)*window - now
	}
	return verdict{fits: fits, retry: retry, a: drip, b: level, d: dirty}
}

func leakyBucketCommit(l *Limit, s *State, now Micros, charge int64, o outcome, v verdict) (charged, a, b, remaining int64, more, reset Micros) {
	events, window, burst := l.Events, l.Window, l.Burst
	drip, level, dirty := v.a, v.b, v.d
	if o == refused {
		charge = max(min(charge, 2*burst-level), 0)
	}
	level += charge
	remaining = max(burst-level, 0)
	if level > 0 {
		more = drip + ceilDiv(level-burst+remaining+1, events)*window - now
		reset = drip + ceilDiv(level, events)*window - now
	}
	if charge > 0 || dirty == 1 && o != peek {
		s.A, s.B = drip, level
	}
	return charge, drip, level, remaining, more, reset
}

func leakyBucketRefund(l *Limit, s *State, now Micros, a, b, n int64) {
	burst := l.Burst
	drip, level, _ := leakyBucketLeak(l, s.A, s.B, now)
	_, left, _ := leakyBucketLeak(l, a, b, now)
	if level > burst && level > left {
		return // others wait behind it
	}
	if n = min(n, left); n > 0 && level > 0 {
		s.A, s.B = drip, max(level-n, 0)
	}
}

// leakyBucketLeak returns the last drip until now, and the rest of the level at an earlier
// drip. dirty is 1 if the clock has stepped back and the state must be saved.
func leakyBucketLeak(l *Limit, drip Micros, level int64, now Micros) (last Micros, left, dirty int64) {
	events, window := l.Events, l.Window
	if drip-now > stepBack {
		drip, dirty = now, 1
	}
	drips := min(floorDiv(max(now, drip)-drip, window), ceilDiv(level, events))
	drip, level = drip+drips*window, max(level-drips*events, 0)
	if level == 0 {
		drip = now
	}
	return drip, level, dirty
}
