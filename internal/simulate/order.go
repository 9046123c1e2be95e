package simulate

import (
	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/agenda"
)

// maxUnsorted is how many requests of the log can end while another request runs. If more end, the simulation
// decides that request too late. A log has requests in the order in which their responses ended, but limits
// decide them in the order in which they began.
const maxUnsorted = 50_000

// logged is a request of the log, in each of the configurations. The second is nil without a second configuration.
type logged [2]*Visit

// order passes requests on in the order of their decisions. A request can come too late to be sorted. Then it
// is decided at the instant of the last request that was passed on.
type order struct {
	window int // how many requests wait at least before one is passed on
	passOn func(visits logged)

	waiting agenda.Agenda[logged]
	edge    algorithms.Micros // the instant of the last request that was passed on; 0 before the first
	late    int64
}

// add adds the next request of the log.
func (o *order) add(visits logged) {
	at := visits[0].Arrival()
	if at < o.edge {
		o.late++
		at = o.edge
	}
	for _, v := range visits {
		if v != nil {
			v.postpone(at)
		}
	}
	if o.waiting.Add(at, visits); o.waiting.Len() >= 2*o.window {
		o.pass(o.waiting.Len() - o.window)
	}
}

// finish passes on all that wait.
func (o *order) finish() { o.pass(o.waiting.Len()) }

// pass passes on the first n requests.
func (o *order) pass(n int) {
	for range n {
		at, visits := o.waiting.Pop()
		o.edge = at
		o.passOn(visits)
	}
}

// postpone moves the decision to an instant, unless it is later anyway. The response doesn't end before that.
func (v *Visit) postpone(at algorithms.Micros) {
	if v.Arrival() >= at {
		return
	}
	v.Start, v.End = max(v.Start, at), max(v.End, at)
	if v.Instant != 0 {
		v.Instant = at
	}
}
