package algorithms

import _ "embed"

//go:embed token_bucket.lua
var tokenBucketLua string

// token_bucket: a bucket of burst tokens, refilled continuously with events
// tokens per window; a request takes its cost. At most burst + T·events/window
// events pass in any span T.
//
// State: A is what was used of the bucket, in events×µs (a token is worth
// window, a µs refills events), B is when it was last charged. Counting in that
// unit needs no division, so nothing is ever rounded.
func init() {
	register(&Algorithm{
		Name: "token_bucket", Burst: true,
		lua:    tokenBucketLua,
		args:   func(l *Limit) []int64 { return []int64{l.events, l.window, l.Burst} },
		bound:  productBound,
		decide: tokenBucketDecide,
		commit: tokenBucketCommit,
	})
}

func tokenBucketDecide(l *Limit, s *State, now Micros, cost int64) verdict {
	events, window, burst := l.events, l.window, l.Burst
	used, at := s.A, s.B
	eff := max(now, at)
	used = max(used-min(eff-at, ceilDiv(used, events))*events, 0)
	free := burst*window - used
	fits := max(floorDiv(free, window), 0)
	retry := int64(0)
	if cost > burst {
		retry = Forever
	} else if cost > fits {
		retry = ceilDiv(cost*window-free, events) + eff - now
	}
	return verdict{fits: fits, retry: retry, a: used, b: eff}
}

func tokenBucketCommit(l *Limit, s *State, now Micros, charge int64, v verdict) (charged, remaining int64, more, reset Micros) {
	events, window, burst := l.events, l.window, l.Burst
	used, eff := v.a, v.b
	most := max(used, 2*burst*window)
	charge = min(charge, ceilDiv(most-used, window))
	used = min(used+charge*window, most)
	free := burst*window - used
	remaining = max(floorDiv(free, window), 0)
	if used > 0 {
		more = ceilDiv((remaining+1)*window-free, events) + eff - now
		reset = ceilDiv(used, events) + eff - now
	}
	if charge > 0 {
		s.A, s.B = used, eff
	}
	return charge, remaining, more, reset
}
