package store

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keyhash"
)

// DenyCache is a [Store] that remembers what another one refused, and refuses it
// again without asking, for as long as that was certain then, and a second at most.
// It never admits anything by itself. For up to that second it can refuse what the
// store would by then allow, because somebody has given events back or forgotten a
// budget, or its clock was set ahead.
//
// A refusal by a limit holds for requests of the same key that cost as much or more,
// have the same burst or less, and may be held as long or shorter: whatever others
// take meanwhile, to these the limit would say the same, though those that cost more or
// have less burst can have longer to wait: a few kinds of them are remembered by
// themselves first, so that they are told exactly. When a refusal has ended, one
// request asks the store, and those that come meanwhile wait for what it is told. So a
// flood of refused requests costs one check per second, or per retry-after where that
// is shorter, of each key.
//
// A request that changes something even if it is refused is always passed on: where a
// zone's mode isn't Binary, where a limit may not have begun to fill a budget that
// begins with less, and where a zone has a ban that counts refusals. Once its ban stands
// nothing is counted nor charged any more, and of such a zone that alone is remembered.
type DenyCache struct {
	store   Store
	timeout time.Duration
	start   time.Time
	hashes  keyhash.Hasher
	held    atomic.Int64
	shards  [denyShards]denyShard
}

const (
	// denyLongest is how long a refusal is remembered at most.
	denyLongest = time.Second
	// denyMost is how many refusals are remembered at most. When there are as many,
	// those that have ended make room, and none that stands does.
	denyMost = 1 << 16
	// denyKinds is how many refusals of one limit and key are, by cost, burst and wait.
	// Further requests that these cover are told the longest wait of theirs, which may be
	// too short.
	denyKinds  = 4
	denyShards = 64
	// denyCells is how many instants of changes a shard keeps. Keys that share an instant
	// count as changed together, which costs at most another question to the store.
	denyCells = 64
)

// denyShard is a part of a [DenyCache]: all refusals of a key are in the same.
type denyShard struct {
	mu    sync.Mutex
	known map[denialKey][]denial
	held  int
	swept time.Duration
	// changed holds, by a hash of the key, the instant of the last refund or change through
	// this cache. A denial of a request sent before it may be outdated.
	changed [denyCells]time.Duration
}

type denialKey struct {
	limit string
	key   keyhash.Hash // bounds the memory of long keys
}

// denial is a refusal. Instants are times since the start of the cache.
type denial struct {
	cost, burst int64
	maxWait     algorithms.Micros
	decision    algorithms.Decision
	told        time.Duration // when the answer came
	until       time.Duration // the request is refused before that
	far         bool          // the answer took so long that there is no time to wait for another's, too
	asked       *question     // what is being asked of the store since it has ended; or nil
}

// question is what one request asks the store while others wait.
type question struct {
	key      denialKey
	shard    *denyShard
	answered chan struct{} // closed when failure is there
	failure  error         // of the store
}

// NewDenyCache returns a cache before a store. A request waits for what another one is
// told, and then for what itself is, no longer than timeout, all together.
func NewDenyCache(store Store, timeout time.Duration) *DenyCache {
	c := &DenyCache{store: store, timeout: timeout, start: time.Now(), hashes: keyhash.New()}
	for i := range c.shards {
		c.shards[i].known = make(map[denialKey][]denial)
	}
	return c
}

func (c *DenyCache) now() time.Duration { return time.Since(c.start) }

// Take implements [Store].
func (c *DenyCache) Take(ctx context.Context, requests []Request) (bool, error) {
	for i := range requests {
		if requests[i].Mode != algorithms.Binary && ban(&requests[i]) == nil {
			return c.store.Take(ctx, requests)
		}
	}
	if c.held.Load() == 0 {
		return c.take(ctx, requests)
	}
	came := c.now()
	refused, q, mine := c.look(came, requests)
	switch {
	case refused:
		return false, nil
	case q != nil && !mine:
		return c.takeAfter(ctx, came, q, requests)
	}
	return c.ask(ctx, q, requests)
}

// takeAfter is Take once others know what they asked. A request that came before a
// refusal ended is refused by it, for the store would have refused it when it came: so
// nobody waits for more than the question under way and its own.
func (c *DenyCache) takeAfter(ctx context.Context, came time.Duration, q *question, requests []Request) (bool, error) {
	waiting, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	for mine := false; q != nil && !mine; {
		select {
		case <-q.answered:
		case <-waiting.Done():
			return false, c.late(ctx, waiting.Err())
		}
		if q.failure != nil {
			return false, q.failure
		}
		var refused bool
		if refused, q, mine = c.look(came, requests); refused {
			return false, nil
		}
	}
	allowed, err := c.ask(waiting, q, requests)
	if errors.Is(err, context.DeadlineExceeded) {
		err = c.late(ctx, err)
	}
	return allowed, err
}

// late is the error of a request whose time is over, unless its caller has left.
func (c *DenyCache) late(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return &Error{Reason: ReasonTimeout, Err: err}
}

// ask asks the store, and lets those know who wait for the answer to q, if it is not
// nil. If the caller leaves meanwhile, one of them asks next.
func (c *DenyCache) ask(ctx context.Context, q *question, requests []Request) (allowed bool, err error) {
	if q == nil {
		return c.take(ctx, requests)
	}
	over := false
	defer func() { c.answer(q, over) }()
	allowed, err = c.take(ctx, requests)
	over = err == nil || ctx.Err() == nil
	if over && isFailure(err) {
		q.failure = err
	}
	return allowed, err
}

// answer ends a question. What it was about is forgotten if that is over.
func (c *DenyCache) answer(q *question, over bool) {
	s := q.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.known[q.key]
	for i := range known {
		if known[i].asked == q {
			known[i].asked = nil
			if over {
				c.setLocked(s, q.key, slices.Delete(known, i, i+1))
			}
			break
		}
	}
	close(q.answered)
}

// take asks the store, and remembers what it refuses.
func (c *DenyCache) take(ctx context.Context, requests []Request) (bool, error) {
	sent := c.now()
	allowed, err := c.store.Take(ctx, requests)
	if allowed || err != nil {
		return allowed, err
	}
	told := c.now()
	for i := range requests {
		r := &requests[i]
		b := ban(r)
		for j, d := range r.Decisions {
			if d.Allowed || r.Fleeting || b != nil && !r.Limits[j].Bans() {
				continue
			}
			// The store decided after it was sent, and counts in whole microseconds.
			certain := time.Duration(min(d.RetryAfter-1, denyLongest.Microseconds())) * time.Microsecond
			if sent+certain <= told {
				continue // it comes back faster than it can be asked about
			}
			d.Remembered = true
			refusal := denial{decision: d, told: told, until: sent + certain, far: told-sent > c.timeout/2}
			if !r.Limits[j].Bans() { // a ban refuses everything
				refusal.cost, refusal.burst, refusal.maxWait = r.Cost, r.Limits[j].Burst, r.MaxWait
			}
			c.remember(r, r.Limits[j].ID, sent, refusal)
		}
	}
	return false, nil
}

// Refund implements [Store]. What is refused because of the charge is forgotten.
func (c *DenyCache) Refund(ctx context.Context, requests []Request, n int64) error {
	err := c.store.Refund(ctx, requests, n)
	for i := range requests {
		r := &requests[i]
		s, key := c.shardOf(r)
		s.mu.Lock()
		for j, d := range r.Decisions {
			if key.limit = r.Limits[j].ID; d.Charged > 0 {
				c.setLocked(s, key, nil)
				*s.changedLocked(key) = c.now() + 1
			}
		}
		s.mu.Unlock()
	}
	return err
}

// changedLocked returns where a shard keeps the first instant after the last change of a key.
func (s *denyShard) changedLocked(key denialKey) *time.Duration {
	return &s.changed[key.key[1]%denyCells]
}

// Renew implements [Store].
func (c *DenyCache) Renew(ctx context.Context, requests []Request) error {
	return c.store.Renew(ctx, requests)
}

// Change implements [Store]. What is refused to the key is forgotten.
func (c *DenyCache) Change(ctx context.Context, change Change) error {
	err := c.store.Change(ctx, change)
	s, key := c.shardOf(&Request{Key: change.Key})
	s.mu.Lock()
	defer s.mu.Unlock()
	*s.changedLocked(key) = c.now() + 1
	for known := range s.known {
		if known.key == key.key && strings.HasPrefix(known.limit, change.Zone+":") {
			c.setLocked(s, known, nil)
		}
	}
	return err
}

// look looks what is known of a request that came at an instant. If that refuses it,
// the decisions are filled in. Otherwise q is what is being asked about the first of its
// limits that has refused before, and mine tells that it is for this request to ask.
func (c *DenyCache) look(came time.Duration, requests []Request) (refused bool, q *question, mine bool) {
	stands, unsure, ended := false, false, -1
	for i := range requests {
		r := &requests[i]
		limits := r.Limits
		if ban(r) != nil {
			limits = limits[len(limits)-1:] // nothing else is remembered of it
		}
		s, key := c.shardOf(r)
		s.mu.Lock()
		for j := range limits {
			key.limit = limits[j].ID
			standing, over := find(s.known[key], came, r, &limits[j])
			if r.Shadow { // it refuses nothing
				standing, over = nil, nil
			}
			if standing == nil && limits[j].Linger() > 0 {
				s.mu.Unlock()
				return false, nil, false // its budget may have to begin
			}
			// A refusal may have to be counted.
			unsure = unsure || standing == nil && limits[j].Bans()
			stands = stands || standing != nil
			if over != nil && ended < 0 {
				ended = i
			}
		}
		s.mu.Unlock()
	}
	switch {
	case stands && !unsure:
		return c.refuse(came, requests), nil, false
	case ended >= 0:
		q, mine = c.question(came, &requests[ended])
	}
	return false, q, mine
}

// ban returns the ban of a request's zone, or nil.
func ban(r *Request) *Limit {
	if n := len(r.Limits); n > 0 && r.Limits[n-1].Bans() {
		return &r.Limits[n-1]
	}
	return nil
}

// refuse fills in the decisions, and tells whether some refuse still.
func (c *DenyCache) refuse(came time.Duration, requests []Request) (refused bool) {
	now := c.now()
	for i := range requests {
		r := &requests[i]
		r.Decisions = r.Decisions[:0]
		s, key := c.shardOf(r)
		s.mu.Lock()
		for j := range r.Limits {
			key.limit = r.Limits[j].ID
			d := algorithms.Decision{Allowed: true, Remembered: true}
			if standing, _ := find(s.known[key], came, r, &r.Limits[j]); standing != nil {
				d = standing.tell(now, r, &r.Limits[j])
				refused = refused || !r.Shadow
			}
			r.Decisions = append(r.Decisions, d)
		}
		s.mu.Unlock()
	}
	return refused
}

// question returns what is being asked about the first limit of a request that has
// refused before, and whether it is for this request to ask. If that has been answered
// just now, it is nil.
func (c *DenyCache) question(came time.Duration, r *Request) (q *question, mine bool) {
	s, key := c.shardOf(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	for j := range r.Limits {
		key.limit = r.Limits[j].ID
		if _, ended := find(s.known[key], came, r, &r.Limits[j]); ended != nil {
			if ended.asked != nil {
				return ended.asked, false
			}
			ended.asked = &question{key: key, shard: s, answered: make(chan struct{})}
			return ended.asked, true
		}
	}
	return nil, false
}

// find returns, of the refusals that are about such a request, one that stood at an
// instant, that with the longest wait, and one that had ended and can be waited for.
// Those of requests with another cost or burst say that this one is refused, but not for
// how long: they count once no more kinds are remembered.
func find(known []denial, at time.Duration, r *Request, l *Limit) (standing, ended *denial) {
	for i := range known {
		d := &known[i]
		if !l.Bans() { // which refuses whatever the request is
			if r.Cost < d.cost || l.Burst > d.burst || r.MaxWait > d.maxWait {
				continue
			}
			if same := r.Cost == d.cost && l.Burst == d.burst; !same && len(known) < denyKinds && !never(r, l) {
				continue
			}
		}
		if at >= d.until && !d.far {
			ended = d
		} else if at < d.until && (standing == nil || d.decision.RetryAfter+d.maxWait > standing.decision.RetryAfter+standing.maxWait) {
			standing = d
		}
	}
	return standing, ended
}

// never tells whether a request can't pass a limit that has refused it.
func never(r *Request, l *Limit) bool {
	return r.Cost > l.Burst && !l.Algorithm().BinaryOnly && !l.Bans()
}

// tell is the decision as it stands now.
func (d *denial) tell(now time.Duration, r *Request, l *Limit) algorithms.Decision {
	told := d.decision
	if never(r, l) {
		told.RetryAfter = algorithms.Forever
	} else if told.RetryAfter < algorithms.Forever && !l.Bans() {
		told.RetryAfter += d.maxWait - r.MaxWait
	}
	told.Age((now - d.told).Microseconds())
	return told
}

// remember remembers a denial of a request that was sent at an instant. It does nothing if
// the key has changed since, if a known denial says as much, or if there is no room.
func (c *DenyCache) remember(r *Request, limit string, sent time.Duration, d denial) {
	s, key := c.shardOf(r)
	key.limit = limit
	s.mu.Lock()
	defer s.mu.Unlock()
	if *s.changedLocked(key) > sent {
		return
	}
	room := c.roomLocked(s, d.told)
	known := s.known[key]
	for i := range known {
		if known[i].replaces(&d) {
			return
		}
	}
	left := slices.DeleteFunc(known, func(old denial) bool {
		return d.replaces(&old) || len(known) == denyKinds && old.idle(d.told)
	})
	if len(left) < denyKinds && (room || len(left) < len(known)) {
		left = append(left, d)
	}
	c.setLocked(s, key, left)
}

// replaces tells whether d says all that another refusal does: of the same cost and
// burst, and for as long.
func (d *denial) replaces(other *denial) bool {
	return d.cost == other.cost && d.burst == other.burst && d.maxWait >= other.maxWait && d.until >= other.until
}

// idle tells whether d has ended, and nobody asks about it.
func (d *denial) idle(now time.Duration) bool { return d.until <= now && d.asked == nil }

// roomLocked tells whether a shard has room. Now and then, and more often when there is
// none, it drops what has ended.
func (c *DenyCache) roomLocked(s *denyShard, now time.Duration) bool {
	const most = denyMost / denyShards
	pause, before := denyLongest, now-denyLongest
	if s.held >= most {
		pause, before = denyLongest/16, now
	}
	if now-s.swept >= pause {
		s.swept = now
		for key, known := range s.known {
			c.setLocked(s, key, slices.DeleteFunc(known, func(d denial) bool { return d.idle(before) }))
		}
	}
	return s.held < most
}

// setLocked changes what is known of a limit and key.
func (c *DenyCache) setLocked(s *denyShard, key denialKey, known []denial) {
	grown := len(known) - len(s.known[key])
	if len(known) > 0 {
		s.known[key] = known
	} else {
		delete(s.known, key)
	}
	s.held += grown
	c.held.Add(int64(grown))
}

// shardOf returns the shard of a request's key, and what the refusals in it are
// remembered under, but for the limit.
func (c *DenyCache) shardOf(r *Request) (*denyShard, denialKey) {
	key := c.hashes.Sum(r.Key)
	return &c.shards[key[0]%denyShards], denialKey{key: key}
}
