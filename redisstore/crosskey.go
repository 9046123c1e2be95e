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

// The keys of a request can be on several nodes of a cluster, which decide independently. If one
// denies, the charges of the others are refunded.

// keyGroup has the requests of one key.
type keyGroup struct {
	requests  []store.ZoneRequest
	positions []int // of these among all requests
	allowed   bool
	err       error
}

// groupByKey groups requests by their keys.
func groupByKey(requests []store.ZoneRequest) (groups []*keyGroup) {
	for i, r := range requests {
		n := slices.IndexFunc(groups, func(g *keyGroup) bool { return g.requests[0].Key == r.Key })
		if n < 0 {
			n = len(groups)
			groups = append(groups, new(keyGroup))
		}
		groups[n].requests = append(groups[n].requests, r)
		groups[n].positions = append(groups[n].positions, i)
	}
	return groups
}

// concurrently calls do for all groups at the same time, and waits for all.
func concurrently(groups []*keyGroup, do func(*keyGroup)) {
	var others sync.WaitGroup
	for _, g := range groups[1:] {
		others.Go(func() { do(g) })
	}
	do(groups[0])
	others.Wait()
}

// takeCrossKey takes for requests of several keys.
func (c *Cluster) takeCrossKey(ctx context.Context, now algorithms.Micros, requests []store.ZoneRequest) (bool, error) {
	deadline := time.Now().Add(c.options.Timeout)
	groups := groupByKey(requests)
	for _, g := range groups { // if a node fails, charge nothing on the others
		n := c.hashSlotNodes[c.names().HashSlot(g.requests[0].Key)].Load()
		if n != nil && n.breaker.Open() {
			return false, &store.Error{Reason: store.ReasonOpen, Err: store.ErrOpen}
		}
	}
	concurrently(groups, func(g *keyGroup) { g.allowed, g.err = c.takeKey(ctx, now, g.requests) })
	allowed, failed := true, error(nil)
	for _, g := range groups {
		allowed = allowed && g.allowed
		if !store.IsOverridden(g.err) {
			failed = cmp.Or(failed, g.err)
		}
	}
	if err := cmp.Or(failed, overriddenError(groups, len(requests))); err != nil {
		for _, g := range groups {
			if g.err == nil { // a caller that takes again takes behind these corrections
				c.correct(now, store.FullRefunds(g.requests), func(error) {})
			}
		}
		return false, err
	}
	if !allowed {
		concurrently(groups, func(g *keyGroup) {
			if g.allowed {
				c.undoTakes(context.WithoutCancel(ctx), now, deadline, g.requests)
			}
		})
	}
	for _, g := range groups {
		for i, position := range g.positions {
			requests[position].Outcome = g.requests[i].Outcome
		}
	}
	return allowed, nil
}

// overriddenError returns one error for all requests if the overrides of a group are not those of
// its requests, or else nil.
func overriddenError(groups []*keyGroup, requests int) error {
	all := &store.OverriddenError{Overrides: make([]string, requests)}
	found := false
	for _, g := range groups {
		var other *store.OverriddenError
		ok := errors.As(g.err, &other)
		found = found || ok
		for i, position := range g.positions {
			if ok {
				all.Overrides[position] = other.Overrides[i]
			} else if o := g.requests[i].Override; o != nil {
				all.Overrides[position] = o.Text
			}
		}
	}
	if !found {
		return nil
	}
	return all
}

// undoTakes turns requests that one key allowed into requests that another key has denied. If the refunds are made by the
// deadline, it looks at the budgets again for the decisions after that.
func (c *Cluster) undoTakes(ctx context.Context, now algorithms.Micros, deadline time.Time, requests []store.ZoneRequest) {
	var refunds []store.Correction
	var refunded []*store.ZoneRequest
	var looks []store.ZoneRequest // at the budgets of refunded, without cost
	for i := range requests {
		r := &requests[i]
		if r.Peek {
			continue
		}
		refunds = append(refunds, undo(r))
		if r.Mode != algorithms.Uniform && r.Outcome.Verdict == store.Allowed && len(r.Limits) > 0 {
			refunded = append(refunded, r)
			looks = append(looks, store.ZoneRequest{Zone: r.Zone, Key: r.Key, Limits: r.Limits, Mode: r.Mode})
		}
	}
	waiting, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	if err := c.CorrectAt(waiting, now, refunds); err != nil || len(looks) == 0 {
		return
	}
	if _, err := c.takeKey(waiting, now, looks); err == nil { // a take after the correction sees its refund
		for i, r := range refunded {
			r.Outcome.Decisions = looks[i].Outcome.Decisions
		}
	}
}

// undo removes the slot and the charges of a take from its outcome, and returns the correction that does the same in
// Redis. In mode uniform the charges stay, because denied requests are charged, too, and undo sets when the request
// can come again.
func undo(r *store.ZoneRequest) store.Correction {
	taken := *r
	taken.Outcome.Decisions = slices.Clone(r.Outcome.Decisions)
	if o := &r.Outcome; o.Slots.Taken {
		o.Slots.Taken = false
		o.Slots.InFlight--
	}
	reserved := &r.Outcome.Reserved
	reserved.Events, reserved.Added = reserved.Events-reserved.Added, 0
	if r.Mode == algorithms.Uniform {
		denyCharged(r)
		return store.Correction{Request: &taken, Leave: true}
	}
	if r.Outcome.Verdict == store.Allowed {
		for i := range r.Outcome.Decisions {
			d := &r.Outcome.Decisions[i]
			d.Wait, d.Charged = 0, 0 // the request does not wait, and the refund is made here
		}
	}
	return store.Correction{Request: &taken, Refund: algorithms.Forever, Leave: true, Settled: true}
}

// denyCharged sets when a request can come again that is charged although another key has denied it.
func denyCharged(r *store.ZoneRequest) {
	for i := range r.Outcome.Decisions {
		d := &r.Outcome.Decisions[i]
		if d.Remaining == r.Cost-1 {
			d.RetryAfter = d.MoreAfter
		} else if d.Remaining < r.Cost {
			d.RetryAfter = d.ResetAfter // the request fits by then, maybe sooner
		}
	}
}
