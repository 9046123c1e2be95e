package store

import (
	"context"
	"slices"
	"sync"
)

// Failover is a [Store] that asks a second store with budgets of this process, the local store, while
// the main store fails. The main store is usually a [DenyCache].
//
// The local budgets are untouched when the first outage begins. Later outages continue with the
// charges of earlier ones. No charge moves from one store to the other.
//
// Slots are counted in both stores at all times. So requests in flight when an outage begins or ends keep
// their slots. The local store knows all requests of this process. If they leave no room for a slot that
// the main store has granted, the local store decides. The main store can grant such a slot if it has lost
// its counts, or if it grants the slot late, after the local store has granted others. So the requests of
// this process in flight never exceed the Limit of the slots.
type Failover struct {
	store  Store
	local  localStore
	failed func(error)
}

// NewFailover returns a Failover for a main store and a local store. The local store decides by the
// Share of limits and slots, if they have one. failed is called with each error of the main store
// that makes the local store decide, or because of which a charge can't be given back.
func NewFailover(store Store, local *Memory, failed func(error)) *Failover {
	return &Failover{store: store, local: localStore{local}, failed: failed}
}

// Take implements [Store]. An error is an [OverriddenError], an [Error] with [ReasonBusy], an error
// after ctx has ended, or an error of the local store. While the main store fails, the overrides of
// the requests apply.
func (f *Failover) Take(ctx context.Context, requests []ZoneRequest) (bool, error) {
	allowed, err := f.store.Take(ctx, requests)
	switch {
	case err == nil && f.admitSlots(requests):
		f.keepHolds(ctx, requests)
		return allowed, nil
	case err == nil:
		f.store.Correct(FullRefunds(requests), f.failed)
	case !localDecides(ctx, err):
		return allowed, err
	default:
		f.failed(err)
	}
	if allowed, err = f.local.Take(ctx, requests); err == nil && slices.ContainsFunc(requests, tookSlot) {
		f.store.CountSlots(requests)
	}
	return allowed, err
}

// keepHolds makes the local store keep the bans by responses that deny requests, so that these keys are held in an outage, too.
func (f *Failover) keepHolds(ctx context.Context, requests []ZoneRequest) {
	for i := range requests {
		if r := &requests[i]; r.Outcome.Verdict == Banned && r.IsHeldByResponses() && !r.Outcome.Cached {
			_ = f.local.Change(ctx, r.Hold(r.Outcome.Ban.EndsAfter)) // never fails
		}
	}
}

// Peek is Take for requests that are peeks. If the local store decides, failure is the error of the main store.
// Peek doesn't report it.
func (f *Failover) Peek(ctx context.Context, requests []ZoneRequest) (allowed bool, failure, err error) {
	if allowed, err = f.store.Take(ctx, requests); err == nil || !localDecides(ctx, err) {
		return allowed, nil, err
	}
	failure = err
	allowed, err = f.local.Take(ctx, requests)
	return allowed, failure, err
}

// localDecides reports whether the local store decides after an error of the main store.
func localDecides(ctx context.Context, err error) bool {
	return ctx.Err() == nil && !IsOverridden(err) && !IsBusy(err)
}

// admitSlots makes the local store count the slots that requests have taken from the main store. It
// reports false if there is no room for them.
func (f *Failover) admitSlots(requests []ZoneRequest) bool {
	return !slices.ContainsFunc(requests, tookSlot) || f.local.AdmitSlots(requests)
}

func tookSlot(r ZoneRequest) bool { return r.Outcome.Slots.Taken }

// Correct implements [Store]. It corrects the store that decided the request, but gives slots back to
// both stores. The local store comes first, because the main store may grant the slot again at once. If the
// main store may have lost a Charge, the local store is charged.
func (f *Failover) Correct(corrections []Correction, failed func(error)) {
	var toStore, toLocal, leaveStore []Correction
	for _, c := range corrections {
		leave := Correction{Request: c.Request, Leave: c.Leave && c.Request.Outcome.Slots.Taken}
		if c.Request.Outcome.Local {
			toLocal = append(toLocal, c)
			if leave.Leave {
				leaveStore = append(leaveStore, leave)
			}
			continue
		}
		toStore = append(toStore, c)
		if leave.Leave {
			toLocal = append(toLocal, leave)
		}
	}
	if len(toLocal) > 0 {
		f.local.Correct(toLocal, failed)
	}
	if len(toStore) > 0 {
		f.store.Correct(toStore, f.orChargeLocally(toStore, failed))
	}
	if len(leaveStore) > 0 {
		f.store.Correct(leaveStore, nil)
	}
}

// orChargeLocally returns a function for failures to make corrections. The function charges the
// Charges of the corrections to the local store, once, and then calls failed.
func (f *Failover) orChargeLocally(corrections []Correction, failed func(error)) func(error) {
	var charges []Correction
	for _, c := range corrections {
		if c.Charge > 0 {
			r := *c.Request // a copy, because the request belongs to the caller
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

// CountSlots implements [Store]. It counts in both stores.
func (f *Failover) CountSlots(requests []ZoneRequest) {
	f.local.CountSlots(requests)
	f.store.CountSlots(requests)
}

// Change implements [Store]. It changes only the main store. A ban that a response begins stands in the local store, too, so an
// outage doesn't end it here.
func (f *Failover) Change(ctx context.Context, c Change) error {
	if c.Holds {
		_ = f.local.Change(ctx, c) // never fails
	}
	return f.store.Change(ctx, c)
}

// List implements [Store]. It lists only what the main store has.
func (f *Failover) List(ctx context.Context, l Listing) (Page, error) { return f.store.List(ctx, l) }

// localStore is a [Memory] that passes requests on with the Share of their limits and slots, and without their
// overrides. It marks their Outcomes as Local.
type localStore struct{ *Memory }

// Take implements [Store].
func (s localStore) Take(ctx context.Context, requests []ZoneRequest) (bool, error) {
	shares := make([]ZoneRequest, len(requests))
	for i := range requests {
		shares[i] = shareOf(&requests[i])
	}
	allowed, err := s.Memory.Take(ctx, shares)
	for i := range requests {
		requests[i].Outcome = shares[i].Outcome
		requests[i].Outcome.Local = true
	}
	return allowed, err
}

// Correct implements [Store].
func (s localStore) Correct(corrections []Correction, failed func(error)) {
	corrections = slices.Clone(corrections)
	for i := range corrections {
		share := shareOf(corrections[i].Request)
		corrections[i].Request = &share
	}
	s.Memory.Correct(corrections, failed)
}

// shareOf returns a request with the Share of its limits and slots, and without its override.
func shareOf(r *ZoneRequest) ZoneRequest {
	share := *r
	share.Override = nil
	share.Limits = slices.Clone(r.Limits)
	for i := range share.Limits {
		share.Limits[i].Limit = share.Limits[i].localLimit()
	}
	if s := r.Slots; s != nil {
		share.Slots = &Slots{ID: s.ID, Limit: s.localLimit()}
	}
	return share
}
