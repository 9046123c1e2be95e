package store_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// failing is a store in memory that fails on demand.
type failing struct {
	storetest.Store
	err    atomic.Pointer[error]
	asked  atomic.Int64
	checks atomic.Int64
}

var (
	_ store.Store      = (*failing)(nil)
	_ store.SlotLeaver = (*failing)(nil)
)

func (f *failing) fail(err error) { f.err.Store(&err) }

func (f *failing) failure() error {
	if err := f.err.Load(); err != nil {
		return *err
	}
	return nil
}

func (f *failing) Change(ctx context.Context, c store.Change) error {
	if err := f.failure(); err != nil {
		return err
	}
	return f.Store.Change(ctx, c)
}

func (f *failing) Take(ctx context.Context, requests []store.ZoneRequest) (bool, error) {
	f.asked.Add(1)
	if err := f.failure(); err != nil {
		return false, err
	}
	return f.Store.Take(ctx, requests)
}

// CountSlots counts slots even while the store fails, because it only notes its own count.
func (f *failing) CountSlots(r []store.ZoneRequest) { f.Store.(*store.Memory).CountSlots(r) }

// LeaveSlots gives back slots even while the store fails.
func (f *failing) LeaveSlots(corrections []store.Correction) {
	for _, c := range corrections {
		f.Store.Correct([]store.Correction{{Request: c.Request, Leave: c.Leave}}, nil)
	}
}

func (f *failing) Correct(corrections []store.Correction, failed func(error)) {
	err := f.failure()
	if err == nil {
		f.Store.Correct(corrections, failed)
		return
	}
	f.LeaveSlots(corrections)
	if failed != nil {
		failed(err)
	}
}

// cancelKey is the key of a context's cancel function, which Check calls first.
type cancelKey struct{}

func (f *failing) Check(ctx context.Context) error {
	f.checks.Add(1)
	if cancel, ok := ctx.Value(cancelKey{}).(context.CancelFunc); ok {
		cancel()
	}
	return f.failure()
}

func newFailing() *failing {
	return &failing{Store: store.NewSharedMemory().Bounded(1000, zoneCount(1), nil)}
}

var errGone = &store.Error{Reason: store.ReasonConnection, Err: errors.New("it is gone")}

func TestBreakerConforms(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Store {
		f := newFailing()
		b := store.NewBreaker(f, nil)
		t.Cleanup(b.Close)
		return &storetest.Decorated{Store: b, Inner: f}
	})
}

// If the main store never works, a failover decides as any store does.
func TestFailoverConforms(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Store {
		f := newFailing()
		f.fail(errGone)
		b := store.NewBreaker(f, nil)
		t.Cleanup(b.Close)
		local := store.NewSharedMemory().Bounded(1000, zoneCount(1), nil)
		return &storetest.Decorated{Store: store.NewFailover(b, local, func(error) {}), Inner: local, Alone: true}
	})
}

// After five failures in a row the store is not asked, until a check succeeds.
func TestBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFailing()
		var changes []error
		var mu sync.Mutex
		b := store.NewBreaker(f, func(failure error) {
			mu.Lock()
			defer mu.Unlock()
			changes = append(changes, failure)
		})
		defer b.Close()
		take := func() error {
			_, err := b.Take(t.Context(), []store.ZoneRequest{{Zone: "z", Key: "k", Cost: 1, Limits: []store.Limit{fixedWindow(t, 1000, time.Hour)}}})
			return err
		}
		others := []error{ // which are no failures of the store
			context.Canceled, &store.Error{Reason: store.ReasonKey, Err: errors.New("a hash")},
		}
		for i := range 20 {
			f.fail(others[i%2])
			if err := take(); !errors.Is(err, others[i%2]) {
				t.Errorf("error %v", err)
			}
		}
		for range 4 {
			f.fail(errGone)
			_ = take()
		}
		f.fail(nil)
		if err := take(); err != nil || b.Open() {
			t.Fatalf("after four failures and a success: %v, open %v", err, b.Open())
		}
		f.fail(errGone)
		asked := f.asked.Load()
		for i := range 100 {
			err := take()
			if i < 5 != errors.Is(err, errGone) || i >= 5 != errors.Is(err, store.ErrOpen) {
				t.Fatalf("failure %d: %v", i+1, err)
			}
		}
		if got := f.asked.Load() - asked; got != 5 || !b.Open() {
			t.Errorf("the store was asked %d times, open %v", got, b.Open())
		}
		time.Sleep(time.Minute)
		if checks := f.checks.Load(); checks < 110 || checks > 120 {
			t.Errorf("%d checks in a minute", checks)
		}
		if f.asked.Load() != asked+5 {
			t.Error("a request was asked of a store that fails")
		}
		f.fail(nil)
		time.Sleep(2 * time.Second)
		f.fail(errGone)
		_ = take() // the first in a row again
		f.fail(nil)
		if err := take(); err != nil || b.Open() {
			t.Errorf("once it works again: %v, open %v", err, b.Open())
		}
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if len(changes) != 2 || !errors.Is(changes[0], errGone) || changes[1] != nil {
			t.Errorf("changes reported: %v", changes)
		}
	})
}

// An error of many requests at once counts as one failure, so it takes five such errors to open a
// breaker.
func TestBreakerCountsSharedErrorsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFailing()
		b := store.NewBreaker(f, nil)
		defer b.Close()
		for together := range 5 {
			if b.Open() {
				t.Fatalf("open after %d failures", together)
			}
			f.fail(&store.Error{Reason: store.ReasonConnection, Err: &store.SharedError{Err: errGone}})
			for range 100 {
				_, _ = b.Take(t.Context(), []store.ZoneRequest{{Zone: "z", Key: "k", Cost: 1, Limits: []store.Limit{fixedWindow(t, 1000, time.Hour)}}})
			}
		}
		if !b.Open() {
			t.Error("not open after five failures")
		}
	})
}

// One missing permission opens the breaker, because the next request might be charged in part. One failed
// check opens it, too. A check that was given up doesn't count.
func TestBreakerOpensAtOnce(t *testing.T) {
	denied := &store.Error{Reason: store.ReasonPermission, Err: errors.New("NOPERM")}
	take := func(t *testing.T, b *store.Breaker) error {
		_, err := b.Take(t.Context(), []store.ZoneRequest{{Zone: "z", Key: "k", Cost: 1, Limits: []store.Limit{fixedWindow(t, 1000, time.Hour)}}})
		return err
	}
	tests := []struct {
		name    string
		failure error
		ask     func(*testing.T, *store.Breaker) error
		opens   bool
	}{
		{"a permission", denied, take, true},
		{"a check", errGone, func(t *testing.T, b *store.Breaker) error { return b.Check(t.Context()) }, true},
		{"a check without an answer", context.DeadlineExceeded, func(t *testing.T, b *store.Breaker) error { return b.Check(t.Context()) }, true},
		{"a check that was given up", context.Canceled, func(t *testing.T, b *store.Breaker) error {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			return b.Check(ctx)
		}, false},
		{"a check that is given up while it is under way", context.Canceled, func(t *testing.T, b *store.Breaker) error {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			return b.Check(context.WithValue(ctx, cancelKey{}, cancel))
		}, false},
		{"a check without time", context.DeadlineExceeded, func(t *testing.T, b *store.Breaker) error {
			ctx, cancel := context.WithTimeout(t.Context(), 0)
			defer cancel()
			return b.Check(ctx)
		}, false},
		{"another failure", errGone, take, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFailing()
				b := store.NewBreaker(f, nil)
				defer b.Close()
				if err := b.Check(t.Context()); err != nil || b.Open() {
					t.Fatalf("to begin with: %v, open %v", err, b.Open())
				}
				f.fail(test.failure)
				if err := test.ask(t, b); !errors.Is(err, test.failure) || b.Open() != test.opens {
					t.Errorf("error %v, open %v, want %v", err, b.Open(), test.opens)
				}
				if !test.opens {
					return
				}
				if err := b.Check(t.Context()); !errors.Is(err, store.ErrOpen) {
					t.Errorf("a check while it is open: %v", err)
				}
				time.Sleep(10 * time.Second)
				if err := take(t, b); !errors.Is(err, store.ErrOpen) || f.asked.Load() > 1 {
					t.Errorf("error %v, asked %d times", err, f.asked.Load())
				}
				f.fail(nil)
				time.Sleep(time.Second)
				if err := take(t, b); err != nil || b.Open() {
					t.Errorf("once it works again: %v, open %v", err, b.Open())
				}
			})
		})
	}
}

// Corrections that fail count as failures. While the breaker is open, corrections are lost.
func TestBreakerCorrects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFailing()
		b := store.NewBreaker(f, nil)
		defer b.Close()
		r := []store.ZoneRequest{{Zone: "z", Key: "k", Cost: 1, Limits: []store.Limit{fixedWindow(t, 10, time.Hour)}}}
		for range 6 {
			errtest.None(t, errtest.Of(b.Take(t.Context(), r)))
		}
		remaining := func() int64 {
			peek := []store.ZoneRequest{{Zone: "z", Key: "k", Limits: r[0].Limits}}
			errtest.None(t, errtest.Of(f.Store.Take(t.Context(), peek)))
			return peek[0].Outcome.Decisions[0].Remaining
		}
		b.Correct(storetest.Refunds(r, 1), func(err error) { t.Errorf("correct: %v", err) })
		if got := remaining(); got != 5 {
			t.Errorf("%d remaining, want 5", got)
		}
		f.fail(errGone)
		var errs []error
		for range 5 {
			b.Correct(storetest.Refunds(r, 1), func(err error) { errs = append(errs, err) })
			b.Correct(nil, nil)
		}
		if !b.Open() || len(errs) == 0 || !errors.Is(errs[0], errGone) {
			t.Errorf("open %v after %v", b.Open(), errs)
		}
		f.fail(nil)
		var lost error
		b.Correct(storetest.Refunds(r, 1), func(err error) { lost = err })
		b.Correct(storetest.Refunds(r, 1), nil)
		var failed *store.Error
		if !errors.As(lost, &failed) || failed.Reason != store.ReasonOpen || remaining() != 5 {
			t.Errorf("while it is open: %v, %d remaining", lost, remaining())
		}
	})
}

// healthy is a store whose checks succeed.
type healthy struct{ storetest.Store }

func (healthy) Check(context.Context) error { return nil }

// A request that began before the breaker opened neither closes it when it ends, nor opens it again.
func TestBreakerIgnoresOldResults(t *testing.T) {
	denied := &store.Error{Reason: store.ReasonPermission, Err: errors.New("denied")}
	for _, old := range []error{nil, denied} {
		for _, lasts := range []time.Duration{0, time.Second} { // by then a check has closed it
			synctest.Test(t, func(t *testing.T) {
				b := store.NewBreaker(healthy{}, nil)
				defer b.Close()
				_ = b.Do(func() error {
					_ = b.Do(func() error { return denied })
					time.Sleep(lasts)
					return old
				})
				if b.Open() != (lasts == 0) {
					t.Errorf("after %v and %v: open %v", lasts, old, b.Open())
				}
			})
		}
	}
}

// A closed breaker asks the store in any case, for the requests that are in flight.
func TestBreakerAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := store.NewBreaker(healthy{}, nil)
		for n := range 2 {
			_ = b.Do(func() error { return &store.Error{Reason: store.ReasonPermission, Err: errGone} })
			if b.Open() != (n == 0) {
				t.Errorf("failure %d: open %v", n+1, b.Open())
			}
			if b.Close(); b.Open() {
				t.Error("open after it was closed")
			}
		}
	})
}
