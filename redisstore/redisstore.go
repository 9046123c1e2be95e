// Package redisstore keeps budgets in Redis, where any number of processes share
// them: one script decides and charges all limits of a request, atomically, by
// the clock of Redis. It is the only package that knows the Redis client.
package redisstore

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Options say which Redis, and how to reach it. Options are comparable: equal
// ones can share a Store.
type Options struct {
	// Address is a host:port, the absolute path of a unix socket, or a URL:
	// redis://[user[:password]@]host[:port][/db], the same with rediss:// for TLS,
	// or unix://[user[:password]@]/path[?db=number]. With a MasterName it is one or
	// more host:port of Sentinels, with commas between them.
	Address string
	// Cluster tells that this is a Redis Cluster; see [NewCluster]. Address is one or
	// more host:port of its nodes then, with commas between them.
	Cluster bool
	// Username and Password log in; both may be empty. They stand in for those
	// of a URL.
	Username, Password string
	// DB is the number of the database (default 0, or the URL's).
	DB int
	// MasterName is what Sentinels call the Redis that is to be used; empty if none
	// are asked.
	MasterName string
	// SentinelUsername and SentinelPassword log in to the Sentinels.
	SentinelUsername, SentinelPassword string
	// TLS says whether connections, those to Sentinels too, are encrypted.
	TLS TLS
	// KeyPrefix starts the name of every key (default caddy_rl).
	KeyPrefix string
	// HashKeys, if not empty, is a secret: keys are stored as [HashedKey] has them.
	HashKeys string
	// Timeout is how long a message may take until its reply, or a new connection and that
	// (default 100 ms). Before, a Take may wait up to a second in the queue.
	Timeout time.Duration
	// Batch is how many requests share one script call at most (default 128), not
	// counting those that would have to wait for its reply. Less than 0 gives each
	// request a call of its own.
	Batch int
	// DialTimeout is how long a new connection may take (default 1 s).
	DialTimeout time.Duration
	// SlotExpiry is how long an instance's count of slots lives that the instance doesn't set
	// (default 30 s).
	SlotExpiry time.Duration
}

func init() {
	// Whatever the client would print to standard error comes back to callers as
	// an error, and they decide how often to say so.
	redis.SetLogger(&logging.VoidLogger{})
}

// Defaults of [Options].
const (
	DefaultKeyPrefix   = "caddy_rl"
	DefaultTimeout     = 100 * time.Millisecond
	DefaultDialTimeout = time.Second
	DefaultBatch       = 128
)

// Store is a [store.Store] in Redis. Connections are opened as they are needed.
//
// A Store may be used after Close: requests that were under way when their
// configuration ended still finish. Its connections close once none is.
type Store struct {
	options Options
	dial    func() *redis.Client

	mu      sync.Mutex
	conns   *connections // nil before the first use and after the last
	closed  bool
	set     algorithms.Set // what scripts can decide
	scripts *redis.Script
	clock   clock
	stepped func(back time.Duration)

	loading    sync.Mutex // guards what follows, and is held while a script is loaded
	loaded     time.Time  // when that had been tried last
	loadedHash string
	loadedErr  error

	queue      queue
	slotCounts *slotCounts
}

// Normalized returns the options with defaults filled in and a URL taken apart, so
// that equal settings are equal values. No error holds a secret, nor what a
// parser said about one.
func (o Options) Normalized() (Options, error) {
	o.KeyPrefix = cmp.Or(o.KeyPrefix, DefaultKeyPrefix)
	o.Timeout = cmp.Or(o.Timeout, DefaultTimeout)
	o.DialTimeout = cmp.Or(o.DialTimeout, DefaultDialTimeout)
	o.Batch = cmp.Or(o.Batch, DefaultBatch)
	o.SlotExpiry = cmp.Or(o.SlotExpiry, DefaultSlotExpiry)
	for _, c := range []byte(o.KeyPrefix) {
		if c < ' ' || c > '~' || c == '{' || c == '}' {
			return o, fmt.Errorf("key_prefix %q holds %q: write printable ASCII without braces", o.KeyPrefix, c)
		}
	}
	if o.Timeout < 0 || o.DialTimeout < 0 {
		return o, errors.New("timeout and dial_timeout must be above 0: write a duration such as 100ms")
	}
	if o.DB < 0 || o.DB > math.MaxInt32 {
		return o, fmt.Errorf("db must be from 0 to %d, not %d: write the number of a database", math.MaxInt32, o.DB)
	}
	if o.MasterName == "" && (o.SentinelUsername != "" || o.SentinelPassword != "") {
		return o, errors.New("sentinel_username and sentinel_password need master_name: write what the Sentinels call the Redis to use")
	}
	if o.Cluster && (o.MasterName != "" || o.DB != 0) {
		return o, errors.New("cluster goes neither with master_name nor with db: write cluster alone")
	}
	if o.TLS != (TLS{}) {
		o.TLS.On = true
	}
	return o, o.parseAddress()
}

// New makes a store. It opens no connection. stepped, if not nil, is called when
// the clock of Redis was seen to step back by more than a second. Budgets then go
// on from the new time.
func New(o Options, stepped func(back time.Duration)) (*Store, error) {
	o, err := o.Normalized()
	if err != nil {
		return nil, err
	}
	dial, err := o.client()
	if err != nil {
		return nil, err
	}
	return newStore(o, dial, stepped), nil
}

func newStore(o Options, dial func() *redis.Client, stepped func(back time.Duration)) *Store {
	s := &Store{options: o, dial: dial, stepped: stepped, queue: queue{bounds: defaultBounds}}
	s.slotCounts = newSlotCounts(o.names(), o.SlotExpiry, func(string) *Store { return s })
	return s
}

// newNode makes the store of a node of a cluster.
func newNode(o Options, dial func() *redis.Client, stepped func(back time.Duration), f *slotCounts) *Store {
	return &Store{options: o, dial: dial, stepped: stepped, queue: queue{bounds: defaultBounds}, slotCounts: f}
}

func (s *Store) names() wire.Names { return s.options.names() }

func (o Options) names() wire.Names { return wire.Names{Prefix: o.KeyPrefix, Secret: o.HashKeys} }

// HashedKey returns the form of a key where keys are not to be stored or shown: its HMAC-SHA256
// with a secret, marked so that it equals no key.
func HashedKey(secret, key string) string { return wire.HashedKey(secret, key) }

//go:embed probe.lua
var probeLua string

var probe = redis.NewScript(probeLua)

// Check tells whether Redis does all that is asked of it: it runs every command of
// the scripts, on keys that no budget has.
func (s *Store) Check(ctx context.Context) error { return s.check(ctx, "%") }

// check is Check with keys that have a hash tag.
func (s *Store) check(ctx context.Context, tag string) error {
	conns := s.acquire()
	defer s.release(conns)
	key := s.options.KeyPrefix + ":{" + tag + "}::probe" // zones have names
	err := evalRepeatable(ctx, conns, false, probe, []string{key, key + " log"})
	if isDemoted("", err) || err != nil && ctx.Err() == nil && s.options.MasterName != "" {
		s.reconnect(conns) // another Sentinel may know better
	}
	return toStoreError(ctx, err)
}

// EvictionPolicy is what Redis does when its memory is full, such as noeviction, and
// whether that can happen at all. Redis may refuse to tell.
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

// Take implements [store.Store]. The instant is Redis' own.
func (s *Store) Take(ctx context.Context, requests []store.Request) (bool, error) {
	return s.TakeAt(ctx, 0, requests)
}

// TakeAt is Take at an instant of the caller's choice; 0 stands for the time of
// Redis.
func (s *Store) TakeAt(ctx context.Context, now algorithms.Micros, requests []store.Request) (bool, error) {
	if err := ctx.Err(); err != nil || len(requests) == 0 {
		return err == nil, err
	}
	c := s.newTake(ctx, now, requests)
	s.enqueue(c, true)
	allowed, err := s.await(c)
	return allowed, toStoreError(ctx, err)
}

func (s *Store) newTake(ctx context.Context, now algorithms.Micros, requests []store.Request) *pendingCall {
	c := pendingCalls.Get().(*pendingCall)
	c.ctx, c.now, c.alone, c.requests, c.key, c.queued = ctx, now, now != 0 || s.options.Batch < 0, requests, requests[0].Key, time.Now()
	c.slotNames = s.slotCounts.namesOf(requests)
	for i := range requests {
		for j := range requests[i].Limits {
			c.work += requests[i].Limits[j].Work(requests[i].Cost)
		}
		if requests[i].Slots != nil {
			c.work += algorithms.CounterWork
		}
		if requests[i].Ban != nil {
			c.work += algorithms.CounterWork
		}
		if requests[i].Override != nil && len(requests[i].Limits) == 0 { // a limit's work includes an override
			c.work += algorithms.CounterWork
		}
	}
	return c
}

// Correct implements [store.Store].
func (s *Store) Correct(corrections []store.Correction, failed func(error)) {
	s.slotCounts.leaveSlots(corrections, true)
	s.correct(0, corrections, func(c *pendingCall) {
		if c.err != nil && failed != nil {
			failed(toStoreError(context.Background(), c.err))
		}
	})
}

// LeaveSlots notes that requests hold their slots no more. It asks Redis nothing.
func (s *Store) LeaveSlots(corrections []store.Correction) {
	s.slotCounts.leaveSlots(corrections, false)
}

// Count counts slots that another store has granted.
func (s *Store) CountSlots(requests []store.Request) { s.slotCounts.countSlots(requests) }

// CorrectAt is Correct at an instant of the caller's choice; 0 stands for the time of Redis. It
// returns when the corrections are made.
func (s *Store) CorrectAt(ctx context.Context, now algorithms.Micros, corrections []store.Correction) error {
	s.slotCounts.leaveSlots(corrections, true)
	results := make(chan error, len(corrections))
	n := s.correct(now, corrections, func(c *pendingCall) { results <- c.err })
	var err error
	for range n {
		err = cmp.Or(err, <-results)
	}
	return toStoreError(ctx, err)
}

// correct queues refunds and charges: a call for each key, since in a cluster each can be elsewhere.
// It returns how many calls these are; ended is called for each.
func (s *Store) correct(now algorithms.Micros, corrections []store.Correction, ended func(*pendingCall)) (n int) {
	for _, c := range callsOf(now, corrections) {
		c.onEnd = ended
		s.enqueue(c, false)
		n++
	}
	return n
}

// callsOf returns the calls that make corrections, as much work in each as one message may hold.
func callsOf(now algorithms.Micros, corrections []store.Correction) (made []*pendingCall) {
	last := make(map[string]*pendingCall) // by key
	for _, one := range corrections {
		one.Leave = false
		refunds := one.Refund > 0 && slices.ContainsFunc(one.Request.Outcome.Decisions, isCharged)
		if !refunds && (one.Charge == 0 || len(one.Request.Limits) == 0) {
			continue
		}
		work := int64(0)
		for i := range one.Request.Limits {
			l := one.Request.Limits[i]
			if one.Charge > 0 {
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
			made = append(made, c)
		}
		one.Request = detached(one.Request)
		c.corrections = append(c.corrections, one)
		c.work += work
	}
	return made
}

// detached copies what a correction has to know of a request.
func detached(r *store.Request) *store.Request {
	d := &store.Request{Zone: r.Zone, Key: r.Key, Limits: r.Limits}
	d.Outcome.Decisions = slices.Clone(r.Outcome.Decisions)
	return d
}

// Change implements [store.Store].
func (s *Store) Change(ctx context.Context, c store.Change) error { return s.ChangeAt(ctx, 0, c) }

// ChangeAt is Change at an instant of the caller's choice; 0 stands for the time of Redis.
func (s *Store) ChangeAt(ctx context.Context, now algorithms.Micros, c store.Change) error {
	waiting, cancel := context.WithTimeout(ctx, s.options.Timeout)
	defer cancel()
	for _, one := range changesOf(s.names(), now, c) {
		if err := s.change(waiting, false, one); err != nil {
			return toStoreError(ctx, err)
		}
	}
	return nil
}

// change is a change at one key: the arguments of the script.
type change struct {
	key  string
	args []any
}

var changeScript = redis.NewScript(algorithms.ChangeScript())

// changesOf returns the changes at single keys that a change is, as change.lua documents them.
func changesOf(names wire.Names, now algorithms.Micros, c store.Change) (changes []change) {
	add := func(id string, args ...any) { changes = append(changes, change{names.Name(c.Key, id), args}) }
	for _, id := range c.Forget {
		add(id, "forget")
	}
	for _, b := range c.Ban {
		add(b.ID, "ban", now, c.BanFor, b.AppendMessage(nil))
	}
	if c.Override != nil {
		add(store.OverrideID(c.Zone), "override", *c.Override, c.OverrideFor)
	}
	return changes
}

func (s *Store) change(ctx context.Context, asking bool, c change) error {
	conns := s.acquire()
	defer s.release(conns)
	err := evalRepeatable(ctx, conns, asking, changeScript, []string{c.key}, c.args...)
	if isDemoted("", err) {
		s.reconnect(conns)
	}
	return err
}
