package redisstore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Requests of several keys can be on several nodes of a cluster, which decide by themselves:
// where one refuses, what others have charged is given back.

// byKey is the part of some requests that is of one key.
type byKey struct {
	requests []store.Request
	places   []int // of these in all
	allowed  bool
	err      error
}

func split(requests []store.Request) (parts []*byKey) {
	for i, r := range requests {
		n := slices.IndexFunc(parts, func(p *byKey) bool { return p.requests[0].Key == r.Key })
		if n < 0 {
			n = len(parts)
			parts = append(parts, new(byKey))
		}
		parts[n].requests = append(parts[n].requests, r)
		parts[n].places = append(parts[n].places, i)
	}
	return parts
}

// each calls do for all parts at the same time, and waits for them.
func each(parts []*byKey, do func(*byKey)) {
	var others sync.WaitGroup
	for _, p := range parts[1:] {
		others.Go(func() { do(p) })
	}
	do(parts[0])
	others.Wait()
}

// takeKeys takes for requests of several keys.
func (c *Cluster) takeKeys(ctx context.Context, now algorithms.Micros, requests []store.Request) (bool, error) {
	deadline := time.Now().Add(c.options.Timeout)
	parts := split(requests)
	for _, p := range parts { // no charge that would have to be given back at once
		n := c.slots[c.names().slot(p.requests[0].Key)].Load()
		if n != nil && n.breaker.Open() {
			return false, &store.Error{Reason: store.ReasonOpen, Err: store.ErrOpen}
		}
	}
	each(parts, func(p *byKey) { p.allowed, p.err = c.takeKey(ctx, now, p.requests) })
	allowed, failed := true, error(nil)
	for _, p := range parts {
		allowed = allowed && p.allowed
		if !store.IsOverridden(p.err) {
			failed = cmp.Or(failed, p.err)
		}
	}
	if failed != nil {
		for _, p := range parts {
			if p.err == nil && charged(p.requests) {
				go c.giveBack(context.WithoutCancel(ctx), now, receipts(p.requests))
			}
		}
		return false, failed
	}
	if err := overridden(parts, len(requests)); err != nil { // there must be room when the same are asked for again
		each(parts, func(p *byKey) {
			if p.err == nil && charged(p.requests) {
				_ = c.giveBack(context.WithoutCancel(ctx), now, receipts(p.requests))
			}
		})
		return false, err
	}
	if !allowed {
		each(parts, func(p *byKey) {
			if p.allowed {
				c.withdraw(context.WithoutCancel(ctx), now, deadline, p.requests)
			}
		})
	}
	for _, p := range parts {
		for i, place := range p.places {
			requests[place].Decisions = p.requests[i].Decisions
		}
	}
	return allowed, nil
}

// overridden returns the error of the parts that are asked for by other overrides than there
// are, as one of all requests.
func overridden(parts []*byKey, requests int) error {
	all := &store.OverriddenError{Overrides: make([]string, requests)}
	found := false
	for _, p := range parts {
		others, is := errors.AsType[*store.OverriddenError](p.err)
		found = found || is
		for i, place := range p.places {
			if all.Overrides[place] = p.requests[i].Override; is {
				all.Overrides[place] = others.Overrides[i]
			}
		}
	}
	if !found {
		return nil
	}
	return all
}

func charged(requests []store.Request) bool {
	return slices.ContainsFunc(requests, func(r store.Request) bool {
		return slices.ContainsFunc(r.Decisions, func(d algorithms.Decision) bool { return d.Charged > 0 })
	})
}

// receipts copies requests that nobody else may read any more.
func receipts(requests []store.Request) []store.Request {
	copies := slices.Clone(requests)
	for i := range copies {
		copies[i].Decisions = slices.Clone(copies[i].Decisions)
	}
	return copies
}

// withdraw makes requests that had room those of a request that another key had none
// for. It is done by the deadline, whether or not the charge has been given back by then.
func (c *Cluster) withdraw(ctx context.Context, now algorithms.Micros, deadline time.Time, requests []store.Request) {
	var back []store.Request
	var places []int
	for i := range requests {
		r := &requests[i]
		if r.Mode == algorithms.Uniform { // refused requests are charged, too
			for j := range r.Decisions {
				d := &r.Decisions[j]
				if d.Remaining == r.Cost-1 {
					d.RetryAfter = d.MoreAfter
				} else if d.Remaining < r.Cost {
					d.RetryAfter = d.ResetAfter // it fits by then, and maybe sooner
				}
			}
			continue
		}
		if r.Shadow && refuses(r) {
			continue
		}
		back, places = append(back, *r), append(places, i)
	}
	back = receipts(back)
	for _, place := range places {
		for j := range requests[place].Decisions {
			d := &requests[place].Decisions[j]
			d.Wait, d.Charged = 0, 0 // it is not held, and nobody else gives anything back
		}
	}
	if !charged(back) {
		return
	}
	given := make(chan error, 1)
	go func() { given <- c.giveBack(ctx, now, back) }()
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case err := <-given:
		if err != nil {
			return
		}
	case <-timer.C:
		return
	}
	for i, place := range places {
		requests[place].Decisions = back[i].Decisions
	}
}

// refuses tells whether a request has no room in its own zone.
func refuses(r *store.Request) bool {
	return slices.ContainsFunc(r.Decisions, func(d algorithms.Decision) bool { return !d.Allowed })
}

// giveBack gives back what was charged to requests of one key, and then has their
// decisions say how their budgets stand.
func (c *Cluster) giveBack(ctx context.Context, now algorithms.Micros, requests []store.Request) error {
	given := false
	return c.at(ctx, requests[0].Key, func(s *Store, deadline time.Time, asking bool) error {
		waiting, cancel := context.WithDeadline(ctx, deadline)
		defer cancel()
		if !given {
			if err := s.refund(waiting, now, asking, requests, algorithms.Forever); err != nil {
				return classify(ctx, err)
			}
			given = true
			for i := range requests {
				requests[i].Cost, requests[i].MaxWait = 0, 0
			}
		}
		_, err := s.takeAlone(waiting, now, deadline, asking, requests)
		return classify(ctx, err)
	})
}
