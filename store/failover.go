package store

import (
	"context"
	"slices"
	"sync"
)

// Failover is a [Store] that decides by budgets of this process while the store it
// belongs to can't. They begin untouched with the first outage and are the same in
// later ones; nothing of them is charged to the store when it is back.
//
// Slots are counted in both stores at all times, whichever granted them. So requests that are in
// flight when an outage begins or ends keep their slots until they end.
type Failover struct {
	store  Store
	local  localStore
	failed func(error)
}

// NewFailover returns a store that asks local when store fails, and then calls
// failed with the reason. It asks for the Part of limits and slots that have one.
func NewFailover(store, local Store, failed func(error)) *Failover {
	return &Failover{store: store, local: localStore{local}, failed: failed}
}

// Local returns the store with the budgets of this process.
func (f *Failover) Local() Store { return f.local }

// Take implements [Store]. It fails only for overrides, if store is busy, or if the caller has
// left. While store fails, the caller's overrides count.
func (f *Failover) Take(ctx context.Context, requests []Request) (bool, error) {
	allowed, err := f.store.Take(ctx, requests)
	if err == nil {
		countSlots(f.local, requests)
		return allowed, nil
	}
	if ctx.Err() != nil || IsOverridden(err) || IsBusy(err) {
		return allowed, err
	}
	f.failed(err)
	if allowed, err = f.local.Take(ctx, requests); err == nil {
		countSlots(f.store, requests)
	}
	return allowed, err
}

// slotCounter is a [Store] that can count slots which another store has granted. These slots are given
// back to both stores.
type slotCounter interface {
	// Count counts the slots that requests have taken.
	CountSlots(requests []Request)
}

func countSlots(s Store, requests []Request) {
	if h, ok := s.(slotCounter); ok && slices.ContainsFunc(requests, takesSlot) {
		h.CountSlots(requests)
	}
}

func takesSlot(r Request) bool { return r.Outcome.Slots.Taken }

// Correct implements [Store]. It corrects the store that Take charged, but gives slots back to
// both. A Charge that store may have lost is charged to the local budgets.
func (f *Failover) Correct(corrections []Correction, failed func(error)) {
	var here, there, leave []Correction
	for _, c := range corrections {
		left := Correction{Request: c.Request, Leave: c.Leave && c.Request.Outcome.Slots.Taken}
		if c.Request.Outcome.Local {
			here = append(here, c)
			if left.Leave {
				leave = append(leave, left)
			}
			continue
		}
		there = append(there, c)
		if _, holds := f.local.Store.(slotCounter); holds && left.Leave {
			here = append(here, left)
		}
	}
	if len(there) > 0 {
		f.store.Correct(there, f.orLocally(there, failed))
	}
	if _, holds := f.store.(slotCounter); holds && len(leave) > 0 {
		f.store.Correct(leave, nil)
	}
	if len(here) > 0 {
		f.local.Correct(here, failed)
	}
}

// orLocally returns a function that charges the local budgets with the Charges of corrections, and
// then calls failed.
func (f *Failover) orLocally(corrections []Correction, failed func(error)) func(error) {
	var charges []Correction
	for _, c := range corrections {
		if c.Charge > 0 {
			r := *c.Request // which belongs to the caller
			r.Outcome = Outcome{}
			charges = append(charges, Correction{Request: &r, Charge: c.Charge})
		}
	}
	if len(charges) == 0 {
		return failed
	}
	var once sync.Once
	return func(err error) {
		once.Do(func() { f.local.Correct(charges, nil) })
		if failed != nil {
			failed(err)
		}
	}
}

// Change implements [Store]. It changes store alone.
func (f *Failover) Change(ctx context.Context, c Change) error { return f.store.Change(ctx, c) }

// localStore is a [Store] that asks another store for the Part that one instance grants.
type localStore struct{ Store }

// Take implements [Store]. It looks up no overrides.
func (s localStore) Take(ctx context.Context, requests []Request) (bool, error) {
	parts := make([]Request, len(requests))
	for i := range requests {
		parts[i] = localRequest(&requests[i])
	}
	allowed, err := s.Store.Take(ctx, parts)
	for i := range requests {
		requests[i].Outcome = parts[i].Outcome
		requests[i].Outcome.Local = true
	}
	return allowed, err
}

// CountSlots implements slotCounter.
func (s localStore) CountSlots(requests []Request) { countSlots(s.Store, requests) }

// Correct implements [Store].
func (s localStore) Correct(corrections []Correction, failed func(error)) {
	corrections = slices.Clone(corrections)
	for i := range corrections {
		p := localRequest(corrections[i].Request)
		corrections[i].Request = &p
	}
	s.Store.Correct(corrections, failed)
}

// scriptCall returns the request with the limits and slots that one instance grants.
func localRequest(r *Request) Request {
	p := *r
	p.Override = nil
	p.Limits = slices.Clone(r.Limits)
	for i, l := range p.Limits {
		if l.Share != nil {
			p.Limits[i].Limit = l.Share
		}
	}
	if s := r.Slots; s != nil && s.Share > 0 {
		p.Slots = &Slots{ID: s.ID, Limit: s.Share}
	}
	return p
}
