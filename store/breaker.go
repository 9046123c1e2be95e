package store

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// Checked is a [Store] with a check.
type Checked interface {
	Store
	// Check returns nil if the store works. It charges nothing.
	Check(ctx context.Context) error
}

// Breaker is a [Store] that stops asking another store while that store doesn't work, so that no
// request waits in vain. The Breaker opens after 5 failures in a row. While it is open, all calls
// return an [Error] with [ReasonOpen] at once, and the Breaker checks the store every 500 ms. It
// closes when a check succeeds.
//
// One failure is enough to open the Breaker if it is
//
//   - a failed [Breaker.Check],
//   - a missing permission ([ReasonPermission]), because the next request might be charged in part,
//   - silence while requests wait ([ReasonSilent]).
//
// These don't count as failures: an error of a single key ([ReasonKey]), too many requests
// ([ReasonBusy]), and a request whose client has disconnected. A [SharedError] counts once.
type Breaker struct {
	store   Checked
	changed func(failure error) // or nil
	closed  context.Context
	close   context.CancelFunc

	mu       sync.Mutex // guards writes of the fields below
	open     atomic.Bool
	failures atomic.Int64 // in a row
	opened   atomic.Int64 // the number of times that the Breaker has opened
}

// The settings of a [Breaker].
const (
	// maxFailures is the number of failures in a row that open a Breaker.
	maxFailures = 5
	// checkPause is how long the Breaker waits before each check of the store.
	checkPause = 500 * time.Millisecond
	// checkTimeout is how long a check may take. It is longer than the timeout of a request,
	// because the check may have to find a new primary and connect.
	checkTimeout = time.Second
)

// ErrOpen is the underlying error of an [Error] with [ReasonOpen].
var ErrOpen = errors.New("the store has failed, and is not asked until it works again")

// NewBreaker returns a closed Breaker for a store. changed, if not nil, is called with the last failure
// when the Breaker opens, and with nil when it closes.
func NewBreaker(store Checked, changed func(failure error)) *Breaker {
	b := &Breaker{store: store, changed: changed}
	b.closed, b.close = context.WithCancel(context.Background())
	return b
}

// SharedError is one failure of several requests, for example of a message with all of them.
type SharedError struct {
	Err     error
	counted atomic.Bool
}

func (e *SharedError) Error() string { return e.Err.Error() }

// Unwrap returns the underlying error.
func (e *SharedError) Unwrap() error { return e.Err }

// alreadyCounted reports whether a [SharedError] was counted before, and marks it as counted.
func alreadyCounted(err error) bool {
	var shared *SharedError
	ok := errors.As(err, &shared)
	return ok && shared.counted.Swap(true)
}

// reasonOf returns the reason of an [Error], or "".
func reasonOf(err error) string {
	var failed *Error
	if errors.As(err, &failed) {
		return failed.Reason
	}
	return ""
}

// IsBusy reports whether an error is an [Error] with [ReasonBusy].
func IsBusy(err error) bool { return reasonOf(err) == ReasonBusy }

// reasonCheck is the Reason of a failed check. It is not exported, because no request fails with it.
const reasonCheck = "check"

// Check checks the store. If the check fails, the Breaker opens. A check whose ctx is canceled, or has
// ended before, doesn't count.
func (b *Breaker) Check(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return b.Do(func() error {
		err := b.store.Check(ctx)
		if err != nil && !errors.Is(ctx.Err(), context.Canceled) {
			err = &Error{Reason: reasonCheck, Err: err}
		}
		return err
	})
}

// checkUntilWorks reports the failure that opened the Breaker, and checks the store until a check succeeds. Then it
// closes the Breaker.
func (b *Breaker) checkUntilWorks(failure error) {
	b.report(failure)
	for {
		select {
		case <-time.After(checkPause):
		case <-b.closed.Done():
			return
		}
		ctx, cancel := context.WithTimeout(b.closed, checkTimeout)
		err := b.store.Check(ctx)
		cancel()
		if err == nil {
			break
		}
	}
	b.mu.Lock()
	b.failures.Store(0)
	b.open.Store(false)
	b.mu.Unlock()
	b.report(nil)
}

func (b *Breaker) report(failure error) {
	if b.changed != nil {
		b.changed(failure)
	}
}

// Open reports whether the Breaker is open, so that the store is not asked.
func (b *Breaker) Open() bool { return b.open.Load() }

// Close ends the checks. The Breaker can still be used, by the requests that are in flight. It then always asks the
// store.
func (b *Breaker) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.close()
	b.open.Store(false)
}

// Take implements [Store].
func (b *Breaker) Take(ctx context.Context, requests []ZoneRequest) (allowed bool, err error) {
	err = b.Do(func() error {
		allowed, err = b.store.Take(ctx, requests)
		return err
	})
	return allowed, err
}

// CountSlots implements [Store]. It reaches the store even while the Breaker is open.
func (b *Breaker) CountSlots(requests []ZoneRequest) { b.store.CountSlots(requests) }

// SlotLeaver is a [Store] that notes slots that are given back even while a [Breaker] is open. A remote
// store that keeps its own count must be a SlotLeaver, or it would count those slots forever.
type SlotLeaver interface {
	// LeaveSlots notes the slots that corrections give back, without asking a remote store.
	LeaveSlots(corrections []Correction)
}

// Correct implements [Store]. While the Breaker is open, all corrections are lost, except that a
// [SlotLeaver] notes slots that are given back.
func (b *Breaker) Correct(corrections []Correction, failed func(error)) {
	opened := b.opened.Load()
	lost := func(err error) {
		if failed != nil {
			failed(err)
		}
	}
	if b.Open() {
		if s, ok := b.store.(SlotLeaver); ok {
			s.LeaveSlots(corrections)
		}
		lost(&Error{Reason: ReasonOpen, Err: ErrOpen})
		return
	}
	b.store.Correct(corrections, func(err error) {
		b.countResult(err, opened)
		lost(err)
	})
}

// Change implements [Store].
func (b *Breaker) Change(ctx context.Context, c Change) error {
	return b.Do(func() error { return b.store.Change(ctx, c) })
}

// List implements [Store]. While the Breaker is open, List fails at once. The error of a list isn't
// counted, because requests can still be decided, for example if the user may not list keys.
func (b *Breaker) List(ctx context.Context, l Listing) (Page, error) {
	if b.Open() {
		return Page{}, &Error{Reason: ReasonOpen, Err: ErrOpen}
	}
	return b.store.List(ctx, l)
}

// Do calls ask, counts its error, and returns it. ask asks the store. If the Breaker is open, Do
// doesn't call ask.
func (b *Breaker) Do(ask func() error) error {
	opened := b.opened.Load()
	if b.Open() {
		return &Error{Reason: ReasonOpen, Err: ErrOpen}
	}
	err := ask()
	b.countResult(err, opened)
	return err
}

// countResult counts the result of a request. opened is the number of times that the Breaker had opened
// before the request. A result from before an outage says nothing, so countResult skips it. It also skips
// a success after a success, because that changes nothing.
func (b *Breaker) countResult(err error, opened int64) {
	if err == nil && b.failures.Load() == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.opened.Load() != opened || b.closed.Err() != nil:
	case err == nil:
		b.failures.Store(0)
	default:
		b.countFailureLocked(err)
	}
}

// countFailureLocked counts a failure of the store, and opens the Breaker if that is enough. Other requests are not
// likely to meet an error of a single key, or one without a reason.
func (b *Breaker) countFailureLocked(err error) {
	most := int64(maxFailures)
	switch reasonOf(err) {
	case "", ReasonKey, ReasonBusy:
		return
	case ReasonPermission, ReasonSilent, reasonCheck:
		most = 1
	}
	if alreadyCounted(err) || b.failures.Add(1) < most {
		return
	}
	b.open.Store(true)
	b.opened.Add(1)
	go b.checkUntilWorks(err)
}
