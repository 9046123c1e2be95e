package redisstore

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore/internal/nodes"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore/internal/sharing"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Patient is a timeout that no test reaches, even on a slow machine.
const Patient = time.Minute

// MaxStall is how long a message can have no reply until others are sent.
const MaxStall = maxStall

// MustNew returns a store with these options. An error ends the test.
func MustNew(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := New(o, Hooks{})
	errtest.None(t, err)
	return s
}

// SetClockReading sets the last reading of the clock of Redis, as if it had just arrived.
func SetClockReading(s *Store, shown time.Time) {
	s.lastReading = clockReading{redis: shown.UnixMicro(), local: time.Now()}
}

// ForgetClock lets the next operation ask for the time.
func ForgetClock(s *Store) { s.lastReading = clockReading{} }

// DropUsed drops the calls and batches that would be used again.
func DropUsed(s *Store) {
	for s.endedCalls.Get() != nil {
	}
	for batches.Get().(*batch).made != nil {
	}
}

// WithMaxInFlight returns the options of a store with at most n batches in flight.
func WithMaxInFlight(o Options, n int) Options {
	o.maxInFlight = n
	return o
}

// ResolveRedirect returns the address of a redirect from the node at another address.
func ResolveRedirect(address, from string) string {
	return nodes.Redirect{Address: address}.Resolve(from)
}

// QueueLengths returns how many calls are queued, and how many batches are in flight.
func QueueLengths(s *Store) (queued, inFlight int) {
	s.keys.mu.Lock()
	defer s.keys.mu.Unlock()
	return len(s.queue.calls), len(s.queue.inFlight)
}

// SendOneBatch takes for requests as if they had been queued until now, for as many as fit in one
// batch. It returns their number.
func SendOneBatch(s *Store, now algorithms.Micros, requests [][]store.ZoneRequest) int {
	q := &s.queue
	s.keys.mu.Lock()
	for _, r := range requests {
		c := s.newTakeCall(context.Background(), 0, r)
		c.now, c.onEnd = now, func(*pendingCall) {}
		q.calls = append(q.calls, c)
	}
	b := s.nextBatchLocked()
	q.calls = nil
	s.keys.mu.Unlock()
	n := len(b.calls)
	s.sendBatch(b)
	s.finishAndNext(b)
	return n
}

// TakeTogether takes for requests as if they had been queued until now, and returns how many messages that took, and
// the errors of the takes. It allocates as takes at the same time do.
func TakeTogether(s *Store, requests [][]store.ZoneRequest, errs []error) (messages int) {
	q := &s.queue
	s.keys.mu.Lock()
	for _, r := range requests {
		c := s.newTakeCall(context.Background(), 0, r)
		c.queued = time.Now().Add(time.Hour) // so none has waited for too long
		q.calls = append(q.calls, c)
	}
	calls := slices.Clone(q.calls)
	b := s.nextBatchLocked()
	s.keys.mu.Unlock()
	for ; b != nil; messages++ {
		s.sendBatch(b)
		b = s.finishAndNext(b)
	}
	for i, c := range calls {
		<-c.done
		errs[i] = toStoreError(context.Background(), c.err)
		s.releaseCall(c)
	}
	return messages
}

// SharesAs reports whether a batch has one message for a hash slot that shares a script call first, and then does not, or
// the other way round.
func SharesAs(first, then bool) bool {
	b := newBatch()
	of := func(shares bool) *message { return b.messageOf(5, func() bool { return shares }) }
	return of(first) == of(then) && len(b.messages) == 1
}

// SendSeparately sends a script call for each take, all in one round trip as in a cluster, and
// returns their errors.
func SendSeparately(s *Store, requests [][]store.ZoneRequest) (errs []error) {
	s.sharing = sharing.New(true, nil)
	defer func() { s.sharing = nil }()
	b := newBatch()
	for _, r := range requests {
		c := s.newTakeCall(context.Background(), 0, r)
		c.onEnd = func(c *pendingCall) { errs = append(errs, c.err) }
		b.calls = append(b.calls, c)
	}
	s.sendBatch(b)
	return errs
}

// Kill makes a store behave as if its instance had been killed: the store no longer sets counts.
func Kill(s store.Store) {
	var counts *keyStates
	switch s := s.(type) {
	case *Store:
		counts = s.keys
	case *Cluster:
		counts = s.keys
	}
	counts.mu.Lock()
	defer counts.mu.Unlock()
	counts.route = func(string) *Store { return nil }
}

// InBubble runs a test in simulated time.
func InBubble(t *testing.T, do func(*testing.T)) {
	t.Helper()
	synctest.Test(t, do)
	// Timers of one bubble must not be used in another one. The client of Redis keeps some in a sync.Pool, which two
	// collections empty.
	runtime.GC()
	runtime.GC()
}
