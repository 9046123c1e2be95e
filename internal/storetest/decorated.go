package storetest

import (
	"context"
	"sync/atomic"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Decorated is a [Store] made of a wrapper and the store that it wraps. The methods with an instant, which
// a wrapper doesn't have, go directly to the wrapped store.
type Decorated struct {
	store.Store
	Inner Store
	// LateRefunds reports whether the wrapper may notice a refund late. Then all requests after
	// the first correction go directly to the wrapped store.
	LateRefunds bool
	// Alone reports whether Inner doesn't get changes, because it is the local store of a Failover.
	Alone bool

	refunded atomic.Bool
}

// Take implements [store.Store].
func (d *Decorated) Take(ctx context.Context, requests []store.ZoneRequest) (bool, error) {
	if d.LateRefunds && d.refunded.Load() {
		return d.Inner.Take(ctx, requests)
	}
	return d.Store.Take(ctx, requests)
}

// Correct implements [store.Store].
func (d *Decorated) Correct(corrections []store.Correction, failed func(error)) {
	d.refunded.Store(true)
	d.Store.Correct(corrections, failed)
}

// TakeAt implements [Store].
func (d *Decorated) TakeAt(ctx context.Context, now algorithms.Micros, requests []store.ZoneRequest) (bool, error) {
	return d.Inner.TakeAt(ctx, now, requests)
}

// CorrectAt implements [Store].
func (d *Decorated) CorrectAt(ctx context.Context, now algorithms.Micros, corrections []store.Correction) error {
	return d.Inner.CorrectAt(ctx, now, corrections)
}

// ChangeAt implements [Store].
func (d *Decorated) ChangeAt(ctx context.Context, now algorithms.Micros, c store.Change) error {
	return d.Inner.ChangeAt(ctx, now, c)
}
