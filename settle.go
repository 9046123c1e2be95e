package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// Settle corrects the charge of a request once its response is known. Until then the request is
// charged its cost, so that concurrent requests don't get more than remains.
type Settle struct {
	// The responses that are charged. For all other responses the whole charge is given back.
	// The matcher sees the header fields as the handlers behind this one have set them. If the client
	// leaves before the header of the response, the charge stays (default: all responses).
	Match *caddyhttp.ResponseMatcher `json:"match,omitempty"`

	// The true cost of the request, in the same form as cost of the zone. It is usually
	// {http.response.header.*}, which can also be a trailer, or a value of the response's body:
	// {http.rate_limit.response.json.*}, {http.rate_limit.response.bytes} or
	// {http.rate_limit.response.seconds}. If the true cost is higher than the charge, the difference
	// is charged as far as there is room. If it is lower, the difference is given back. Without a
	// number the charge stays (default: the charge).
	Cost Number `json:"cost,omitempty"`
}

// check checks the options together with the zone's mode and limits.
func (s *Settle) check(mode algorithms.Mode, limits []*algorithms.Limit) error {
	if s.Match == nil && s.Cost == "" {
		return errors.New("settle has neither match nor cost: write which responses are charged, such as match status 401, " +
			"or their true cost, such as cost {http.response.header.X-Tokens}")
	}
	if err := s.checkStatus(); err != nil {
		return err
	}
	if mode != algorithms.Binary {
		return fmt.Errorf("settle and mode %v don't go together: only mode binary charges exactly the cost; leave out mode", mode)
	}
	for _, l := range limits {
		if l.Algorithm().BinaryOnly && s.Cost != "" {
			return fmt.Errorf("cost of settle and %s don't go together: it can't be charged after the response; write another limit, or match alone",
				l.Algorithm().Name)
		}
	}
	return s.Cost.check("cost of settle", parseCost)
}

// checkStatus checks the status codes of match.
func (s *Settle) checkStatus() error {
	if s.Match == nil {
		return nil
	}
	for _, code := range s.Match.StatusCode {
		if (code < 1 || code > 5) && (code < 100 || code > 599) {
			return fmt.Errorf("match of settle: no response has status %d: write one from 100 to 599, or a class such as 4xx (in JSON 4)", code)
		}
	}
	return nil
}

// unmarshalSettle reads settle { match status 401 403  cost <number or placeholder> }.
func unmarshalSettle(d *caddyfile.Dispenser) (*Settle, error) {
	s := new(Settle)
	err := readBlock(d, "settle", settleOptions, func(option string) (err error) {
		if option == "cost" {
			s.Cost, err = number(d, parseCost)
			return err
		}
		if s.Match != nil {
			return errors.New("match of settle is given twice: write status and header in one block, match { ... }")
		}
		matchers := make(map[string]caddyhttp.ResponseMatcher)
		if err := caddyhttp.ParseNamedResponseMatcher(d.NewFromNextSegment(), matchers); err != nil {
			reason, _, _ := strings.Cut(err.Error(), ", at ") // readBlock adds file and line
			reason, _, _ = strings.Cut(reason, ": strconv.")
			return fmt.Errorf("match of settle takes status or header: write for example "+
				"match status 401 4xx or match header X-Failed true (%s)", reason)
		}
		matcher := matchers["match"]
		if matcher.StatusCode == nil && matcher.Headers == nil {
			return errors.New("match of settle takes status or header: write for example match status 401 403 or match header X-Failed true")
		}
		s.Match = &matcher
		return s.checkStatus()
	})
	if err == nil && s.Match == nil && s.Cost == "" {
		err = s.check(algorithms.Binary, nil)
	}
	return s, err
}

// settlement reads the true cost of a request from its response.
type settlement struct {
	state       *requestState
	client      context.Context // of the request: canceled when the client leaves
	unknown     bool            // the client has left, and the next handler has returned without a response
	repl        *caddy.Replacer
	body        *responseBody // nil if no true cost depends on it
	status      int           // 0: the header is not sent yet
	hasTrailers bool          // the header announces trailers
	ended       bool          // the true cost is read, or will not be known
}

// newSettlement returns nil if no zone of the request settles. client is the context of the request.
func (state *requestState) newSettlement(client context.Context, repl *caddy.Replacer) *settlement {
	for i := range state.entries {
		if state.entries[i].settles() {
			return &settlement{state: state, client: client, repl: repl}
		}
	}
	return nil
}

// settles reports whether the zone's charges depend on the response. A shadow that denies the
// request doesn't settle: without shadow mode there would be no response.
func (e *zoneEntry) settles() bool {
	return e.zone.settle != nil && len(e.Limits) > 0 && !(e.Shadow && e.denies())
}

// beginBody prepares for the body of the response, just before the request is passed on. It returns nil
// if no true cost depends on the body.
func (s *settlement) beginBody(r *http.Request) *responseBody {
	needsBody, needsJSON := false, false
	for i := range s.state.entries {
		if e := &s.state.entries[i]; e.settles() {
			needsBody, needsJSON = needsBody || e.zone.costNeedsBody, needsJSON || e.zone.costNeedsJSON
		}
	}
	if !needsBody {
		return nil
	}
	if needsJSON {
		acceptOnlyDecodable(r.Header)
	}
	s.body = &responseBody{
		values: &s.state.handler.responseValues, needsJSON: needsJSON, began: time.Now(),
		switched: r.Method == http.MethodConnect, // over HTTP/2 for a WebSocket, whose response has status 200
	}
	return s.body
}

// readHeader settles the request by the header of the response, which is about to be sent. If
// there are trailers, or if the true cost depends on the body, readEnd reads it later.
func (s *settlement) readHeader(status int, header http.Header) {
	s.status = status
	s.hasTrailers = len(header["Trailer"]) > 0
	if s.body != nil {
		s.body.readHeader(status, header)
	}
	// Clients could guess passwords for free if leaving before the response gave the charge back.
	unknown := s.unknown || status == statusClientClosedRequest
	for i := range s.state.entries {
		e := &s.state.entries[i]
		switch {
		case !e.settles():
		case e.zone.settle.Match != nil && unknown:
			e.trueCost, e.settled = e.Cost, true
		case e.zone.settle.Match != nil && !e.zone.settle.Match.Match(status, header):
			e.trueCost, e.settled = 0, true
		case !e.zone.costNeedsBody:
			s.readTrueCost(e, !s.hasTrailers)
		}
	}
}

// readTrueCost reads the true cost of the request in one zone. If this is the last attempt, it
// warns of a missing cost.
func (s *settlement) readTrueCost(e *zoneEntry, last bool) {
	if cost := string(e.zone.settle.Cost); cost != "" {
		if e.zone.costNeedsBody {
			cost, _ = s.repl.ReplaceFunc(cost, s.body.replace)
		} else {
			cost = s.repl.ReplaceAll(cost, "")
		}
		var err error
		e.trueCost, err = parseCost(strings.TrimSpace(cost))
		e.settled = err == nil
	}
	switch {
	case s.state.explained, !e.settled && !last:
	case !e.settled && e.zone.costNeedsJSON && s.body.wasUndecodable():
		e.zone.warnOfUndecodable(s.body.coding)
	default:
		e.zone.warnOfMissingCost(e.settled)
	}
}

// readEnd settles what the header didn't settle, at the end of the body. Later calls do nothing.
func (s *settlement) readEnd() {
	if s.ended {
		return
	}
	s.ended = true
	if s.body != nil {
		s.body.end()
	}
	for i := range s.state.entries {
		e := &s.state.entries[i]
		if e.settles() && !e.settled && (s.hasTrailers || e.zone.costNeedsBody) {
			s.readTrueCost(e, true)
		}
	}
}

// finish settles the request after the next handler, whatever it did. If the next handler
// panicked, returned is false; otherwise err is its error.
func (s *settlement) finish(header http.Header, returned bool, err error) {
	if s.status == 0 { // an outer handler will write the response, usually with this status
		status := http.StatusOK
		if !returned || err != nil {
			status = http.StatusInternalServerError
		}
		var known caddyhttp.HandlerError
		if errors.As(err, &known) && known.StatusCode != 0 {
			status = known.StatusCode
		}
		s.unknown = errors.Is(s.client.Err(), context.Canceled)
		s.readHeader(status, header)
	}
	s.readEnd()
}
