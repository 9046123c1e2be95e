package store

import (
	"context"
	"errors"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// Change is what an operator changes by hand about a key of a zone.
type Change struct {
	Zone, Key string
	// Forget holds IDs of limits whose budgets become as if never charged, and of bans that
	// end and are forgotten.
	Forget []string
	// Ban holds bans that stand from now on for BanFor (above 0), whatever they were before.
	Ban    []*Ban
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

// Change implements [Store]. It never fails.
func (b *Memory) Change(ctx context.Context, c Change) error { return b.ChangeAt(ctx, 0, c) }

// ChangeAt is Change at an instant of the caller's choice; 0 stands for the store's clock.
func (b *Memory) ChangeAt(_ context.Context, now algorithms.Micros, c Change) error {
	t := b.begin()
	defer t.release()
	t.addKey(c.Key)
	t.lock(now)
	s := t.shard(0)
	for _, id := range c.Forget {
		s.dropLocked(t.shared.hashes.budget(t.keys[0], id), t.shared.dropped)
	}
	for _, ban := range c.Ban {
		f := findInShard(s, t.shared.hashes.budget(t.keys[0], ban.ID), t.shared.zones.of(c.Zone))
		reset := ban.Begin(&f.state, t.now, c.BanFor)
		t.save(&f, t.now+reset)
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

// checkOverrides returns an error if requests were made by other overrides than there are.
func (t *transaction) checkOverrides(requests []Request) error {
	inForce := func(i int) string {
		return t.shard(i).overrideOf(overrideKey{requests[i].Zone, requests[i].Key}, t.now)
	}
	same := true
	for i := range requests {
		if o := requests[i].Override; o != nil {
			same = same && inForce(i) == o.Text
		}
	}
	if same {
		return nil
	}
	found := make([]string, len(requests))
	for i := range requests {
		if requests[i].Override != nil {
			found[i] = inForce(i)
		}
	}
	return &OverriddenError{Overrides: found}
}
