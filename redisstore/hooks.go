package redisstore

import (
	"maps"
	"slices"
	"time"
)

// Hooks are functions that a store calls while it works. Each of them may be nil. They may be called
// from several goroutines at once, and must return soon. The zero value observes nothing.
type Hooks struct {
	// ClockStepped is called when the clock of a Redis has stepped back by more than a second.
	// Budgets then continue from the new time.
	ClockStepped func(back time.Duration)
	// HealthChanged is called when the Redis at an address begins to fail, with the failure, and
	// when it works again, with nil. It is also called with nil when other nodes of a cluster have
	// taken over the slots of a node that failed. [New] never calls it, because a [Store] has no breaker.
	HealthChanged func(address string, failure error)
	// SharingDenied is called when a node of a cluster denies script calls for several hash slots, with its error. Each hash
	// slot then has its own call.
	SharingDenied func(address string, err error)
	// RoundTrip is called for each batch that got a reply of its Redis. took is the time from the request for a connection
	// until the reply. requests is how many requests, corrections and counts of slots the batch had. Calls for which
	// Redis lacks the script are not among them, and are sent again.
	RoundTrip func(took time.Duration, requests int)
}

// healthChanged calls HealthChanged.
func (h *Hooks) healthChanged(address string, failure error) {
	if h.HealthChanged != nil {
		h.HealthChanged(address, failure)
	}
}

// Stats is the state of a [Redis] at an instant. For a cluster it is about all nodes that are known.
type Stats struct {
	Servers int // at least 1
	Failing int // of the servers: they have failed, and get no calls now
	Queued  int // requests, corrections and counts of slots that wait to be sent
	InUse   int // connections that send a message, or wait for its reply
	Idle    int // connections that are open and unused
	PerSlot int // of the servers: nodes of a cluster with a script call for each hash slot; see [Options.DeclareKeys]
}

// stats returns the state of the store, which is that of one server that doesn't fail.
func (s *Store) stats() Stats {
	s.keys.mu.Lock()
	v := Stats{Servers: 1, Queued: len(s.queue.calls) + s.keys.countWaitingLocked(s)}
	s.keys.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns != nil {
		pool := s.conns.PoolStats()
		v.Idle = int(pool.IdleConns)
		v.InUse = max(int(pool.TotalConns)-v.Idle, 0)
	}
	return v
}

// Stats implements [Redis].
func (s single) Stats() Stats {
	v := s.redis.stats()
	if s.Open() {
		v.Failing = 1
	}
	return v
}

// Stats implements [Redis]. While no slots are known, because no node replied with them, one more
// server counts, and fails.
func (c *Cluster) Stats() (sum Stats) {
	c.mu.Lock()
	nodes := slices.Collect(maps.Values(c.nodes))
	if c.refreshErr != nil {
		sum.Servers++
		sum.Failing++
	}
	c.mu.Unlock()
	for _, n := range nodes {
		v := n.stats()
		sum.Servers++
		sum.Queued += v.Queued
		sum.InUse += v.InUse
		sum.Idle += v.Idle
		if n.breaker.Open() {
			sum.Failing++
		}
		if n.sharing.Denied() {
			sum.PerSlot++
		}
	}
	sum.Servers = max(sum.Servers, 1)
	return sum
}
