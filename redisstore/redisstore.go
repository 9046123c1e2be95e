// Package redisstore keeps budgets in Redis, where any number of processes share them. One script decides and charges all
// limits of a request, atomically, by the clock of Redis. In a cluster that holds for the limits of one key, and mostly for
// keys of one node. Concurrent requests share script calls. Without Redis, the package never decides: it returns an error.
//
// [Open] returns a [Redis], which is a [store.Store]. It is a [Store] for a single Redis or for Sentinels, or a [Cluster].
// It works in any Go program; the package example limits an HTTP handler. While Redis fails, Take returns an error, and the
// caller decides the request. [store.Failover] decides by budgets of this process instead.
package redisstore

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore/internal/sharing"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

func init() {
	// The client returns its errors to callers, which decide how often to log them.
	redis.SetLogger(&logging.VoidLogger{})
}

// Store is a [store.Store] in one Redis. It opens connections when they are needed. Its methods are safe for concurrent use.
//
// A Store may be used after Close, so that requests in flight finish when their configuration ends.
// Its connections then close whenever no operation uses them.
type Store struct {
	options   Options
	newClient func() *redis.Client
	hooks     Hooks

	mu             sync.Mutex
	conns          *connections // nil before the first use, and after the last use of a closed Store
	closed         bool
	scriptFeatures algorithms.Features // what lastScript can decide
	lastScript     *redis.Script
	lastReading    clockReading

	sharing *sharing.Sharing // nil without a cluster

	queue      queue     // which keys.mu guards
	endedCalls sync.Pool // of *pendingCall
	corrector            // has keys
}

// New returns a Store in one Redis. It opens no connection.
func New(o Options, hooks Hooks) (*Store, error) {
	o, err := o.Normalized()
	if err != nil {
		return nil, err
	}
	newClient, err := o.clientFunc()
	if err != nil {
		return nil, err
	}
	return newStore(o, newClient, hooks), nil
}

func newStore(o Options, newClient func() *redis.Client, hooks Hooks) *Store {
	s := newNode(o, newClient, hooks, nil)
	s.keys = newKeyStates(o.names(), o.SlotExpiry, func(string) *Store { return s })
	return s
}

// newNode returns the Store of a node of a cluster. The nodes share slot counts.
func newNode(o Options, newClient func() *redis.Client, hooks Hooks, keys *keyStates) *Store {
	s := &Store{options: o, newClient: newClient, hooks: hooks, queue: newQueue(o)}
	s.corrector = corrector{keys, s.correctKey}
	return s
}

func (s *Store) names() wire.Names { return s.options.names() }

// Check returns an error if Redis does not run every command of the scripts. It runs them on keys that no budget has.
func (s *Store) Check(ctx context.Context) error { return s.check(ctx, "%") }

// check is Check with keys that have a hash tag.
func (s *Store) check(ctx context.Context, tag string) error {
	conns := s.acquire()
	defer s.release(conns)
	key := s.probeKey(tag)
	err := repeatable{script: probeScript, keys: []string{key, key + " log"}}.eval(ctx, conns)
	if isFromReplica("", err) || err != nil && ctx.Err() == nil && s.options.MasterName != "" {
		s.reconnect(conns) // Sentinels may know another primary
	}
	return toStoreError(ctx, explainSentinel(ctx, conns.Client, s.options.Address, err))
}

// probeKey returns a key that no budget has, because zones have names.
func (s *Store) probeKey(tag string) string { return s.options.KeyPrefix + ":{" + tag + "}::probe" }

// EvictionPolicy returns the eviction policy of the Redis, and whether its memory is bounded; see [Redis].
func (s *Store) EvictionPolicy(ctx context.Context) (policy string, bounded bool, err error) {
	conns := s.acquire()
	defer s.release(conns)
	info, err := conns.Info(ctx, "memory").Result()
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "maxmemory_policy":
			policy = value
		case "maxmemory":
			bounded = value != "0"
		}
	}
	return policy, bounded, toStoreError(ctx, err)
}

// Take implements [store.Store], at the time of Redis.
func (s *Store) Take(ctx context.Context, requests []store.ZoneRequest) (bool, error) {
	return s.TakeAt(ctx, 0, requests)
}

// TakeAt is Take at a given instant; 0 stands for the time of Redis.
func (s *Store) TakeAt(ctx context.Context, now algorithms.Micros, requests []store.ZoneRequest) (bool, error) {
	if err := ctx.Err(); err != nil || len(requests) == 0 {
		return err == nil, err
	}
	c := s.newTakeCall(ctx, now, requests)
	s.enqueueOrSend(c)
	allowed, err := s.await(c)
	return allowed, toStoreError(ctx, err)
}

func (s *Store) newTakeCall(ctx context.Context, now algorithms.Micros, requests []store.ZoneRequest) *pendingCall {
	c := s.newCall()
	c.ctx, c.now, c.alone, c.requests, c.key, c.queued = ctx, now, now != 0 || s.options.Batch < 0, requests, requests[0].Key, time.Now()
	c.slots = s.keys.slotsOf(requests)
	for i := range requests {
		r := &requests[i]
		for j := range r.Limits {
			c.work += r.Limits[j].Work(r.Cost)
		}
		hasOverride := r.Override != nil && len(r.Limits) == 0 // a limit's work includes an override
		c.work += algorithms.ExtraWork(r.ReservedID != "", r.Ban != nil, r.Slots != nil, hasOverride)
	}
	return c
}

// corrector makes the corrections of a [Store] or a [Cluster].
type corrector struct {
	keys *keyStates
	// send queues a call with corrections of one key, and calls ended with its result.
	send func(c *pendingCall, ended func(error))
}

// Correct implements [store.Store], at the time of Redis.
func (c corrector) Correct(corrections []store.Correction, failed func(error)) {
	c.correct(0, corrections, func(err error) {
		if err != nil && failed != nil {
			failed(err)
		}
	})
}

// CorrectAt is Correct at a given instant; 0 stands for the time of Redis. It returns when the
// corrections are made, or ctx is done.
func (c corrector) CorrectAt(ctx context.Context, now algorithms.Micros, corrections []store.Correction) (err error) {
	results := make(chan error, len(corrections))
	for range c.correct(now, corrections, func(err error) { results <- err }) {
		select {
		case one := <-results:
			err = cmp.Or(err, one)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

// correct gives slots back, and queues the calls that make the other corrections. It returns the number of calls; ended
// is called for each.
func (c corrector) correct(now algorithms.Micros, corrections []store.Correction, ended func(error)) (n int) {
	c.keys.leaveSlots(corrections, true)
	for _, call := range c.keys.correctionCalls(now, corrections) {
		n++
		c.send(call, func(err error) {
			if err != nil {
				c.keys.endReleases(call.releases)
			}
			ended(err)
		})
	}
	return n
}

// LeaveSlots records that requests no longer hold their slots and reserved events, without a message to Redis.
func (c corrector) LeaveSlots(corrections []store.Correction) {
	c.keys.leaveSlots(corrections, false)
	for i := range corrections {
		if r := c.keys.releaseOf(&corrections[i]); r != nil {
			c.keys.endReleases([]*release{r})
		}
	}
}

// CountSlots implements [store.Store].
func (c corrector) CountSlots(requests []store.ZoneRequest) { c.keys.countSlots(requests) }

// correctKey queues a call with corrections.
func (s *Store) correctKey(c *pendingCall, ended func(error)) {
	c.onEnd = func(c *pendingCall) { ended(toStoreError(context.Background(), c.err)) }
	s.enqueueOrSend(c)
}

// correctionCalls returns the calls that make corrections. A call has one key, because each key can
// be on another node of a cluster, and at most the work of one message.
func (k *keyStates) correctionCalls(now algorithms.Micros, corrections []store.Correction) (calls []*pendingCall) {
	last := make(map[string]*pendingCall) // by key
	for _, one := range corrections {
		one.Leave = false
		released := k.releaseOf(&one)
		refunds := one.Refund > 0 && slices.ContainsFunc(one.Request.Outcome.Decisions, isCharged)
		charges := one.Charges()
		if !refunds && released == nil && (!charges || len(one.Request.Limits) == 0) {
			continue
		}
		work := int64(0)
		if released != nil {
			work += algorithms.ReservedWork
		}
		for i := range one.Request.Limits {
			l := one.Request.Limits[i]
			if charges {
				work += l.Work(one.Charge)
			}
			if refunds {
				work += l.RefundWork()
			}
		}
		c := last[one.Request.Key]
		if c == nil || c.work+work > algorithms.MaxWork {
			c = &pendingCall{key: one.Request.Key, now: now, alone: now != 0, queued: time.Now()}
			last[c.key] = c
			calls = append(calls, c)
		}
		one.Request = &store.ZoneRequest{ // the caller may use the request again
			Zone: one.Request.Zone, Key: c.key, Limits: one.Request.Limits, ReservedID: one.Request.ReservedID,
			Outcome: store.Outcome{Decisions: slices.Clone(one.Request.Outcome.Decisions), Reserved: one.Request.Outcome.Reserved},
		}
		c.corrections, c.releases = append(c.corrections, one), append(c.releases, released)
		c.work += work
	}
	return calls
}

// Change implements [store.Store], at the time of Redis.
func (s *Store) Change(ctx context.Context, c store.Change) error { return s.ChangeAt(ctx, 0, c) }

// ChangeAt is Change at a given instant; 0 stands for the time of Redis.
func (s *Store) ChangeAt(ctx context.Context, now algorithms.Micros, c store.Change) error {
	waiting, cancel := context.WithTimeout(ctx, s.options.Timeout)
	defer cancel()
	for _, one := range keyChanges(s.names(), now, c) {
		if err := s.changeKey(waiting, one); err != nil {
			return toStoreError(ctx, err)
		}
	}
	return nil
}

// keyChanges splits a change into changes of one key in Redis each. change.lua documents their arguments.
func keyChanges(names wire.Names, now algorithms.Micros, c store.Change) (changes []repeatable) {
	add := func(id string, args ...any) {
		changes = append(changes, repeatable{script: changeScript, keys: []string{names.Name(c.Key, id)}, args: args})
	}
	for _, id := range c.Forget {
		add(id, "forget")
	}
	for _, b := range c.Ban {
		kind := "ban"
		if c.Holds {
			kind = "hold"
		}
		add(b.ID, kind, now, c.BanFor, b.AppendMessage(nil))
	}
	if c.Override != nil {
		add(store.OverrideID(c.Zone), "override", *c.Override, c.OverrideFor)
	}
	return changes
}

// changeKey makes a change, and makes it again with new connections if one led to a server that was the primary.
func (s *Store) changeKey(ctx context.Context, change repeatable) (err error) {
	for range 2 {
		conns := s.acquire()
		if err = change.eval(ctx, conns); !isFromReplica("", err) {
			s.release(conns)
			return err
		}
		s.reconnect(conns)
		s.release(conns)
	}
	return err
}

// Address returns the address of the Redis, without secrets.
func (s *Store) Address() string { return s.options.displayAddress() }

// String returns a text that identifies the budgets, without secrets.
func (s *Store) String() string { return s.options.identity() }

// Redis is a [store.Store] in one Redis, or in a cluster. While a Redis fails, calls that need it fail at once.
type Redis interface {
	store.Store
	// Check returns an error if a Redis does not run all commands that are needed. After an error,
	// that Redis gets no calls until it works.
	Check(ctx context.Context) error
	// Stats returns the state of the Redis at this instant.
	Stats() Stats
	// EvictionPolicy returns the eviction policy of a Redis, such as noeviction, and whether its
	// memory is bounded at all. It returns an error if the user may not run INFO.
	EvictionPolicy(ctx context.Context) (policy string, bounded bool, err error)
	// EndLine says that no request of a tenant in this process waits for a slot of a key any more. A call isn't needed if the only
	// request of the line has got a slot. Without a call, others can wait behind the line for [algorithms.LineExpiry].
	EndLine(slotsID, key string, tenant uint64)
	// Address returns the address of the Redis, without secrets.
	Address() string
	// String returns a text that identifies the budgets, without secrets.
	String() string
	// Close closes the connections when no operation uses them any more. Methods can still be called after that.
	Close() error
}

// Open returns the Redis with these options. It opens no connection.
func Open(o Options, hooks Hooks) (Redis, error) {
	if o.Cluster {
		return NewCluster(o, hooks)
	}
	s, err := New(o, hooks)
	if err != nil {
		return nil, err
	}
	b := store.NewBreaker(s, func(failure error) {
		s.noteHealth(failure)
		s.hooks.healthChanged(s.Address(), failure)
	})
	s.keys.route = func(string) *Store {
		if b.Open() {
			return nil
		}
		return s
	}
	return single{b, s}, nil
}

// noteHealth is called with the failure when the breaker of the store opens, and with nil when it closes. When
// it opens, all takes that are not sent yet end.
func (s *Store) noteHealth(failure error) {
	if failure != nil {
		s.keys.mu.Lock()
		defer s.keys.mu.Unlock()
		s.keys.table.Distrust()
		s.failUnsentLocked(&store.Error{Reason: store.ReasonOpen, Err: store.ErrOpen})
	}
}

// single is a Redis that is not a cluster.
type single struct {
	*store.Breaker
	redis *Store
}

func (s single) EvictionPolicy(ctx context.Context) (policy string, bounded bool, err error) {
	return s.redis.EvictionPolicy(ctx)
}

func (s single) EndLine(slotsID, key string, tenant uint64) { s.redis.EndLine(slotsID, key, tenant) }

func (s single) Address() string { return s.redis.Address() }

func (s single) String() string { return s.redis.String() }

func (s single) Close() error {
	s.Breaker.Close()
	return s.redis.Close()
}
