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

// keyGroup is the part of some requests that is of one key.
type keyGroup struct {
	requests []store.Request
	places   []int // of these in all
	allowed  bool
	err      error
}

func groupByKey(requests []store.Request) (parts []*keyGroup) {
	for i, r := range requests {
		n := slices.IndexFunc(parts, func(p *keyGroup) bool { return p.requests[0].Key == r.Key })
		if n < 0 {
			n = len(parts)
			parts = append(parts, new(keyGroup))
		}
		parts[n].requests = append(parts[n].requests, r)
		parts[n].places = append(parts[n].places, i)
	}
	return parts
}

// concurrently calls do for all parts at the same time, and waits for them.
func concurrently(parts []*keyGroup, do func(*keyGroup)) {
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
	parts := groupByKey(requests)
	for _, p := range parts { // no charge that would have to be given back at once
		n := c.slots[c.names().Slot(p.requests[0].Key)].Load()
		if n != nil && n.breaker.Open() {
			return false, &store.Error{Reason: store.ReasonOpen, Err: store.ErrOpen}
		}
	}
	concurrently(parts, func(p *keyGroup) { p.allowed, p.err = c.takeKey(ctx, now, p.requests) })
	allowed, failed := true, error(nil)
	for _, p := range parts {
		allowed = allowed && p.allowed
		if !store.IsOverridden(p.err) {
			failed = cmp.Or(failed, p.err)
		}
	}
	if failed != nil {
		for _, p := range parts {
			if p.err == nil {
				c.Correct(refundsOf(p.requests), nil)
			}
		}
		return false, failed
	}
	if err := overridden(parts, len(requests)); err != nil { // there must be room when the same are asked for again
		concurrently(parts, func(p *keyGroup) {
			if p.err == nil {
				_ = c.CorrectAt(context.WithoutCancel(ctx), now, refundsOf(p.requests))
			}
		})
		return false, err
	}
	if !allowed {
		concurrently(parts, func(p *keyGroup) {
			if p.allowed {
				c.undoTakes(context.WithoutCancel(ctx), now, deadline, p.requests)
			}
		})
	}
	for _, p := range parts {
		for i, place := range p.places {
			requests[place].Outcome = p.requests[i].Outcome
		}
	}
	return allowed, nil
}

// overridden returns the error of the parts that are asked for by other overrides than there
// are, as one of all requests.
func overridden(parts []*keyGroup, requests int) error {
	all := &store.OverriddenError{Overrides: make([]string, requests)}
	found := false
	for _, p := range parts {
		others, is := errors.AsType[*store.OverriddenError](p.err)
		found = found || is
		for i, place := range p.places {
			if is {
				all.Overrides[place] = others.Overrides[i]
			} else if o := p.requests[i].Override; o != nil {
				all.Overrides[place] = o.Text
			}
		}
	}
	if !found {
		return nil
	}
	return all
}

// refundsOf returns the corrections that take back all that requests were charged, and their slots.
func refundsOf(requests []store.Request) (corrections []store.Correction) {
	for i := range requests {
		corrections = append(corrections, store.Correction{Request: &requests[i], Refund: algorithms.Forever, Leave: true})
	}
	return corrections
}

// undoTakes makes requests that had room those of a request that another key had none
// for. It is done by the deadline, whether or not the charge has been given back by then.
func (c *Cluster) undoTakes(ctx context.Context, now algorithms.Micros, deadline time.Time, requests []store.Request) {
	var back []store.Correction
	var looks []store.Request
	var places []int
	for i := range requests {
		r := &requests[i]
		charged := *r
		one := store.Correction{Request: &charged, Refund: algorithms.Forever, Leave: true}
		if r.Mode == algorithms.Uniform { // denied requests are charged, too
			one.Refund = 0
			for j := range r.Outcome.Decisions {
				d := &r.Outcome.Decisions[j]
				if d.Remaining == r.Cost-1 {
					d.RetryAfter = d.MoreAfter
				} else if d.Remaining < r.Cost {
					d.RetryAfter = d.ResetAfter // it fits by then, and maybe sooner
				}
			}
		} else if r.Outcome.Verdict == store.Allowed {
			looks, places = append(looks, store.Request{Zone: r.Zone, Key: r.Key, Limits: r.Limits, Mode: r.Mode}), append(places, i)
		}
		charged.Outcome.Decisions = slices.Clone(r.Outcome.Decisions)
		back = append(back, one)
	}
	for i := range requests {
		o := &requests[i].Outcome
		if o.Slots.Taken {
			o.Slots.Taken = false
			o.Slots.InFlight--
		}
	}
	for _, place := range places {
		for j := range requests[place].Outcome.Decisions {
			d := &requests[place].Outcome.Decisions[j]
			d.Wait, d.Charged = 0, 0 // it is not held, and nobody else gives anything back
		}
	}
	given := make(chan error, 1)
	go func() {
		err := c.CorrectAt(ctx, now, back)
		if err == nil && len(looks) > 0 { // a take behind the give-back finds it made
			_, err = c.takeKey(ctx, now, looks)
		}
		given <- err
	}()
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
		requests[place].Outcome.Decisions = looks[i].Outcome.Decisions
	}
}
