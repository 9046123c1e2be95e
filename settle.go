package ratelimit

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// Settle corrects what a request was charged once its response is known. Until then it
// is charged its cost, so that many requests at once don't get more than remains.
type Settle struct {
	// Which responses are charged at all; to others everything is given back. Header
	// fields are those the handlers behind this one have set (default: all).
	Match *caddyhttp.ResponseMatcher `json:"match,omitempty"`

	// What the request was really worth, as cost is written: usually
	// {http.response.header.*}, also of a trailer. What it cost more is charged as far as
	// there is room, and what it cost less is given back. If there is no such number, the
	// charge stays as it is (default: what was charged).
	Cost Number `json:"cost,omitempty"`
}

// check judges the settings together with the zone's mode and limits.
func (s *Settle) check(mode algorithms.Mode, limits []*algorithms.Limit) error {
	if s.Match == nil && s.Cost == "" {
		return errors.New("settle has neither match nor cost: write which responses are charged, such as match status 401, or what they are worth, such as cost {http.response.header.X-Tokens}")
	}
	if err := s.checkStatus(); err != nil {
		return err
	}
	if mode != algorithms.Binary {
		return fmt.Errorf("settle and mode %v don't go together: what is given back is what was charged, which is mode binary", mode)
	}
	for _, l := range limits {
		if l.Algorithm().BinaryOnly && s.Cost != "" {
			return fmt.Errorf("cost of settle and %s don't go together: it has no room to charge afterwards; write another limit, or match alone", l.Algorithm().Name)
		}
	}
	return s.Cost.check("cost of settle", parseCost)
}

// checkStatus checks the statuses of match.
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
	err := block(d, "settle", settleOptions, func(option string) (err error) {
		if option == "cost" {
			s.Cost, err = number(d, parseCost)
			return err
		}
		matchers := make(map[string]caddyhttp.ResponseMatcher)
		if err := caddyhttp.ParseNamedResponseMatcher(d.NewFromNextSegment(), matchers); err != nil {
			return fmt.Errorf("match of settle takes status or header, such as status 401 403 or header X-Failed true: %w", err)
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

// settlement reads what the response of a request says that the request is worth.
type settlement struct {
	answer   *requestState
	repl     *caddy.Replacer
	status   int  // 0: nothing is written yet
	trailers bool // the response has announced some
}

// settlement returns nil if no zone of the request settles.
func (state *requestState) newSettlement(repl *caddy.Replacer) *settlement {
	for i := range state.entries {
		if state.entries[i].settles() {
			return &settlement{answer: state, repl: repl}
		}
	}
	return nil
}

// settles reports whether the zone's charges depend on the response. Those of a shadow that
// denies the request don't: with a say, it would have kept the request from its response.
func (e *entry) settles() bool {
	return e.zone.settle != nil && len(e.Limits) > 0 && !(e.Shadow && e.denies())
}

// observeHeader notes what a response is worth, when its header is about to be sent.
func (s *settlement) observeHeader(status int, header http.Header) {
	s.status = status
	s.trailers = len(header["Trailer"]) > 0
	for i := range s.answer.entries {
		e := &s.answer.entries[i]
		switch {
		case !e.settles():
		case e.zone.settle.Match != nil && !e.zone.settle.Match.Match(status, header):
			e.trueCost, e.settled = 0, true
		default:
			s.readTrueCost(e, !s.trailers)
		}
	}
}

// readTrueCost reads the worth of a request in one zone. last reports whether it isn't read again.
func (s *settlement) readTrueCost(e *entry, last bool) {
	if cost := e.zone.settle.Cost; cost != "" {
		var err error
		e.trueCost, err = parseCost(strings.TrimSpace(s.repl.ReplaceAll(string(cost), "")))
		e.settled = err == nil
	}
	if e.settled || last {
		e.zone.warnOfMissingCost(e.settled)
	}
}

// finish notes what is known of the response when the handlers behind have ended. err is what
// they have returned, if they have.
func (s *settlement) finish(header http.Header, returned bool, err error) {
	if s.status == 0 { // nothing was written: others will write it
		status := http.StatusOK
		var known caddyhttp.HandlerError
		if !returned || err != nil {
			status = http.StatusInternalServerError
		}
		if errors.As(err, &known) && known.StatusCode != 0 {
			status = known.StatusCode
		}
		s.observeHeader(status, header)
	}
	for i := range s.answer.entries {
		if e := &s.answer.entries[i]; s.trailers && e.settles() && !e.settled {
			s.readTrueCost(e, true)
		}
	}
}
