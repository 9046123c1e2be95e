package algorithms

import "fmt"

// Legacy returns the leaky_bucket for a limit of max calls per duration, with min_interval between
// steps of recovery; 0 is none. The bucket holds max. It leaks in drips of whole milliseconds, one
// for each min_interval, or else one for each call. One bucket can't respect all three numbers
// exactly, so they are rounded.
//
// min_interval is not a least gap between calls: max of them may come at once.
func Legacy(calls int64, duration, minInterval Micros) (Quota, error) {
	const ms, most = 1000, 1 << 30
	switch {
	case calls <= 0 || calls > most:
		return Quota{}, fmt.Errorf("max must be from 1 to %d, not %d: write how many calls one duration allows", int64(most), calls)
	case duration < ms || duration > ms*most:
		return Quota{}, fmt.Errorf("duration must be from 1ms to %s, not %s", describeDuration(ms*most), describeDuration(duration))
	case minInterval != 0 && minInterval < ms || minInterval > ms*most:
		return Quota{}, fmt.Errorf("min_interval must be from 1ms to %s, not %s", describeDuration(ms*most), describeDuration(minInterval))
	}
	d := roundDiv(duration, ms)
	interval := max(roundDiv(minInterval, ms), 1)
	if minInterval == 0 {
		interval = max(roundDiv(d, calls), 1)
	}
	drip := max(roundDiv(calls*interval, d), 1)
	rate := max(roundDiv(d*drip, calls), 1)
	return Quota{Algorithm: "leaky_bucket", Events: drip, Window: rate * ms, Burst: calls}, nil
}

// roundDiv divides and rounds to the nearest whole number, halves up.
func roundDiv(a, b int64) int64 { return floorDiv(2*a+b, 2*b) }
