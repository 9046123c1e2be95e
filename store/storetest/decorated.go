package storetest

import (
	"context"
	"sync/atomic"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Decorated gives a decorator the methods with an instant that the suite wants: they go
// past it.
type Decorated struct {
	store.Store
	Inner Store
	// LateRefunds tells that a decorator may notice late that something was given back:
	// once that is so, all goes past it.
	LateRefunds bool
	// Alone tells that what a decorator asks fails: it knows of no changes.
	Alone bool

	refunded atomic.Bool
}

// Take implements [store.Store].
func (d *Decorated) Take(ctx context.Context, requests []store.Request) (bool, error) {
	if d.LateRefunds && d.refunded.Load() {
		return d.Inner.Take(ctx, requests)
	}
	return d.Store.Take(ctx, requests)
}

// Refund implements [store.Store].
func (d *Decorated) Refund(ctx context.Context, requests []store.Request, n int64) error {
	d.refunded.Store(true)
	return d.Store.Refund(ctx, requests, n)
}

// TakeAt implements [Store].
func (d *Decorated) TakeAt(ctx context.Context, now algorithms.Micros, requests []store.Request) (bool, error) {
	return d.Inner.TakeAt(ctx, now, requests)
}

// RefundAt implements [Store].
func (d *Decorated) RefundAt(ctx context.Context, now algorithms.Micros, requests []store.Request, n int64) error {
	return d.Inner.RefundAt(ctx, now, requests, n)
}

// Renew implements [store.Store].
func (d *Decorated) Renew(ctx context.Context, requests []store.Request) error {
	d.refunded.Store(true)
	return d.Store.Renew(ctx, requests)
}

// ChangeAt implements [Store].
func (d *Decorated) ChangeAt(ctx context.Context, now algorithms.Micros, c store.Change) error {
	return d.Inner.ChangeAt(ctx, now, c)
}

// RenewAt implements [Store].
func (d *Decorated) RenewAt(ctx context.Context, now algorithms.Micros, requests []store.Request) error {
	return d.Inner.RenewAt(ctx, now, requests)
}
