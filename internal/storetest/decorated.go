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
	// LateRefunds says that a decorator may notice late that something was given back. Then
	// all requests after the first correction go past it.
	LateRefunds bool
	// Alone says that the store behind a decorator fails: it knows of no changes.
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

// Correct implements [store.Store].
func (d *Decorated) Correct(corrections []store.Correction, failed func(error)) {
	d.refunded.Store(true)
	d.Store.Correct(corrections, failed)
}

// TakeAt implements [Store].
func (d *Decorated) TakeAt(ctx context.Context, now algorithms.Micros, requests []store.Request) (bool, error) {
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
