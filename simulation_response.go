package ratelimit

import (
	"cmp"
	"net/http"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/accesslog"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
)

// wasDenied reports whether a rate limit denied a request when it was logged. Then the status is 429, or the
// status of a zone together with Retry-After, or that of a denied gRPC call. The response has no field
// Via, which Caddy adds to the responses of upstreams.
func (s *simulation) wasDenied(logged *accesslog.Request) bool {
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

// settle reads the true costs of a request from its logged response. It is called after the handlers behind
// the rate_limit handler have run. A response of a rate limit tells no true cost.
func (w *loggedWalk) settle(state *requestState, visited *simulate.HandlerVisit) {
	s := state.newSettlement(w.request.Context(), w.replacer)
	if s == nil || w.room.visit.WasDenied {
		return
	}
	logged := w.logged
	before := w.response.header
	w.response.header = logged.ResponseHeader // {http.response.header.*} has it
	defer func() { w.response.header = before }()
	took := time.Duration(w.room.visit.End-w.room.visit.Start) * time.Microsecond
	s.body = &responseBody{length: logged.Size, took: took, switched: logged.Method == http.MethodConnect}
	s.readHeader(cmp.Or(logged.Status, http.StatusOK), logged.ResponseHeader)
	for i := range state.entries {
		e := &state.entries[i]
		if e.settles() && !e.settled && e.zone.costNeedsBody {
			s.readTrueCost(e, true)
		}
		visited.Zones[i].Settled, visited.Zones[i].TrueCost = e.settled, e.trueCost
	}
}
