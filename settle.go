package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
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

// settling are a request's zones that settle, and what its response says of them.
type settling struct {
	answer *answer
	repl   *caddy.Replacer
	status int // 0: nothing is written yet
	// cost is, for each zone, what the response is worth; unknown where it doesn't say.
	cost     []int64
	trailers bool // the response has announced some
}

const unknown = -1

// settling returns what the zones have to settle once the request has passed, or nil.
func (a *answer) settling(repl *caddy.Replacer) *settling {
	if !a.asksToSettle() {
		return nil
	}
	return &settling{answer: a, repl: repl}
}

// asksToSettle tells whether the request's charges depend on its response.
func (a *answer) asksToSettle() bool {
	return slices.ContainsFunc(a.zones, func(z *zone) bool { return z.settle != nil })
}

// settles tells whether a request's charges are settled.
func (a *answer) settles(i int) bool {
	return a.zones[i].settle != nil && !a.terms[i].ofSlots && !a.terms[i].unlimited
}

// note notes what a response is worth, when its header is about to be sent.
func (s *settling) note(status int, header http.Header) {
	s.status = status
	s.trailers = len(header["Trailer"]) > 0
	s.cost = make([]int64, len(s.answer.zones))
	for i, z := range s.answer.zones {
		s.cost[i] = unknown
		switch {
		case !s.answer.settles(i):
		case z.settle.Match != nil && !z.settle.Match.Match(status, header):
			s.cost[i] = 0
		default:
			if s.cost[i] = s.costOf(z); s.cost[i] != unknown || !s.trailers {
				z.noteSettled(s.cost[i])
			}
		}
	}
}

func (s *settling) costOf(z *zone) int64 {
	if z.settle.Cost == "" {
		return unknown
	}
	cost, err := parseCost(strings.TrimSpace(s.repl.ReplaceAll(string(z.settle.Cost), "")))
	if err != nil {
		return unknown
	}
	return cost
}

// settle charges the rest, or gives it back. err is what the handlers behind have
// returned, if they have.
func (s *settling) settle(ctx context.Context, w http.ResponseWriter, returned bool, err error) {
	if s.status == 0 { // nothing was written: others will write it
		status := http.StatusOK
		var known caddyhttp.HandlerError
		if !returned || err != nil {
			status = http.StatusInternalServerError
		}
		if errors.As(err, &known) && known.StatusCode != 0 {
			status = known.StatusCode
		}
		s.note(status, w.Header())
	}
	a := s.answer
	ctx = context.WithoutCancel(ctx)
	var more []store.Request
	for i, z := range a.zones {
		cost := s.cost[i]
		if cost == unknown && s.trailers && a.settles(i) {
			cost = s.costOf(z)
			z.noteSettled(cost)
		}
		r := a.requests[i]
		switch {
		case cost == unknown:
		case r.Shadow && !a.allowedBy(i): // with a say, it would have kept the request from its response
		case cost < r.Cost:
			if err := a.handler.store.Refund(ctx, []store.Request{r}, r.Cost-cost); err != nil {
				a.handler.failed(err)
			}
		case cost > r.Cost:
			r.Local = a.isLocal() // charged to the store that admitted the request
			r.Mode, r.Cost, r.MaxWait, r.Decisions = algorithms.Force, cost-r.Cost, 0, nil
			r.Limits = r.Limits[:len(a.terms[i].labels)] // also if a ban has begun meanwhile
			r.Overridable = false                        // or an override been set: these are the limits it was charged to
			more = append(more, r)
		}
	}
	if len(more) > 0 {
		if _, err := a.handler.store.Take(ctx, more); err != nil {
			a.handler.failed(err)
		}
	}
}
