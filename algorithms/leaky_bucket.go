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
func init() {
	register(&Algorithm{
		Name: "leaky_bucket", Burst: true,
		lua:    leakyBucketLua,
		args:   func(l *Limit) []int64 { return []int64{l.Events, l.Window, l.Burst} },
		bound:  leakyBucketBound,
		decide: leakyBucketDecide,
		commit: leakyBucketCommit,
	})
}

// leakyBucketBound refuses a limit whose largest debt takes too long to leak.
func leakyBucketBound(l *Limit) error {
	if drips := ceilDiv(2*l.Burst, l.Events); drips > longest/l.Window {
		return errBound
	}
	return nil
}

func leakyBucketDecide(l *Limit, s *State, now Micros, cost int64) verdict {
	events, window, burst := l.Events, l.Window, l.Burst
	drip, level := s.A, s.B
	drips := min(floorDiv(max(now, drip)-drip, window), ceilDiv(level, events))
	drip, level = drip+drips*window, max(level-drips*events, 0)
	if level == 0 {
		drip = now
	}
	fits := max(burst-level, 0)
	retry := int64(0)
	if cost > burst {
		retry = Forever
	} else if cost > fits {
		retry = drip + ceilDiv(level+cost-burst, events)*window - now
	}
	return verdict{fits: fits, retry: retry, a: drip, b: level}
}

func leakyBucketCommit(l *Limit, s *State, now Micros, charge int64, v verdict) (charged, remaining int64, more, reset Micros) {
	events, window, burst := l.Events, l.Window, l.Burst
	drip, level := v.a, v.b
	charge = max(min(charge, 2*burst-level), 0)
	level += charge
	remaining = max(burst-level, 0)
	if level > 0 {
		more = drip + ceilDiv(level-burst+remaining+1, events)*window - now
		reset = drip + ceilDiv(level, events)*window - now
	}
	if charge > 0 {
		s.A, s.B = drip, level
	}
	return charge, remaining, more, reset
}
