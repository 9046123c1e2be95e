package limiter

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/bodies"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/cost"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// SettlePolicy is the compiled option settle of a zone.
type SettlePolicy struct {
	match     *caddyhttp.ResponseMatcher // nil: all responses are charged
	Cost      *cost.Sum                  // nil: the charge
	NeedsBody bool                       // cost depends on the body of the response
	NeedsJSON bool                       // on a value in that body

	chargedField string // in the access log: see logCharges
}

// NewSettlePolicy returns the policy of a zone with a name. match selects the responses that are charged; nil stands for
// all.
func NewSettlePolicy(zone string, match *caddyhttp.ResponseMatcher, cost *cost.Sum) *SettlePolicy {
	p := &SettlePolicy{match: match, Cost: cost, chargedField: chargedFieldPrefix + zone}
	names := p.Placeholders()
	p.NeedsBody, p.NeedsJSON = slices.ContainsFunc(names, bodies.IsOfResponse), slices.ContainsFunc(names, bodies.IsResponseJSON)
	return p
}

// Placeholders returns the placeholders in the cost.
func (p *SettlePolicy) Placeholders() []string {
	if p == nil || p.Cost == nil {
		return nil
	}
	return p.Cost.Placeholders()
}

// Refunds reports whether the whole charge of a request is given back because of the header of its response.
func (p *SettlePolicy) Refunds(status int, header http.Header) bool {
	return p.match != nil && !p.match.Match(status, header)
}

// Settlement reads the true cost of a request from its response.
type Settlement struct {
	state       *State
	client      context.Context // of the request: canceled when the client disconnects
	unknown     bool            // the client has disconnected, and the next handler has returned without a response
	repl        *caddy.Replacer
	Body        *bodies.ResponseBody // nil if no true cost depends on it
	status      int                  // 0: the header is not sent yet
	hasTrailers bool                 // the header announces trailers
	ended       bool                 // the true cost is read, or will not be known
}

// NewSettlement returns nil if no zone of the request settles. client is the context of the request.
func (state *State) NewSettlement(client context.Context, repl *caddy.Replacer) *Settlement {
	if !slices.ContainsFunc(state.Entries, func(e Entry) bool { return e.Settles() }) {
		return nil
	}
	return &Settlement{state: state, client: client, repl: repl}
}

// Settles reports whether the zone's charges depend on the response. A shadow that denies the
// request doesn't settle: without shadow mode there would be no response.
func (e *Entry) Settles() bool {
	return e.Zone.Settle != nil && len(e.Limits) > 0 && !(e.Shadow && e.Denies())
}

// beginBody prepares for the body of the response, just before the request is passed on. It returns nil
// if no true cost depends on the body.
func (s *Settlement) beginBody(r *http.Request) *bodies.ResponseBody {
	needsBody, needsJSON := false, false
	for i := range s.state.Entries {
		if e := &s.state.Entries[i]; e.Settles() {
			needsBody, needsJSON = needsBody || e.Zone.Settle.NeedsBody, needsJSON || e.Zone.Settle.NeedsJSON
		}
	}
	if !needsBody {
		return nil
	}
	var values *bodies.ResponseValues
	if needsJSON {
		values = &s.state.Limiter.ResponseValues
	}
	s.Body = bodies.NewResponseBody(r, values)
	return s.Body
}

// maxReservation is how long a charge counts as reserved at most.
const maxReservation = time.Minute

// limitReservations ends what the request has reserved after the shortest window of the zone's limits, or maxReservation.
// From then on the charge counts as used, so a ban counts denials of the key. A key that always has another request in
// flight can put the ban off, but not the limit.
func (state *State) limitReservations() {
	for i := range state.Entries {
		e := &state.Entries[i]
		if e.Outcome.Reserved.Added == 0 {
			continue
		}
		lasts := maxReservation
		for _, l := range e.Limits {
			lasts = min(lasts, time.Duration(l.Limit.Window)*time.Microsecond)
		}
		r := *e.ZoneRequest // a copy, because the request may end at the same time
		r.Outcome.Decisions = nil
		l, charged := state.Limiter, state.reporter(e, e.Limits)
		e.reservation = time.AfterFunc(lasts, func() {
			released := []store.Correction{{Request: &r, Settled: true, Charged: charged}}
			l.Store.Correct(released, l.ReportCorrectionFailure)
			l.SlotLines.Wake(released)
		})
	}
}

// ReadHeader settles the request by the header of the response, which is about to be sent. If
// there are trailers, or if the true cost depends on the body, readEnd reads it later.
func (s *Settlement) ReadHeader(status int, header http.Header) {
	s.status = status
	s.hasTrailers = len(header["Trailer"]) > 0
	s.Body.ReadHeader(status, header)
	// Clients could guess passwords for free if leaving before the response gave the charge back.
	unknown := s.unknown || status == statusClientClosedRequest
	for i := range s.state.Entries {
		e := &s.state.Entries[i]
		switch {
		case !e.Settles():
		case e.Zone.Settle.match != nil && unknown:
			e.TrueCost, e.Settled, e.final = e.Cost, true, true
		case e.Zone.Settle.Refunds(status, header):
			e.TrueCost, e.Settled, e.final = 0, true, true
		case !e.Zone.Settle.NeedsBody:
			if s.ReadTrueCost(e); e.Settled || !s.hasTrailers || e.Zone.Settle.Cost == nil {
				e.final = true
				s.reportTrueCost(e)
			}
		}
	}
}

// ReadTrueCost reads the true cost of the request in one zone.
func (s *Settlement) ReadTrueCost(e *Entry) {
	if p := e.Zone.Settle; p.Cost != nil {
		e.TrueCost, e.Settled = p.Cost.Of(func(placeholder string) (value string) {
			if !bodies.IsOfResponse(placeholder[1:]) {
				return s.repl.ReplaceAll(placeholder, "")
			}
			value, _ = s.repl.ReplaceFunc(placeholder, s.Body.Replace)
			return value
		})
	}
}

// reportTrueCost warns about a zone if its responses give no cost.
func (s *Settlement) reportTrueCost(e *Entry) {
	if !s.state.Explained {
		e.Zone.warnOfMissingCost(e.Settled)
	}
}

// readEnd settles what the header didn't settle, at the end of the body. Later calls do nothing.
func (s *Settlement) readEnd() {
	if s.ended {
		return
	}
	s.ended = true
	s.Body.End()
	for i := range s.state.Entries {
		e := &s.state.Entries[i]
		if e.Settles() && !e.Settled && (s.hasTrailers || e.Zone.Settle.NeedsBody) {
			s.ReadTrueCost(e)
			s.reportTrueCost(e)
		}
	}
}

// finish settles the request after the next handler, whatever it did. If the next handler
// panicked, returned is false; otherwise err is its error.
func (s *Settlement) finish(header http.Header, returned bool, err error) {
	if s.status == 0 { // an outer handler will write the response, usually with this status
		status := http.StatusOK
		if !returned || err != nil {
			status = http.StatusInternalServerError
		}
		if known, is := errors.AsType[caddyhttp.HandlerError](err); is && known.StatusCode != 0 {
			status = known.StatusCode
		}
		s.unknown = errors.Is(s.client.Err(), context.Canceled)
		s.ReadHeader(status, header)
	}
	s.readEnd()
}
