package configuration

import (
	"cmp"
	"net/http"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/accesslog"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/bodies"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/cost"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
)

// wasDenied reports whether a rate limit denied a request when it was logged. Then the status is 429, or the
// status of a zone together with Retry-After, or that of a denied gRPC call. The response has no field
// Via, which Caddy adds to the responses of upstreams.
func (s *configuration) wasDenied(logged *accesslog.Request) bool {
	header := logged.ResponseHeader
	switch {
	case len(header["Via"]) > 0:
		return false
	case logged.Status == http.StatusTooManyRequests:
		return true
	case s.statuses[logged.Status]:
		return len(header["Retry-After"]) > 0
	}
	const resourceExhausted = "8"
	grpc := header["Grpc-Status"]
	return logged.Status == http.StatusOK && len(grpc) == 1 && grpc[0] == resourceExhausted && logged.Size == 0
}

// settle reads the true costs of a request from its logged response, and for how long it bans keys. It is called after the
// handlers that follow the rate_limit handler have run. A response of a rate limit tells nothing.
func (w *loggedWalk) settle(state *limiter.State, visited *simulate.HandlerVisit) {
	if w.visited.WasDenied {
		return
	}
	logged := w.logged
	for i := range state.Entries {
		visited.Zones[i].Hold = state.Entries[i].Zone.Hold.SpanOf(logged.Status, logged.ResponseHeader, time.UnixMicro(w.visited.End))
	}
	s := state.NewSettlement(w.request.Context(), w.replacer)
	if s == nil {
		return
	}
	before := w.response.Fields
	w.response.Fields = logged.ResponseHeader // {http.response.header.*} has it
	defer func() { w.response.Fields = before }()
	took := time.Duration(w.visited.End-w.visited.Start) * time.Microsecond
	s.Body = bodies.NewLoggedResponseBody(logged.Method, logged.Size, took)
	s.ReadHeader(cmp.Or(logged.Status, http.StatusOK), logged.ResponseHeader)
	for i := range state.Entries {
		e := &state.Entries[i]
		if e.Settles() && !e.Settled && e.Zone.Settle.NeedsBody {
			s.ReadTrueCost(e)
		}
		if charged, ok := w.chargedIn(e); ok && e.Settles() {
			// The log can be from a time without max.
			e.TrueCost, e.Settled = min(charged, e.Zone.MaxChargedCost()), true
		}
		visited.Zones[i].Settled, visited.Zones[i].TrueCost = e.Settled, e.TrueCost
	}
}

// chargedIn returns the charge of the request in the zone of an entry, if the log has it. A charge of 0 can stand
// for a denial, also by a shadow. In other modes than binary, the charge isn't the cost.
func (w *loggedWalk) chargedIn(e *limiter.Entry) (events int64, ok bool) {
	events = min(w.logged.Charged[e.Zone.Name], cost.Max)
	return events, events > 0 && e.Mode == algorithms.Binary && len(e.Limits) > 0
}
