package simulate

import (
	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
)

// Decided is a request whose outcome is known.
type Decided struct {
	*Visit
	// Came is when the request came to the first handler. Decided are in the order of the instants of
	// their decisions. These differ from Came for requests that waited for a slot.
	Came  algorithms.Micros
	Zones []DecidedZone // that limit the request, in the order in which it met them
	// Denied reports whether a zone that is not in shadow mode denied the request.
	Denied bool
	// Delay is how long the request waited, for slots and for limits together.
	Delay algorithms.Micros
}

// DecidedZone is the outcome of a request in a zone.
type DecidedZone struct {
	*ZoneVisit
	Key    string
	Shadow bool  // the zone doesn't deny requests of this key
	Cost   int64 // the charge before the response, in events
	Mode   algorithms.Mode
	Denied bool // also in shadow mode
	Reason Reason
	// Reached reports whether the zone decided. It is false if an earlier handler, or another zone of the
	// handler, certainly denied the request.
	Reached bool
	// Delay is how long the zone delays the request; 0 in shadow mode.
	Delay algorithms.Micros
}

// Outcome returns the outcome of the request in the zone.
func (z *DecidedZone) Outcome() report.Outcome {
	switch {
	case !z.Denied:
		return report.Allowed
	case z.Shadow:
		return report.ShadowDenied
	}
	return report.Denied
}

// Reason is why a zone denies a request.
type Reason uint8

// The reasons.
const (
	ByLimit Reason = iota
	ByConcurrency
	ByBan
)

// Observer sees the requests as they are decided. It must not keep the Decided.
type Observer interface {
	Observe(d *Decided)
}
