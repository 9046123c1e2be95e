package limiter

import (
	"net/http"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
)

// chargedFieldPrefix is the beginning of the names of the fields that logCharges writes. Package accesslog reads them.
const chargedFieldPrefix = "rate_limit_charged_"

// reserved returns how many events the zone's limits were charged when the request came. If no limit was
// asked, ok is false.
func (e *Entry) reserved() (events int64, ok bool) {
	d, _ := e.tightestOf(len(e.Limits))
	return d.Charged, !d.NotAsked
}

// charged returns how many events the zone's limits are charged: the true cost once it is known, and the
// reservation before, or if it never is.
func (e *Entry) charged() (events int64, ok bool) {
	if e.Settled {
		return e.TrueCost, true
	}
	return e.reserved()
}

// chargedIn returns how many events the request is charged in a zone, by all limiters that have the zone. If no limit was
// asked, ok is false. It is called on the outermost state.
func (state *State) chargedIn(zone string) (events int64, ok bool) {
	for s := state.innermost; s != nil; s = s.outer {
		for i := range s.Entries {
			if e := &s.Entries[i]; e.Zone.Name == zone && s.Decided {
				charged, asked := e.charged()
				events, ok = events+charged, ok || asked
			}
		}
	}
	return events, ok
}

// logCharges adds the charges in zones with settle to the line of the access log. It is deferred: if a response
// breaks off, its handler panics, and log_append adds nothing.
func (state *State) logCharges(r *http.Request) {
	line, logs := r.Context().Value(caddyhttp.ExtraLogFieldsCtxKey).(*caddyhttp.ExtraLogFields)
	if !logs {
		return
	}
	outermost := state.outermost()
	for i := range state.Entries {
		if z := state.Entries[i].Zone; z.Settle != nil {
			if charged, ok := outermost.chargedIn(z.Name); ok {
				line.Set(zap.Int64(z.Settle.chargedField, charged))
			}
		}
	}
}

// outermost returns the state of the outermost limiter that evaluates the request.
func (state *State) outermost() *State {
	for state.outer != nil {
		state = state.outer
	}
	return state
}
