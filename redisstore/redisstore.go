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
	// Timeout is how long one Take waits in all (default 100 ms).
	Timeout time.Duration
	// Batch is how many requests share one script call at most (default 128);
	// less than 0 gives each a call of its own, however many are under way.
	Batch int
	// DialTimeout is how long a new connection may take (default 1 s).
	DialTimeout time.Duration
	// SlotExpiry is how long a slot is held that an instance neither gives back nor renews
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
	takes   scripts
	refunds scripts
	renews  scripts
	clock   clock
	stepped func(back time.Duration)
	batcher batcher
	slots   *slotTable
}

// Normal returns the options with defaults filled in and a URL taken apart, so
// that equal settings are equal values. No error holds a secret, nor what a
// parser said about one.
func (o Options) Normal() (Options, error) {
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
	o, err := o.Normal()
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
	s := &Store{
		options: o, dial: dial, takes: make(scripts), refunds: make(scripts), renews: make(scripts), stepped: stepped,
		batcher: batcher{bounds: flying},
	}
	s.slots = newSlotTable(o.SlotExpiry, s.renewSlots)
	return s
}

func (s *Store) format() format { return s.options.format() }

func (o Options) names() keyNames { return keyNames{prefix: o.KeyPrefix, secret: o.HashKeys} }

func (o Options) format() format { return format{o.names(), o.SlotExpiry.Microseconds()} }

// Destruct lets a [Store] live in a pool of shared values. It is Close.
func (s *Store) Destruct() error { return s.Close() }

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
	err := s.run(ctx, conns, false, command{script: probe, keys: []string{key, key + " log"}})[0].err
	if err != nil && ctx.Err() == nil && s.options.MasterName != "" {
		s.renew(conns) // another Sentinel may know better
	}
	return classify(ctx, err)
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
	return policy, bounded, classify(ctx, err)
}

// Take implements [store.Store]. The instant is Redis' own.
func (s *Store) Take(ctx context.Context, requests []store.Request) (bool, error) {
	return s.takeUntil(ctx, time.Now().Add(s.options.Timeout), requests)
}

// takeUntil is Take with a deadline of its own.
func (s *Store) takeUntil(ctx context.Context, own time.Time, requests []store.Request) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	deadline := own
	if sooner, ok := ctx.Deadline(); ok && sooner.Before(deadline) {
		deadline = sooner
	}
	allowed, err := s.take(ctx, deadline, requests)
	for errors.Is(err, errLate) && time.Now().Before(deadline) && ctx.Err() == nil {
		// Nothing was charged: it was too late for another request of the batch, or
		// the time of Redis is known better now.
		allowed, err = s.take(ctx, deadline, requests)
	}
	if err != nil && !store.IsOverridden(err) && deadline.Equal(own) && !time.Now().Before(own) { // Redis had all its time, whoever has left meanwhile
		return false, &store.Error{Reason: store.ReasonTimeout, Err: err}
	}
	return allowed, classify(ctx, err)
}

// TakeAt is Take at an instant of the caller's choice; 0 stands for the time of
// Redis.
func (s *Store) TakeAt(ctx context.Context, now algorithms.Micros, requests []store.Request) (bool, error) {
	if now == 0 {
		return s.Take(ctx, requests)
	}
	waiting, cancel := context.WithTimeout(ctx, s.options.Timeout)
	defer cancel()
	allowed, err := s.takeAlone(waiting, now, time.Time{}, false, requests)
	return allowed, classify(ctx, err)
}

// takeAlone takes with a script call of its own.
func (s *Store) takeAlone(ctx context.Context, now algorithms.Micros, deadline time.Time, asking bool, requests []store.Request) (bool, error) {
	a := s.ask(ctx, now, asking, part{deadline: deadline, groups: [][]store.Request{requests}})[0]
	if a.err != nil {
		return false, a.err
	}
	allowed, failed := a.reader.decodeGroup(requests)
	if err := errors.Join(failed, a.reader.end()); err != nil {
		return false, err
	}
	s.slots.hold(a.reader.taken, now != 0)
	return allowed, nil
}

// Correct implements [store.Store].
func (s *Store) Correct(corrections []store.Correction, failed func(error)) {
	if err := s.CorrectAt(context.Background(), 0, corrections); err != nil && failed != nil {
		failed(err)
	}
}

// CorrectAt is Correct at an instant of the caller's choice; 0 stands for the time of Redis.
func (s *Store) CorrectAt(ctx context.Context, now algorithms.Micros, corrections []store.Correction) error {
	deadline := time.Now().Add(s.options.Timeout)
	waiting, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	refund := func(credits []credit) error { return classify(ctx, s.refund(waiting, now, false, credits)) }
	return s.slots.correct(corrections, refund, func(more []store.Request) (err error) {
		if now == 0 {
			_, err = s.takeUntil(ctx, deadline, more)
		} else {
			_, err = s.TakeAt(ctx, now, more)
		}
		return err
	})
}

func (s *Store) refund(ctx context.Context, now algorithms.Micros, asking bool, credits []credit) error {
	if len(credits) == 0 {
		return nil
	}
	var set algorithms.Set
	for _, c := range credits {
		set = set.With(algorithmOf(c.of))
	}
	keys, argv := s.format().encodeRefund(credits, now)
	reply := s.runOne(ctx, asking, command{s.script(s.refunds, algorithms.Set.RefundScript, set), keys, argv})
	if reply.err != nil {
		return reply.err
	}
	if len(reply.values) != 1+len(keys) {
		return errShort
	}
	for _, one := range reply.values[1:] {
		if one != int64(1) {
			return scriptError(fmt.Sprint(one))
		}
	}
	return nil
}

// Change implements [store.Store].
func (s *Store) Change(ctx context.Context, c store.Change) error { return s.ChangeAt(ctx, 0, c) }

// ChangeAt is Change at an instant of the caller's choice; 0 stands for the time of Redis.
func (s *Store) ChangeAt(ctx context.Context, now algorithms.Micros, c store.Change) error {
	waiting, cancel := context.WithTimeout(ctx, s.options.Timeout)
	defer cancel()
	conns := s.acquire()
	defer s.release(conns)
	for _, reply := range s.run(waiting, conns, false, s.format().encodeChange(now, c)...) {
		if reply.err != nil {
			return classify(ctx, reply.err)
		}
	}
	return nil
}

// runOne runs one script.
func (s *Store) runOne(ctx context.Context, asking bool, c command) reply {
	conns := s.acquire()
	defer s.release(conns)
	return s.run(ctx, conns, asking, c)[0]
}

// scripts holds those made so far, by the algorithms in them.
type scripts map[algorithms.Set]*redis.Script

// script returns the script for a set of algorithms.
func (s *Store) script(made scripts, compose func(algorithms.Set) string, set algorithms.Set) *redis.Script {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := made[set]
	if known == nil {
		known = redis.NewScript(compose(set))
		made[set] = known
	}
	return known
}

// algorithmsOf returns what is needed to decide groups of requests.
func algorithmsOf(groups ...[]store.Request) (set algorithms.Set) {
	for _, requests := range groups {
		for i := range requests {
			r := &requests[i]
			for _, l := range r.Limits {
				set = set.With(l.Algorithm())
			}
			if r.Ban != nil {
				set = set.WithBan()
			}
			if r.Slots != nil {
				set = set.With(slotAlgorithm)
			}
		}
	}
	return set
}

// charge is a command that must run at most once. Once it may have been written,
// the client does not send it again whatever happens; MaxRetries alone does not
// keep it from that everywhere.
type charge struct{ *redis.Cmd }

// NoRetry implements [redis.Cmder].
func (charge) NoRetry() bool { return true }

// command is a call of a script, whose keys are in one slot.
type command struct {
	script *redis.Script
	keys   []string
	argv   []any
}

// reply is what a script returned, or why it didn't.
type reply struct {
	values []any
	err    error
}

// run runs scripts in one round trip, and loads first those that Redis doesn't have:
// NOSCRIPT is the one answer after which the same call is made again, for it proves
// that nothing ran. With asking, Redis is told that another node of its cluster has
// sent us.
func (s *Store) run(ctx context.Context, conns *connections, asking bool, commands ...command) []reply {
	replies := make([]reply, len(commands))
	send(ctx, conns, asking, commands, replies)
	var missing []command
	var places []int
	loaded := make(map[*redis.Script]error)
	for i := range replies {
		if !redis.HasErrorPrefix(replies[i].err, "NOSCRIPT") {
			continue
		}
		script := commands[i].script
		err, known := loaded[script]
		if !known {
			err = script.Load(ctx, conns).Err()
			loaded[script] = err
		}
		if replies[i].err = err; err == nil {
			missing, places = append(missing, commands[i]), append(places, i)
		}
	}
	if len(missing) > 0 {
		again := make([]reply, len(missing))
		send(ctx, conns, asking, missing, again)
		for i, place := range places {
			replies[place] = again[i]
		}
	}
	if slices.ContainsFunc(replies, demoted) {
		s.renew(conns)
	}
	return replies
}

// send makes script calls in one round trip.
func send(ctx context.Context, conns *connections, asking bool, commands []command, replies []reply) {
	cmds := make([]charge, len(commands))
	for i, c := range commands {
		args := make([]any, 0, 3+len(c.keys)+len(c.argv))
		args = append(args, "evalsha", c.script.Hash(), len(c.keys))
		for _, k := range c.keys {
			args = append(args, k)
		}
		cmds[i] = charge{redis.NewCmd(ctx, append(args, c.argv...)...)}
	}
	if len(cmds) == 1 && !asking {
		_ = conns.Process(ctx, cmds[0])
	} else {
		pipeline := conns.Pipeline()
		for _, cmd := range cmds {
			if asking {
				_ = pipeline.Process(ctx, redis.NewCmd(ctx, "asking"))
			}
			_ = pipeline.Process(ctx, cmd)
		}
		_, _ = pipeline.Exec(ctx)
	}
	for i, cmd := range cmds {
		replies[i].err = asRedirect(cmd.Err())
		replies[i].values, _ = cmd.Val().([]any)
	}
}
