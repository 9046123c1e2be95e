package store

import (
	"context"
	"errors"
	"slices"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// Failover is a [Store] that decides by budgets of this process while the store it
// belongs to can't. They begin untouched with the first outage and are the same in
// later ones; nothing of them is charged to the store when it is back.
type Failover struct {
	store  Store
	local  Store
	failed func(error)
}

// NewFailover returns a store that asks local when store fails, and then calls
// failed with the reason. It asks for the Part of limits that have one.
func NewFailover(store, local Store, failed func(error)) *Failover {
	return &Failover{store: store, local: local, failed: failed}
}

// Take implements [Store]. It fails only for overrides, or if the caller has left. While
// store fails, the caller's overrides count. If a request is Local, store isn't asked.
func (f *Failover) Take(ctx context.Context, requests []Request) (bool, error) {
	if !slices.ContainsFunc(requests, func(r Request) bool { return r.Local }) {
		allowed, err := f.store.Take(ctx, requests)
		if err == nil || ctx.Err() != nil || IsOverridden(err) {
			return allowed, err
		}
		f.failed(err)
	}
	local := f.parts(requests)
	allowed, err := f.local.Take(ctx, local)
	for i := range requests {
		requests[i].Decisions = append(requests[i].Decisions[:0], local[i].Decisions...)
		for j := range requests[i].Decisions {
			requests[i].Decisions[j].Receipt.Local = true
		}
	}
	return allowed, err
}

// Refund implements [Store]. It gives back where the charge went.
func (f *Failover) Refund(ctx context.Context, requests []Request, n int64) error {
	if !slices.ContainsFunc(requests, isLocal) {
		return f.store.Refund(ctx, requests, n)
	}
	here := slices.DeleteFunc(slices.Clone(requests), func(r Request) bool { return !isLocal(r) })
	err := f.local.Refund(ctx, f.parts(here), n)
	if there := slices.DeleteFunc(slices.Clone(requests), isLocal); len(there) > 0 {
		err = errors.Join(err, f.store.Refund(ctx, there, n))
	}
	return err
}

// Renew implements [Store]. A charge stays where it is.
func (f *Failover) Renew(ctx context.Context, requests []Request) error {
	var there, here []Request // the memory of their decisions is the caller's
	for _, r := range requests {
		if isLocal(r) {
			here = append(here, r)
		} else {
			there = append(there, r)
		}
	}
	var err error
	if len(there) > 0 {
		err = f.store.Renew(ctx, there)
	}
	local := f.parts(here)
	err = errors.Join(err, f.local.Renew(ctx, local))
	for i, r := range here {
		for j, d := range local[i].Decisions {
			r.Decisions[j].Charged, r.Decisions[j].Receipt = d.Charged, d.Receipt
			r.Decisions[j].Receipt.Local = true
		}
	}
	return err
}

// Change implements [Store]: it is of store alone.
func (f *Failover) Change(ctx context.Context, c Change) error { return f.store.Change(ctx, c) }

// isLocal tells whether the store failed when the request was decided.
func isLocal(r Request) bool {
	return slices.ContainsFunc(r.Decisions, func(d algorithms.Decision) bool { return d.Receipt.Local })
}

// parts returns the requests with the limits of an instance on its own.
func (f *Failover) parts(requests []Request) []Request {
	parts := slices.Clone(requests)
	for i := range parts {
		parts[i].Overridable = false
		parts[i].Decisions = slices.Clone(parts[i].Decisions)
		parts[i].Limits = slices.Clone(parts[i].Limits)
		for j, l := range parts[i].Limits {
			if l.Part != nil {
				parts[i].Limits[j].Limit = l.Part
			}
		}
	}
	return parts
}
