package propose

import (
	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/agenda"
)

// limitReplay decides the requests of one key after the other, as a store does that has only this limit.
type limitReplay struct {
	limit   *algorithms.Limit
	maxWait algorithms.Micros
	state   algorithms.State
	expires algorithms.Micros // of the state, if it is kept after it is full
	settle  agenda.Agenda[settlement]

	requests [1]algorithms.ZoneRequest
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

// reset begins the next key.
func (r *limitReplay) reset() {
	r.state, r.expires = algorithms.State{}, 0
	r.settle.Clear()
}

// denies decides a request. Requests come in the order of their instants.
func (r *limitReplay) denies(e request) bool {
	for r.settle.Len() > 0 && r.settle.First() <= e.at {
		r.correct()
	}
	allowed := r.take(e.at, e.mode, e.cost, r.waitOf(e))
	if d := &r.checks[0].Decision; e.settled && allowed {
		r.settle.Add(e.end+d.Wait, settlement{
			charged: d.Charged, receipt: d.Receipt,
			refund: max(e.cost-e.trueCost, 0), further: max(e.trueCost-e.cost, 0),
		})
	}
	return !allowed
}

// waitOf returns the longest delay of a request. Only requests in mode binary can be delayed.
func (r *limitReplay) waitOf(e request) algorithms.Micros {
	if e.mode != algorithms.Binary {
		return 0
	}
	return r.maxWait
}

func (r *limitReplay) take(at algorithms.Micros, mode algorithms.Mode, cost int64, maxWait algorithms.Micros) bool {
	r.expire(at)
	before := r.state
	r.checks[0] = algorithms.Check{Limit: r.limit, State: &r.state}
	r.requests[0] = algorithms.ZoneRequest{Mode: mode, Cost: cost, MaxWait: maxWait, Checks: r.checks[:]}
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
	at, s := r.settle.Pop()
	if s.refund > 0 && s.charged > 0 && !(r.limit.KeptAfterReset() && r.expires <= at) {
		algorithms.Refund(r.limit, &r.state, at, s.receipt, min(s.refund, s.charged))
		if r.limit.KeptAfterReset() {
			r.expires = r.limit.Expires(&r.state)
		}
	}
	if s.further > 0 {
		r.take(at, algorithms.Settle, s.further, 0)
	}
}
