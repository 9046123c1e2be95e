package limiter

import (
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
)

// chargedField is the beginning of the names of the fields that logCharges writes. Package accesslog reads them.
const chargedField = "rate_limit_charged_"

// reserved returns how many events the zone's limits were charged when the request came. If no limit was
// asked, ok is false.
func (e *Entry) reserved() (events int64, ok bool) {
	d, _ := e.tightestWithoutSlots()
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

// chargedIn returns how many events the request is charged in a zone, by all limiters that have the zone. It is a
// number, so that logs have a number, or empty if no limit was asked. It is called on the outermost state.
func (state *State) chargedIn(zone string) any {
	sum, asked := int64(0), false
	for s := state.innermost; s != nil; s = s.outer {
		for i := range s.Entries {
			if e := &s.Entries[i]; e.Zone.Name == zone && s.Decided {
				events, ok := e.charged()
				sum, asked = sum+events, asked || ok
			}
		}
	}
	if !asked {
		return ""
	}
	return sum
}

// logCharges adds the charges in zones with settle to the line of the access log. It is deferred: if a response
// breaks off, its handler panics, and log_append adds nothing.
func (state *State) logCharges(r *http.Request, repl *caddy.Replacer) {
	for i := range state.Entries {
		z := state.Entries[i].Zone
		if z.Settle == nil {
			continue
		}
		value, _ := repl.Get(PlaceholderPrefix + "." + z.Name + ".charged")
		charged, ok := value.(int64)
		if line, logs := r.Context().Value(caddyhttp.ExtraLogFieldsCtxKey).(*caddyhttp.ExtraLogFields); ok && logs {
			line.Set(zap.Int64(chargedField+z.Name, charged))
		}
	}
}
