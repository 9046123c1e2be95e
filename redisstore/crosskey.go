package redisstore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore/internal/nodes"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// The keys of a request can be on several nodes of a cluster, which decide independently. If one
// denies, the charges of the others are refunded. Keys of one node are decided together.

// takeGroup has requests of one key, or of several keys that one node decides together.
type takeGroup struct {
	node      *node // of all keys; nil while unknown
	together  bool  // its keys may share a script call with others of the node
	requests  []store.ZoneRequest
	positions []int // of these among all requests
	allowed   bool
	err       error
}

// groups groups requests by their keys, and with byNode those of a node that may share a script call.
func (c *Cluster) groups(requests []store.ZoneRequest, byNode bool) (groups []*takeGroup) {
	for i, r := range requests {
		hashSlot := c.names().HashSlot(r.Key)
		owner := c.hashSlotNodes[hashSlot].Load()
		together := false
		if byNode && owner != nil {
			owner.sharing.TryIfDue()
			together = owner.sharing.Shares(hashSlot, time.Now())
		}
		isSame := func(other store.ZoneRequest) bool { return other.Key == r.Key }
		n := slices.IndexFunc(groups, func(g *takeGroup) bool { return slices.ContainsFunc(g.requests, isSame) })
		if n < 0 && together {
			n = slices.IndexFunc(groups, func(g *takeGroup) bool { return g.together && g.node == owner })
		}
		if n < 0 {
			n = len(groups)
			groups = append(groups, &takeGroup{node: owner, together: together})
		}
		groups[n].requests = append(groups[n].requests, r)
		groups[n].positions = append(groups[n].positions, i)
	}
	return groups
}

// takeGroup takes for the requests of a group. If the node lacks one of several keys, each key is taken for itself.
func (c *Cluster) takeGroup(ctx context.Context, now algorithms.Micros, g *takeGroup) (allowed bool, err error) {
	if !hasSeveralKeys(g.requests) {
		return c.takeKey(ctx, now, g.requests)
	}
	h := hop{node: g.node, deadline: time.Now().Add(c.options.Timeout)}
	to, err := c.visit(ctx, c.names().HashSlot(g.requests[0].Key), h, true, func(h hop) error {
		call := h.newTakeCall(ctx, now, g.requests)
		h.enqueueOrSend(call)
		allowed, err = h.await(call)
		return toStoreError(ctx, err)
	})
	if to != (nodes.Redirect{}) {
		for i := range g.requests { // else they may meet the same again
			g.node.sharing.Pause(c.names().HashSlot(g.requests[i].Key))
		}
		return c.takeGroups(ctx, now, g.requests, c.groups(g.requests, false))
	}
	return allowed, err
}

// concurrently calls do for all groups at the same time, and waits for all.
func concurrently(groups []*takeGroup, do func(*takeGroup)) {
	var others sync.WaitGroup
	for _, g := range groups[1:] {
		others.Go(func() { do(g) })
	}
	do(groups[0])
	others.Wait()
}

func hasSeveralKeys(requests []store.ZoneRequest) bool {
	return slices.ContainsFunc(requests, func(r store.ZoneRequest) bool { return r.Key != requests[0].Key })
}

// takeGroups takes for requests that several groups have.
func (c *Cluster) takeGroups(ctx context.Context, now algorithms.Micros, requests []store.ZoneRequest, groups []*takeGroup) (bool, error) {
	deadline := time.Now().Add(c.options.Timeout)
	for _, g := range groups { // if a node fails, charge nothing on the others
		if g.node != nil && g.node.breaker.Open() {
			return false, &store.Error{Reason: store.ReasonOpen, Err: store.ErrOpen}
		}
	}
	concurrently(groups, func(g *takeGroup) { g.allowed, g.err = c.takeGroup(ctx, now, g) })
	allowed, failed := true, error(nil)
	for _, g := range groups {
		allowed = allowed && g.allowed
		if !store.IsOverridden(g.err) {
			failed = cmp.Or(failed, g.err)
		}
	}
	if err := cmp.Or(failed, overriddenError(groups, requests)); err != nil {
		for _, g := range groups {
			if g.err == nil { // a caller that takes again takes behind these corrections
				c.correct(now, store.FullRefunds(g.requests), func(error) {})
			}
		}
		return false, err
	}
	if !allowed {
		concurrently(groups, func(g *takeGroup) {
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
func overriddenError(groups []*takeGroup, requests []store.ZoneRequest) error {
	var found error
	all := &store.OverriddenError{Overrides: make([]string, len(requests))}
	for i, r := range requests {
		if r.Override != nil {
			all.Overrides[i] = r.Override.Text
		}
	}
	for _, g := range groups {
		if other, is := errors.AsType[*store.OverriddenError](g.err); is {
			found = all
			for i, position := range g.positions {
				all.Overrides[position] = other.Overrides[i]
			}
		}
	}
	return found
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
	if _, err := c.TakeAt(waiting, now, looks); err == nil { // a take after the correction sees its refund
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
