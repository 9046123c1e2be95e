package store

import (
	"context"
	"slices"
	"sync"
)

// Failover is a [Store] that decides by budgets of this process while the store it
// belongs to can't. They begin untouched with the first outage and are the same in
// later ones; nothing of them is charged to the store when it is back.
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

// Take implements [Store]. It fails only for overrides, or if the caller has left. While
// store fails, the caller's overrides count.
func (f *Failover) Take(ctx context.Context, requests []Request) (bool, error) {
	allowed, err := f.store.Take(ctx, requests)
	if err == nil || ctx.Err() != nil || IsOverridden(err) {
		return allowed, err
	}
	f.failed(err)
	return f.local.Take(ctx, requests)
}

// Correct implements [Store]. It corrects where Take charged. A Charge that store may have
// lost is charged to the local budgets.
func (f *Failover) Correct(corrections []Correction, failed func(error)) {
	isLocal := func(c Correction) bool { return c.Request.Outcome.Local }
	if !slices.ContainsFunc(corrections, isLocal) {
		f.store.Correct(corrections, f.orLocally(corrections, failed))
		return
	}
	var here, there []Correction
	for _, c := range corrections {
		if isLocal(c) {
			here = append(here, c)
		} else {
			there = append(there, c)
		}
	}
	f.local.Correct(here, failed)
	if len(there) > 0 {
		f.store.Correct(there, f.orLocally(there, failed))
	}
}

// orLocally returns failed, made to charge locally what the corrections charge in addition.
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

// Change implements [Store]: it is of store alone.
func (f *Failover) Change(ctx context.Context, c Change) error { return f.store.Change(ctx, c) }

// localStore is a [Store] that asks another one for the part of an instance on its own.
type localStore struct{ Store }

// Take implements [Store]. It asks about no overrides.
func (s localStore) Take(ctx context.Context, requests []Request) (bool, error) {
	parts := make([]Request, len(requests))
	for i := range requests {
		parts[i] = part(&requests[i])
	}
	allowed, err := s.Store.Take(ctx, parts)
	for i := range requests {
		requests[i].Outcome = parts[i].Outcome
		requests[i].Outcome.Local = true
	}
	return allowed, err
}

// Correct implements [Store].
func (s localStore) Correct(corrections []Correction, failed func(error)) {
	corrections = slices.Clone(corrections)
	for i := range corrections {
		p := part(corrections[i].Request)
		corrections[i].Request = &p
	}
	s.Store.Correct(corrections, failed)
}

// part returns the request with the limits and slots of an instance on its own.
func part(r *Request) Request {
	p := *r
	p.Override = nil
	p.Limits = slices.Clone(r.Limits)
	for i, l := range p.Limits {
		if l.Part != nil {
			p.Limits[i].Limit = l.Part
		}
	}
	if s := r.Slots; s != nil && s.Part > 0 {
		p.Slots = &Slots{ID: s.ID, Limit: s.Part}
	}
	return p
}
