package store

import (
	"errors"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// Change is a change that an operator makes to one key of a zone.
type Change struct {
	Zone, Key string
	// Forget has the IDs of limits and bans. Their budgets become untouched, and their bans end
	// and are forgotten.
	Forget []string
	// Ban has bans that begin now and last for BanFor, which is above 0. A ban that stands
	// already is replaced.
	Ban    []*Ban
	BanFor algorithms.Micros
	// Holds says that a response begins the bans, not an operator. A ban that ends later is not replaced.
	Holds bool
	// Override, if not nil, is the text of the key's new override. The empty text removes the
	// override. The override lasts for OverrideFor; 0 stands for ever. To a store, the text has
	// no meaning. Budgets don't change, so charges count for the limits of both
	// overrides that have the same IDs.
	Override    *string
	OverrideFor algorithms.Micros
}

// Hold returns the change by which a response bans the key of the request for span, above 0.
func (r *ZoneRequest) Hold(span algorithms.Micros) Change {
	return Change{Zone: r.Zone, Key: r.Key, Ban: []*Ban{r.Ban}, BanFor: span, Holds: true}
}

// OverriddenError is the error of a Take that decided nothing, because other overrides are in force
// than the [Override] of each request says.
type OverriddenError struct {
	// Overrides has one text per request: that of the override in force. The text is empty if
	// there is none, or if the request has no Override.
	Overrides []string
}

func (*OverriddenError) Error() string { return "other overrides are in force" }

// IsOverridden reports whether an error is an [OverriddenError].
func IsOverridden(err error) bool {
	is := errors.As(err, new(*OverriddenError))
	return is
}

// change makes a change to the key with index 0.
func (tx *transaction) change(c Change) {
	s := tx.shardOf(0)
	for _, id := range c.Forget {
		s.dropLocked(tx.shared.names.budget(tx.keys[0], id), tx.shared.subtractWeight)
	}
	for _, ban := range c.Ban {
		e := tx.find(0, tx.shared.zones.zone(c.Zone), ban.ID)
		begin := ban.Begin
		if c.Holds {
			begin = ban.Hold
		}
		reset := begin(&e.state, tx.now, c.BanFor)
		e.label = newBanLabel(c.Key, ban.ID)
		tx.save(&e, tx.now+reset)
	}
	if c.Override != nil {
		expires := algorithms.Micros(0)
		if c.OverrideFor > 0 {
			expires = tx.now + c.OverrideFor
		}
		s.setOverrideLocked(overrideKey{c.Zone, c.Key}, override{*c.Override, expires})
	}
}

// checkOverrides returns an [OverriddenError] if other overrides are in force than requests were made
// with.
func (tx *transaction) checkOverrides(requests []ZoneRequest) error {
	inForce := func(i int) string {
		return tx.shardOf(i).overrideTextLocked(overrideKey{requests[i].Zone, requests[i].Key}, tx.now)
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
	texts := make([]string, len(requests))
	for i := range requests {
		if requests[i].Override != nil {
			texts[i] = inForce(i)
		}
	}
	return &OverriddenError{Overrides: texts}
}
