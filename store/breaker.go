package store

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
)

// Checked is a store that can be asked whether it works, without taking anything.
type Checked interface {
	Store
	Check(ctx context.Context) error
}

// Breaker is a [Store] that passes on what it is asked to another one, until that
// has failed several times in a row. From then on it fails at once, and checks the
// other one in the background until it works again: no request waits for a store
// that doesn't answer. One failed [Breaker.Check] is enough, one denied permission
// ([ReasonPermission]), because the next request might be charged in part, and one silence while
// requests wait ([ReasonSilent]).
//
// Failures because of one key alone ([ReasonKey]) or of too many requests ([ReasonBusy]), and
// requests whose client has left, say nothing about a store. A [SharedError] is one failure, of
// however many requests it is.
type Breaker struct {
	store   Checked
	breaker *gobreaker.TwoStepCircuitBreaker[struct{}]
	open    atomic.Bool  // or half open: whether the store is not asked
	failing atomic.Bool  // whether the last result that was counted is a failure
	opened  atomic.Int64 // how many times it has opened

	closed context.Context
	close  context.CancelFunc

	last error // what became of the last request; the lock of breaker guards it
}

// The settings of a [Breaker].
const (
	// breakerFailures in a row open it.
	breakerFailures = 5
	// breakerPause is how long after a failure the store is checked again.
	breakerPause = 500 * time.Millisecond
	// breakerCheck is how long a check may take: longer than a request waits, for it
	// may have to find a new master and connect.
	breakerCheck = time.Second
)

// ErrOpen is the error beneath that of a [Breaker] which doesn't ask its store.
var ErrOpen = errors.New("the store has failed, and is not asked until it works again")

// NewBreaker returns a closed breaker before a store. changed, if not nil, is called
// when it opens, with the last failure, and when it closes, with nil.
func NewBreaker(store Checked, changed func(failure error)) *Breaker {
	b := &Breaker{store: store}
	b.closed, b.close = context.WithCancel(context.Background())
	b.breaker = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Timeout:    breakerPause,
		IsExcluded: func(err error) bool { return err != nil && (!isFailure(err) || alreadyCounted(err)) },
		IsSuccessful: func(err error) bool {
			b.last = err
			b.failing.Store(err != nil)
			return err == nil
		},
		ReadyToTrip: func(c gobreaker.Counts) bool {
			return c.ConsecutiveFailures >= breakerFailures || opensAtOnce(b.last)
		},
		OnStateChange: func(_ string, from, to gobreaker.State) {
			b.open.Store(to != gobreaker.StateClosed)
			switch {
			case from == gobreaker.StateClosed:
				b.opened.Add(1)
				go b.probe(changed, b.last)
			case to == gobreaker.StateClosed && changed != nil:
				go changed(nil) // the breaker is locked
			}
		},
	})
	return b
}

// SharedError is why several requests failed that were asked about together.
type SharedError struct {
	Err     error
	counted atomic.Bool
}

func (e *SharedError) Error() string { return e.Err.Error() }

// Unwrap returns the underlying error.
func (e *SharedError) Unwrap() error { return e.Err }

// alreadyCounted tells whether a failure has been counted before, and notes that it is now.
func alreadyCounted(err error) bool {
	shared, ok := errors.AsType[*SharedError](err)
	return ok && shared.counted.Swap(true)
}

// isFailure reports whether an error of a store is one that other requests are likely
// to meet, too.
func isFailure(err error) bool {
	failed, ok := errors.AsType[*Error](err)
	return ok && failed.Reason != ReasonKey && failed.Reason != ReasonBusy
}

// IsBusy reports whether an error is one with [ReasonBusy], which is no failure of the store.
func IsBusy(err error) bool {
	failed, ok := errors.AsType[*Error](err)
	return ok && failed.Reason == ReasonBusy
}

// opensAtOnce reports whether a failure needs no second one.
func opensAtOnce(err error) bool {
	failed, ok := errors.AsType[*Error](err)
	return ok && (failed.Reason == ReasonPermission || failed.Reason == ReasonSilent || failed.Reason == reasonCheck)
}

// reasonCheck is that of failed checks: they are no requests.
const reasonCheck = "check"

// Check checks the store. If that fails, the store isn't asked until it works; a ctx
// that is canceled, or over to begin with, says nothing about it.
func (b *Breaker) Check(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	done, err := b.breaker.Allow()
	if err != nil {
		return &Error{Reason: ReasonOpen, Err: ErrOpen}
	}
	if err = b.store.Check(ctx); err != nil && !errors.Is(ctx.Err(), context.Canceled) {
		err = &Error{Reason: reasonCheck, Err: err}
	}
	done(err)
	return err
}

// probe tells what the failure was, and checks the store again and again until it
// works.
func (b *Breaker) probe(changed func(error), failure error) {
	if changed != nil {
		changed(failure)
	}
	const soon = time.Millisecond // for the breaker to have noticed that the pause is over
	timer := time.NewTimer(breakerPause + soon)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-b.closed.Done():
			return
		}
		ctx, cancel := context.WithTimeout(b.closed, breakerCheck)
		err := b.Check(ctx)
		cancel()
		if err == nil {
			return
		}
		timer.Reset(breakerPause + soon)
	}
}

// Open tells whether the store is not asked at present.
func (b *Breaker) Open() bool { return b.open.Load() }

// Close ends the checks. The breaker can still be asked: if it is open then, what it is asked
// makes it check the store now and then.
func (b *Breaker) Close() { b.close() }

// revive checks the store if nobody else does any more, and the last failure is long enough ago.
func (b *Breaker) revive() {
	if b.closed.Err() == nil || b.breaker.State() != gobreaker.StateHalfOpen {
		return
	}
	go func() { // nobody waits for a store that doesn't answer
		ctx, cancel := context.WithTimeout(context.Background(), breakerCheck)
		defer cancel()
		_ = b.Check(ctx)
	}()
}

// Take implements [Store].
func (b *Breaker) Take(ctx context.Context, requests []Request) (allowed bool, err error) {
	err = b.Do(func() error {
		allowed, err = b.store.Take(ctx, requests)
		return err
	})
	return allowed, err
}

// CountSlots implements slotCounter, also while the breaker is open.
func (b *Breaker) CountSlots(requests []Request) { countSlots(b.store, requests) }

// slotLeaver is a [Store] that keeps its count of slots set. It must hear of slots that are left even
// while it isn't asked, or it would count them forever.
type slotLeaver interface {
	LeaveSlots(corrections []Correction)
}

// Correct implements [Store]. While the breaker is open, all corrections are lost.
func (b *Breaker) Correct(corrections []Correction, failed func(error)) {
	opened := b.opened.Load()
	lost := func(err error) {
		if failed != nil {
			failed(err)
		}
	}
	if b.Open() {
		if s, ok := b.store.(slotLeaver); ok {
			s.LeaveSlots(corrections)
		}
		lost(&Error{Reason: ReasonOpen, Err: ErrOpen})
		return
	}
	b.store.Correct(corrections, func(err error) {
		b.count(err, opened)
		lost(err)
	})
}

// Change implements [Store].
func (b *Breaker) Change(ctx context.Context, c Change) error {
	return b.Do(func() error { return b.store.Change(ctx, c) })
}

// Do calls ask, which asks the store something and returns its error, unless the
// breaker is open.
func (b *Breaker) Do(ask func() error) error {
	opened := b.opened.Load()
	if b.Open() { // half open is for checks
		b.revive()
		return &Error{Reason: ReasonOpen, Err: ErrOpen}
	}
	err := ask()
	b.count(err, opened)
	return err
}

// count counts a result. opened is how many times the breaker had opened before the store was asked:
// a result from before an outage says nothing. A success after a success changes nothing.
func (b *Breaker) count(err error, opened int64) {
	if err == nil && !b.failing.Load() || b.opened.Load() != opened {
		return
	}
	if done, open := b.breaker.Allow(); open == nil {
		done(err)
	}
}
