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

// SetFlying changes how many script calls may be under way of stores made from now on, none
// of them for the sake of time, and returns what undoes it.
func SetFlying(n int) func() {
	before := flying
	flying = flyingBounds{few: n, most: n}
	return func() { flying = before }
}

// AddressFrom is where a redirect by a node at another address leads to.
func AddressFrom(said, from string) string { return redirect{address: said}.addressFrom(from) }

// ProbeTimes makes n calls of the probe script in one round trip.
func ProbeTimes(s *Store, n int) (errs []error) {
	conns := s.acquire()
	defer s.release(conns)
	commands := make([]command, n)
	for i := range commands {
		commands[i] = command{script: probe, keys: []string{"number", "log"}}
	}
	for _, r := range s.run(context.Background(), conns, false, commands...) {
		errs = append(errs, r.err)
	}
	return errs
}

// Batches is how many requests wait for their turn, and how many script calls are under way.
func Batches(s *Store) (queued, flying int) {
	s.batcher.mu.Lock()
	defer s.batcher.mu.Unlock()
	return len(s.batcher.queue), s.batcher.flying
}

// SendOneBatch decides requests as if they had waited for their turn until now, as many of
// them as one script call may be for, and returns how many that were.
func SendOneBatch(s *Store, now algorithms.Micros, requests [][]store.Request) int {
	for _, r := range requests {
		s.batcher.queue = append(s.batcher.queue, newCall(time.Now().Add(time.Minute), r))
	}
	calls := s.nextCalls()
	s.batcher.queue = nil
	groups := make([][]store.Request, len(calls))
	for i, c := range calls {
		groups[i] = c.requests
	}
	s.ask(context.Background(), now, false, part{deadline: time.Now().Add(time.Minute), groups: groups})
	return len(calls)
}

// ForgetSlots makes the store renew no slot that was taken until now, as if its instance was
// killed.
func ForgetSlots(s store.Store) {
	var t *slotTable
	switch s := s.(type) {
	case *Store:
		t = s.slots
	case *Cluster:
		t = s.held
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.slots)
}
