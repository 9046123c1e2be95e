package algorithms

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
)

//go:embed token_bucket.lua
var tokenBucketLua string

// token_bucket is a bucket of burst tokens. events tokens per window flow in, continuously. A
// request takes its cost. It promises that at most burst + T·events/window events pass in any
// span T. With initial, a bucket without a state holds that many tokens at first.
//
// The state counts used tokens in events×µs. One token is window of this unit, and each µs gives
// back events of it. So nothing is divided, and nothing is ever rounded.
//
// For example, 10 events per second are 1 event per 100,000 µs in lowest terms. With burst 10,
// after 6 events at once, 600,000 of 1,000,000 are used. Then 4 events remain, 5 after 100,000 µs,
// and the bucket is full after 600,000 µs.
//
// State: A is the use in events×µs at B. B is the last charge, in µs.
//
// B is the newest instant, and never ahead of the charge that wrote it: debt is in A. If the
// clock is more than a second behind B, B becomes now, and A stays.
//
// gcra, the generic cell rate algorithm (ITU-T I.371), decides the same. Its theoretical arrival time is A/events ahead
// of B: the instant from which on the bucket is full. So it is another name for this arithmetic.
func init() {
	bucket := &Algorithm{
		Name: "token_bucket", Burst: true, Options: []*Option{initial},
		lua: tokenBucketLua, luaName: "token_bucket",
		numbers: func(l *Limit) []int64 {
			return []int64{l.events, l.window, l.Burst, l.withheld, l.retention()}
		},
		bound:     productBound,
		refillIn:  steadyRefill,
		maxDelay:  productDelay,
		keepUntil: tokenBucketKeepUntil,
		decide:    tokenBucketDecide,
		commit:    tokenBucketCommit,
		balance:   2,
		outlook:   tokenBucketOutlook,
		refund:    tokenBucketRefund,
	}
	register(bucket)
	gcra := *bucket
	gcra.Name, gcra.Options = "gcra", nil
	register(&gcra)
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

func tokenBucketKeepUntil(l *Limit, s *State) Micros {
	return s.B + ceilDiv(s.A, l.events) + l.retention()
}

// tokenBucketRefill returns the use at eff, given the use at the last charge. eff is the later of
// now and the last charge. dirty is 1 if the state must be saved even for a denied request. This is
// so if a new bucket begins to refill, or the clock has stepped back.
func tokenBucketRefill(l *Limit, used int64, lastCharge, now Micros) (usedNow int64, eff Micros, dirty int64) {
	events, window, withheld := l.events, l.window, l.withheld
	if lastCharge == 0 && withheld > 0 {
		return withheld * window, now, 1
	}
	if lastCharge-now > stepBack {
		lastCharge, dirty = now, 1
	}
	eff = max(now, lastCharge)
	used = max(used-min(eff-lastCharge, ceilDiv(used, events))*events, 0)
	return used, eff, dirty
}

func tokenBucketDecide(l *Limit, s *State, now Micros, cost int64) room {
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
	return room{fits: fits, retry: retry, a: used, b: eff, d: dirty}
}

func tokenBucketCommit(l *Limit, s *State, now Micros, charge int64, o outcome, r room) Balance {
	window, burst := l.window, l.Burst
	used, eff, dirty := r.a, r.b, r.d
	if o == denied {
		maxUsed := max(used, 2*burst*window)
		charge = min(charge, ceilDiv(maxUsed-used, window))
		used = min(used+charge*window, maxUsed)
	} else {
		used += charge * window
	}
	if charge > 0 || dirty == 1 && o != peek {
		s.A, s.B = used, eff
	}
	return Balance{Charged: charge, A: used, B: eff}
}

func tokenBucketOutlook(l *Limit, b Balance, now Micros) (remaining int64, more, reset Micros) {
	events, window, burst := l.events, l.window, l.Burst
	used, eff := b.A, b.B
	free := burst*window - used
	remaining = max(floorDiv(free, window), 0)
	if used > 0 {
		more = ceilDiv((remaining+1)*window-free, events) + eff - now
		reset = eff + ceilDiv(used, events) - now
	}
	return remaining, more, reset
}

func tokenBucketRefund(l *Limit, s *State, now Micros, r Receipt, n int64) {
	receiptUsed, receiptAt := r.A, r.B
	window, burst := l.window, l.Burst
	used, lastCharge := s.A, s.B
	if lastCharge == 0 {
		return
	}
	used, eff, _ := tokenBucketRefill(l, used, lastCharge, now)
	refundable, _, _ := tokenBucketRefill(l, receiptUsed, receiptAt, now)
	if used > burst*window && used > refundable {
		return // later requests wait behind this charge
	}
	if n < ceilDiv(refundable, window) {
		refundable = n * window
	}
	used = max(used-refundable, 0)
	s.A, s.B = used, eff
}
