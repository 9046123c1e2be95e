package redisstore

import (
	"context"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Redis is a [store.Store] in one Redis, or in a cluster. While a Redis doesn't work, calls that
// need it fail at once.
type Redis interface {
	store.Store
	// Check returns an error if a Redis doesn't run all commands that are needed. After that,
	// this Redis isn't asked until it works.
	Check(ctx context.Context) error
	// Failing returns the number of Redis servers that have failed, and aren't asked now.
	Failing() int
	// EvictionPolicy returns the eviction policy of a Redis, such as noeviction, and whether
	// its memory is bounded at all. If the user may not ask, it returns an error.
	EvictionPolicy(ctx context.Context) (policy string, bounded bool, err error)
	// Address returns the address of the Redis, without secrets.
	Address() string
	// String returns a text that identifies the budgets, without secrets.
	String() string
	// Close closes the connections when nothing is in flight any more. Methods can still be
	// called after that.
	Close() error
}

// Open returns the Redis of these options. It opens no connection. stepped is as in [New]. changed,
// if not nil, is called when a Redis at an address begins to fail, with the failure, and
// when it works again, with nil.
func Open(o Options, stepped func(back time.Duration), changed func(address string, failure error)) (Redis, error) {
	if o.Cluster {
		return NewCluster(o, stepped, changed)
	}
	s, err := New(o, stepped)
	if err != nil {
		return nil, err
	}
	b := store.NewBreaker(s, func(failure error) {
		if changed != nil {
			changed(s.Address(), failure)
		}
	})
	s.slotCounts.route = func(string) *Store {
		if b.Open() {
			return nil
		}
		return s
	}
	return single{b, s}, nil
}

// single is a Redis that is no cluster.
type single struct {
	*store.Breaker
	redis *Store
}

func (s single) Failing() int {
	if s.Open() {
		return 1
	}
	return 0
}

func (s single) EvictionPolicy(ctx context.Context) (policy string, bounded bool, err error) {
	return s.redis.EvictionPolicy(ctx)
}

func (s single) Address() string { return s.redis.Address() }

func (s single) String() string { return s.redis.String() }

func (s single) Close() error {
	s.Breaker.Close()
	return s.redis.Close()
}
