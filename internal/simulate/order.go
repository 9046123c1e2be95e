package simulate

import (
	"cmp"
	"slices"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// maxUnsorted is how many requests of the log can end while another request runs. If more end, the simulation
// decides that request too late. A log has requests in the order in which their responses ended, but limits
// decide them in the order in which they began.
const maxUnsorted = 50_000

// logged is a request of the log, in each of the configurations.
type logged struct {
	at     algorithms.Micros // when it is decided
	number int64             // in the log
	visits [2]*Visit         // the second is nil without a second configuration
}

func newLogged(visits [2]*Visit) logged {
	return logged{at: visits[0].Arrival(), visits: visits}
}

// order passes requests on in the order of their decisions. A request can come too late to be sorted. Then it
// is decided at the instant of the last request that was passed on.
type order struct {
	room   int // at least so many requests wait before one is passed on
	passOn func(visits *[2]*Visit)

	waiting []logged
	edge    algorithms.Micros // the instant of the last request that was passed on
	added   int64
	late    int64
}

// add adds the next request of the log.
func (o *order) add(l logged) {
	if o.added > int64(len(o.waiting)) && l.at < o.edge { // something was passed on
		o.late++
		l.at = o.edge
	}
	l.number = o.added
	o.added++
	for _, v := range l.visits {
		if v != nil {
			v.postpone(l.at)
		}
	}
	if o.waiting = append(o.waiting, l); len(o.waiting) >= 2*o.room {
		o.pass(len(o.waiting) - o.room)
	}
}

// finish passes on all that wait.
func (o *order) finish() { o.pass(len(o.waiting)) }

// pass passes on the first n requests.
func (o *order) pass(n int) {
	slices.SortFunc(o.waiting, func(a, b logged) int {
		if a.at == b.at {
			return cmp.Compare(a.number, b.number)
		}
		return cmp.Compare(a.at, b.at)
	})
	for i := range o.waiting[:n] {
		o.edge = o.waiting[i].at
		o.passOn(&o.waiting[i].visits)
	}
	kept := copy(o.waiting, o.waiting[n:])
	clear(o.waiting[kept:]) // so that their memory is free
	o.waiting = o.waiting[:kept]
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
