package redisstore

import (
	"context"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Pretend makes the store believe that Redis' clock showed this a moment ago.
func Pretend(s *Store, shown time.Time) {
	s.clock = clock{redis: shown.UnixMicro(), seen: time.Now()}
}

// SetFlying changes how many messages may be in flight of stores made from now on, none
// of them for the sake of time, and returns what undoes it.
func SetFlying(n int) func() {
	before := defaultBounds
	defaultBounds = inFlightBounds{eager: n, max: n}
	return func() { defaultBounds = before }
}

// AddressFrom is where a redirect by a node at another address leads to.
func AddressFrom(said, from string) string { return redirect{address: said}.addressFrom(from) }

// Batches returns how many calls are queued, and how many messages are in flight.
func Batches(s *Store) (queued, flying int) {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	return len(s.queue.calls), s.queue.inFlight
}

// SendOneBatch decides requests as if they had been queued until now, as many of them as one
// message may be for, and returns how many that were.
func SendOneBatch(s *Store, now algorithms.Micros, requests [][]store.Request) int {
	q := &s.queue
	q.mu.Lock()
	for _, r := range requests {
		c := s.newTake(context.Background(), 0, r)
		c.now, c.onEnd = now, func(*pendingCall) {}
		q.calls = append(q.calls, c)
	}
	q.inFlight++
	b := s.nextBatchLocked()
	q.calls = nil
	q.mu.Unlock()
	n := len(b.calls)
	s.send(b, false)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.inFlight--
	return n
}

// SendApart sends a message for each of some takes, all in one round trip as in a cluster, and
// returns their errors.
func SendApart(s *Store, requests [][]store.Request) (errs []error) {
	s.options.Cluster = true
	defer func() { s.options.Cluster = false }()
	b := new(batch)
	for _, r := range requests {
		c := s.newTake(context.Background(), 0, r)
		c.onEnd = func(c *pendingCall) { errs = append(errs, c.err) }
		b.calls = append(b.calls, c)
	}
	s.send(b, false)
	return errs
}

// Misroute makes a cluster ask another node for a slot than the one that has it. That node's queue
// stands still for a while.
func Misroute(c *Cluster, key string, d time.Duration) {
	slot := c.names().Slot(key)
	right := c.slots[slot].Load()
	var wrong *node
	c.mu.Lock()
	for _, n := range c.nodes {
		if n != right {
			wrong = n
		}
	}
	c.mu.Unlock()
	c.slots[slot].Store(wrong)
	q := &wrong.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	before := q.bounds
	q.bounds = inFlightBounds{}
	time.AfterFunc(d, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.bounds = before
		wrong.scheduleSendLocked()
	})
}

// Kill makes a store act as if its instance was killed: it sets no count any more.
func Kill(s store.Store) {
	var f *slotCounts
	switch s := s.(type) {
	case *Store:
		f = s.slotCounts
	case *Cluster:
		f = s.slotCounts
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.route = func(string) *Store { return nil }
}
