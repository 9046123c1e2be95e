package algorithms

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
)

//go:embed token_bucket.lua
var tokenBucketLua string

// token_bucket: a bucket of burst tokens, refilled continuously with events
// tokens per window; a request takes its cost. At most burst + T·events/window
// events pass in any span T. With initial, a bucket that nothing is known of
// holds so many.
//
// State: A is what was used of the bucket, in events×µs (a token is worth
// window, a µs refills events), B is when it was last charged. Counting in that
// unit needs no division, so nothing is ever rounded.
//
// B is the newest instant, and never ahead of the charge that wrote it: debt is in A.
// If the clock is more than a second behind B, B becomes now, and A stays.
func init() {
	register(&Algorithm{
		Name: "token_bucket", Burst: true, Options: []*Option{initial},
		lua: tokenBucketLua,
		numbers: func(l *Limit) []int64 {
			return []int64{l.events, l.window, l.Burst, l.withheld, l.linger()}
		},
		bound:        productBound,
		longestDelay: productDelay,
		queued:       func(l *Limit, used int64, at Micros) (Micros, int64) { return at + used/l.events, used % l.events },
		untouched:    tokenBucketUntouched,
		decide:       tokenBucketDecide,
		commit:       tokenBucketCommit,
		refund:       tokenBucketRefund,
	})
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

func tokenBucketUntouched(l *Limit, s *State) Micros {
	return s.B + ceilDiv(s.A, l.events) + l.linger()
}

func tokenBucketDecide(l *Limit, s *State, now Micros, cost int64) verdict {
	events, window, burst := l.events, l.window, l.Burst
	used, eff, dirty := tokenBucketRefill(l, s.A, s.B, now)
	free := burst*window - used
	fits := max(floorDiv(free, window), 0)
	retry := int64(0)
	if cost > burst {
		retry = Forever
	} else if cost > fits {
		retry = ceilDiv(cost*window-free, events) + eff - now
	}
	return verdict{fits: fits, retry: retry, a: used, b: eff, d: dirty}
}

func tokenBucketCommit(l *Limit, s *State, now Micros, charge int64, o outcome, v verdict) (charged, a, b, remaining int64, more, reset Micros) {
	events, window, burst := l.events, l.window, l.Burst
	used, eff, dirty := v.a, v.b, v.d
	if o == refused {
		most := max(used, 2*burst*window)
		charge = min(charge, ceilDiv(most-used, window))
		used = min(used+charge*window, most)
	} else {
		used += charge * window
	}
	free := burst*window - used
	remaining = max(floorDiv(free, window), 0)
	if used > 0 {
		more = ceilDiv((remaining+1)*window-free, events) + eff - now
		reset = ceilDiv(used, events) + eff - now
	}
	if charge > 0 || dirty == 1 && o != peek {
		s.A, s.B = used, eff
	}
	return charge, used, eff, remaining, more, reset
}

func tokenBucketRefund(l *Limit, s *State, now Micros, a, b, n int64) {
	window, burst := l.window, l.Burst
	if s.B == 0 {
		return
	}
	used, eff, _ := tokenBucketRefill(l, s.A, s.B, now)
	left, _, _ := tokenBucketRefill(l, a, b, now)
	if used > burst*window && used > left {
		return // others wait behind it
	}
	if n < ceilDiv(left, window) {
		left = n * window
	}
	s.A, s.B = max(used-left, 0), eff
}

// tokenBucketRefill returns how much is still used at eff, given the use at an earlier
// instant. dirty is 1 if even a denied request must save it: the bucket is new and begins
// to refill, or the clock has stepped back.
func tokenBucketRefill(l *Limit, used int64, at, now Micros) (left int64, eff Micros, dirty int64) {
	events, window, withheld := l.events, l.window, l.withheld
	if at == 0 && withheld > 0 {
		return withheld * window, now, 1
	}
	if at-now > stepBack {
		at, dirty = now, 1
	}
	eff = max(now, at)
	used = max(used-min(eff-at, ceilDiv(used, events))*events, 0)
	return used, eff, dirty
}
