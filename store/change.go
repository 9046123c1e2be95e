package store

import (
	"context"
	"errors"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// Change is what an operator changes by hand about a key of a zone.
type Change struct {
	Zone, Key string
	// Forget are limits whose budgets shall be as if never charged, and bans that shall end
	// and be forgotten.
	Forget []Limit
	// Ban are bans that shall stand from now on, and for BanFor (above 0), whatever they
	// were before.
	Ban    []Limit
	BanFor algorithms.Micros
	// Override, if not nil, is a text that shall be the key's override, for OverrideFor, or
	// for good if that is 0; the empty text is none. The text means nothing to a store. No
	// budget changes: limits that are part of both have what they had.
	Override    *string
	OverrideFor algorithms.Micros
}

// OverriddenError is why nothing was decided of requests: keys have other overrides than
// the requests were made by.
type OverriddenError struct {
	// Overrides holds the override in force for each of the requests; empty where there is
	// none, or none can be.
	Overrides []string
}

func (*OverriddenError) Error() string { return "keys have other overrides than was known" }

// IsOverridden tells whether an error is an [OverriddenError].
func IsOverridden(err error) bool {
	_, is := errors.AsType[*OverriddenError](err)
	return is
}

// OverrideID is to the override of a key what a [Limit]'s ID is to a budget.
func OverrideID(zone string) string { return zone + ":o" }

// Change implements [Store]. It never fails.
func (b *Bounded) Change(ctx context.Context, c Change) error { return b.ChangeAt(ctx, 0, c) }

// ChangeAt is Change at an instant of the caller's choice; 0 stands for the store's clock.
func (b *Bounded) ChangeAt(_ context.Context, now algorithms.Micros, c Change) error {
	requests := []Request{{Zone: c.Zone, Key: c.Key}}
	t := b.begin(now, requests)
	defer t.release()
	s := t.shard(0)
	for _, l := range c.Forget {
		s.dropLocked(t.memory.hashes.budget(t.keys[0], l.ID), t.memory.dropped)
	}
	for i := range c.Ban {
		t.find(0, &requests[0], &c.Ban[i])
		f := &t.found[len(t.found)-1]
		reset := algorithms.BeginBan(&f.state, t.now, c.BanFor, c.Ban[i].Limit)
		t.keep(f, t.now+reset)
	}
	if c.Override != nil {
		expires := algorithms.Micros(0)
		if c.OverrideFor > 0 {
			expires = t.now + c.OverrideFor
		}
		s.overrideLocked(overrideKey{c.Zone, c.Key}, override{*c.Override, expires})
	}
	return nil
}

// overridden returns an error if requests were made by other overrides than there are.
func (t *take) overridden(requests []Request) error {
	same := true
	for i := range requests {
		if r := &requests[i]; r.Overridable {
			same = same && t.shard(i).overrideOf(overrideKey{r.Zone, r.Key}, t.now) == r.Override
		}
	}
	if same {
		return nil
	}
	found := make([]string, len(requests))
	for i := range requests {
		if r := &requests[i]; r.Overridable {
			found[i] = t.shard(i).overrideOf(overrideKey{r.Zone, r.Key}, t.now)
		}
	}
	return &OverriddenError{Overrides: found}
}
