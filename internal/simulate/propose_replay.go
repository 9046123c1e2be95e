package simulate

import (
	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// replay decides the demand of one key after the other by one limit.
type replay interface {
	reset() // begins the next key
	// denies decides a request. Requests come in the order of their instants.
	denies(e *demand) bool
}

// limitReplay decides as a store does that has only this limit.
type limitReplay struct {
	limit   *algorithms.Limit
	maxWait algorithms.Micros
	state   algorithms.State
	expires algorithms.Micros // of the state, if it is kept after it is full
	settle  endHeap[settlement]

	requests [1]algorithms.Request
	checks   [1]algorithms.Check
}

// settlement corrects a charge when the response ends.
type settlement struct {
	charged         int64
	receipt         algorithms.Receipt
	refund, further int64
}

func newLimitReplay(l *algorithms.Limit, maxWait algorithms.Micros) *limitReplay {
	return &limitReplay{limit: l, maxWait: maxWait}
}

func (r *limitReplay) reset() {
	r.state, r.expires = algorithms.State{}, 0
	r.settle = r.settle[:0]
}

func (r *limitReplay) denies(e *demand) bool {
	for len(r.settle) > 0 && r.settle[0].end <= e.at {
		r.correct()
	}
	allowed := r.take(e.at, e.mode, e.cost, r.waitOf(e))
	if d := &r.checks[0].Decision; e.settled && allowed {
		r.settle.push(e.end+d.Wait, settlement{
			charged: d.Charged, receipt: d.Receipt,
			refund: max(e.cost-e.trueCost, 0), further: max(e.trueCost-e.cost, 0),
		})
	}
	return !allowed
}

// waitOf returns the longest delay of a request. Only requests in mode binary can be delayed.
func (r *limitReplay) waitOf(e *demand) algorithms.Micros {
	if e.mode != algorithms.Binary {
		return 0
	}
	return r.maxWait
}

func (r *limitReplay) take(at algorithms.Micros, mode algorithms.Mode, cost int64, maxWait algorithms.Micros) bool {
	r.expire(at)
	before := r.state
	r.checks[0] = algorithms.Check{Limit: r.limit, State: &r.state}
	r.requests[0] = algorithms.Request{Mode: mode, Cost: cost, MaxWait: maxWait, Checks: r.checks[:]}
	allowed := algorithms.Take(r.requests[:], at)
	if r.limit.KeptAfterReset() && (r.checks[0].Decision.Charged > 0 || r.state != before) {
		r.expires = r.limit.Expires(&r.state)
	}
	return allowed
}

// expire drops the state, if a store would begin with the limit's initial again.
func (r *limitReplay) expire(at algorithms.Micros) {
	if r.limit.KeptAfterReset() && r.expires <= at {
		r.state, r.expires = algorithms.State{}, 0
	}
}

// correct makes the earliest settlement.
func (r *limitReplay) correct() {
	at, s := r.settle.pop()
	if s.refund > 0 && s.charged > 0 && !(r.limit.KeptAfterReset() && r.expires <= at) {
		algorithms.Refund(r.limit, &r.state, at, s.receipt, min(s.refund, s.charged))
		if r.limit.KeptAfterReset() {
			r.expires = r.limit.Expires(&r.state)
		}
	}
	if s.further > 0 {
		r.take(at, algorithms.Force, s.further, 0)
	}
}

// slotsReplay decides by the number of requests in flight. A request without a free slot waits for up
// to maxWait. Requests wait in line, so a slot goes to the request that has waited longest.
type slotsReplay struct {
	slots   int
	maxWait algorithms.Micros
	inUse   endHeap[struct{}]
}

func (r *slotsReplay) reset() { r.inUse = r.inUse[:0] }

func (r *slotsReplay) denies(e *demand) bool {
	wait := algorithms.Micros(0)
	switch {
	case len(r.inUse) < r.slots:
	case r.inUse[0].end > e.at+r.maxWait:
		return true
	default:
		free, _ := r.inUse.pop()
		wait = max(free-e.at, 0)
	}
	r.inUse.push(e.end+wait, struct{}{})
	return false
}

// endHeap is a binary heap of things that end. The first element ends first. Of things that end at
// the same instant, an arbitrary one is first, but always the same one.
type endHeap[T any] []ending[T]

type ending[T any] struct {
	end   algorithms.Micros
	thing T
}

func (h *endHeap[T]) push(end algorithms.Micros, thing T) {
	*h = append(*h, ending[T]{end, thing})
	s := *h
	for at := len(s) - 1; at > 0; {
		parent := (at - 1) / 2
		if s[parent].end <= s[at].end {
			break
		}
		s[parent], s[at] = s[at], s[parent]
		at = parent
	}
}

func (h *endHeap[T]) pop() (end algorithms.Micros, thing T) {
	s := *h
	first, last := s[0], len(s)-1
	s[0] = s[last]
	s = s[:last]
	for at := 0; ; {
		least := at
		for child := 2*at + 1; child <= 2*at+2 && child < last; child++ {
			if s[child].end < s[least].end {
				least = child
			}
		}
		if least == at {
			break
		}
		s[least], s[at] = s[at], s[least]
		at = least
	}
	*h = s
	return first.end, first.thing
}
