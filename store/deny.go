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

// DenyCache is a [Store] that remembers the denials of another one, and denies again without
// asking it, for as long as that was certain then, and a second at most. It never admits
// anything by itself. For up to that second it can deny a request that the store would by
// then allow, because somebody has given events back or forgotten a budget, or the clock of
// the store was set ahead.
//
// A denial by a limit holds for requests of the same key that cost as much or more, have the
// same burst or less, and may be held as long or shorter: whatever others take meanwhile, the
// limit would deny these as well. Those that cost more or have less burst can have longer to
// wait. A few kinds of them are remembered by themselves first, so that they are told exactly.
// When a denial has ended, one request asks the store, and those that come meanwhile wait for
// its answer. So a flood of denied requests costs one check per second, or per retry-after
// where that is shorter, of each key.
//
// Requests are always passed on that change something even if they are denied: where the mode
// isn't Binary, where a limit may not have begun to fill a budget that begins with less, and
// where a ban counts denials. Once a ban stands nothing is counted nor charged any more, and
// of a zone with a ban it alone is remembered. Of a zone with slots nothing else is.
type DenyCache struct {
	store   Store
	timeout time.Duration
	start   time.Time
	hashes  keyhash.Hasher
	held    atomic.Int64
	shards  [denyShards]denyShard
}

const (
	// denyLongest is how long a denial is remembered at most.
	denyLongest = time.Second
	// denyMost is how many denials are remembered at most. When there are as many, only
	// those that have ended make room.
	denyMost = 1 << 16
	// denyKinds is how many denials of one limit and key are remembered, by kind. Further
	// requests that these cover are told the longest wait of theirs, which may be too short.
	denyKinds  = 4
	denyShards = 64
	// denyCells is how many instants of changes a shard keeps. Keys that share an instant
	// count as changed together, which costs at most another question to the store.
	denyCells = 64
)

// denyShard is a part of a [DenyCache]: all denials of a key are in the same.
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
	id  string       // of the limit or the ban
	key keyhash.Hash // bounds the memory of long keys
}

// kind is what of a request a limit denies it by. The denials of bans are of the zero kind,
// because they deny every request.
type kind struct {
	cost, burst int64
	maxWait     algorithms.Micros
}

// covers reports whether a limit that denies requests of one kind also denies those of another.
func (k kind) covers(other kind) bool {
	return other.cost >= k.cost && other.burst <= k.burst && other.maxWait <= k.maxWait
}

// denial is a denial by a limit, or a ban. Instants are times since the start of the cache.
type denial struct {
	kind
	decision algorithms.Decision // of a ban: RetryAfter is when it ends
	told     time.Duration       // when the answer came
	until    time.Duration       // the request is denied before that
	far      bool                // the answer took so long that there is no time to wait for another's, too
	asked    *question           // what is being asked of the store since it has ended; or nil
}

// subject is a limit or a ban of a request, by which the request can be denied again.
type subject struct {
	id string
	kind
	limit *Limit // nil for a ban
}

// subjects returns how many limits or bans of a request can deny it without being asked.
func subjects(r *Request) int {
	switch {
	case r.Ban != nil:
		return 1
	case r.Slots != nil || r.Mode != algorithms.Binary:
		return 0
	}
	return len(r.Limits)
}

// subjectOf returns one of them.
func subjectOf(r *Request, i int) subject {
	if r.Ban != nil {
		return subject{id: r.Ban.ID}
	}
	l := &r.Limits[i]
	return subject{l.ID, kind{r.Cost, l.Burst, r.MaxWait}, l}
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
		if requests[i].Mode != algorithms.Binary && requests[i].Ban == nil {
			return c.store.Take(ctx, requests)
		}
	}
	if c.held.Load() == 0 {
		return c.take(ctx, requests)
	}
	came := c.now()
	denied, q, mine := c.look(came, requests)
	switch {
	case denied:
		return false, nil
	case q != nil && !mine:
		return c.takeAfter(ctx, came, q, requests)
	}
	return c.ask(ctx, q, requests)
}

// takeAfter is Take once another request has its answer. A request that came before a denial
// ended is denied by it, because the store would have denied it when it came: so nobody waits
// for more than the question under way and its own.
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
		var denied bool
		if denied, q, mine = c.look(came, requests); denied {
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

// take asks the store, and remembers its denials.
func (c *DenyCache) take(ctx context.Context, requests []Request) (bool, error) {
	sent := c.now()
	allowed, err := c.store.Take(ctx, requests)
	if allowed || err != nil {
		return allowed, err
	}
	told := c.now()
	for i := range requests {
		r := &requests[i]
		for j := range subjects(r) {
			s, o := subjectOf(r, j), &r.Outcome
			var d algorithms.Decision
			if s.limit == nil {
				d = algorithms.Decision{Allowed: o.Ban.EndsAfter == 0, RetryAfter: o.Ban.EndsAfter}
			} else {
				d = o.Decisions[j]
			}
			// The store decided after it was sent, and counts in whole microseconds.
			certain := time.Duration(min(d.RetryAfter-1, denyLongest.Microseconds())) * time.Microsecond
			if d.Allowed || sent+certain <= told {
				continue // it comes back faster than it can be asked about
			}
			c.remember(r, s.id, sent, denial{kind: s.kind, decision: d, told: told, until: sent + certain, far: told-sent > c.timeout/2})
		}
	}
	return false, nil
}

// Correct implements [Store]. Denials because of a charge that is given back are forgotten.
func (c *DenyCache) Correct(corrections []Correction, failed func(error)) {
	c.store.Correct(corrections, failed)
	for i := range corrections {
		r := corrections[i].Request
		if corrections[i].Refund == 0 {
			continue
		}
		s, key := c.shardOf(r)
		s.mu.Lock()
		for j, d := range r.Outcome.Decisions {
			if key.id = r.Limits[j].ID; d.Charged > 0 {
				c.setLocked(s, key, nil)
				*s.changedLocked(key) = c.now() + 1
			}
		}
		s.mu.Unlock()
	}
}

// changedLocked returns where a shard keeps the first instant after the last change of a key.
func (s *denyShard) changedLocked(key denialKey) *time.Duration {
	return &s.changed[key.key[1]%denyCells]
}

// Change implements [Store]. The denials of the key are forgotten.
func (c *DenyCache) Change(ctx context.Context, change Change) error {
	err := c.store.Change(ctx, change)
	s, key := c.shardOf(&Request{Key: change.Key})
	s.mu.Lock()
	defer s.mu.Unlock()
	*s.changedLocked(key) = c.now() + 1
	for known := range s.known {
		if known.key == key.key && strings.HasPrefix(known.id, change.Zone+":") {
			c.setLocked(s, known, nil)
		}
	}
	return err
}

// look looks up the known denials of a request that came at an instant. If they deny it, the
// outcomes are filled in. Otherwise q is the question about the first of its denials that has
// ended, and mine reports whether this request is the one to ask it.
func (c *DenyCache) look(came time.Duration, requests []Request) (denied bool, q *question, mine bool) {
	stands, counts, ended := false, false, -1
	for i := range requests {
		r := &requests[i]
		known, key := c.shardOf(r)
		known.mu.Lock()
		for j := range subjects(r) {
			s := subjectOf(r, j)
			key.id = s.id
			standing, over := find(known.known[key], came, s)
			if r.Shadow { // it denies nothing
				standing, over = nil, nil
			}
			if standing == nil && s.limit != nil && s.limit.Linger() > 0 {
				known.mu.Unlock()
				return false, nil, false // its budget may have to begin
			}
			counts = counts || standing == nil && s.limit == nil
			stands = stands || standing != nil
			if over != nil && ended < 0 {
				ended = i
			}
		}
		known.mu.Unlock()
	}
	switch {
	case stands && !counts: // else a denial may have to be counted by a ban
		return c.deny(came, requests), nil, false
	case ended >= 0:
		q, mine = c.question(came, &requests[ended])
	}
	return false, q, mine
}

// deny fills in the outcomes, and reports whether a zone still denies the request.
func (c *DenyCache) deny(came time.Duration, requests []Request) (denied bool) {
	now := c.now()
	for i := range requests {
		r, o := &requests[i], &requests[i].Outcome
		*o = Outcome{Decisions: o.Decisions[:0]}
		for range r.Limits {
			o.Decisions = append(o.Decisions, algorithms.Decision{NotAsked: true})
		}
		known, key := c.shardOf(r)
		known.mu.Lock()
		for j := range subjects(r) {
			s := subjectOf(r, j)
			key.id = s.id
			standing, _ := find(known.known[key], came, s)
			if standing == nil {
				continue
			}
			d := standing.tell(now, s)
			if o.Cached = true; s.limit != nil {
				o.Verdict, o.Decisions[j] = Denied, d
			} else {
				o.Verdict, o.Ban = Banned, BanOutcome{Stands: true, EndsAfter: d.RetryAfter}
			}
			denied = denied || !r.Shadow
		}
		known.mu.Unlock()
	}
	return denied
}

// question returns the question about the first denial of a request that has ended, and
// whether this request is the one to ask it. If it has been answered just now, it is nil.
func (c *DenyCache) question(came time.Duration, r *Request) (q *question, mine bool) {
	known, key := c.shardOf(r)
	known.mu.Lock()
	defer known.mu.Unlock()
	for j := range subjects(r) {
		s := subjectOf(r, j)
		key.id = s.id
		if _, ended := find(known.known[key], came, s); ended != nil {
			if ended.asked != nil {
				return ended.asked, false
			}
			ended.asked = &question{key: key, shard: known, answered: make(chan struct{})}
			return ended.asked, true
		}
	}
	return nil, false
}

// find returns, of the denials that cover a subject, the one with the longest wait of those
// that stood at an instant, and one that had ended and can be waited for. Denials of another
// cost or burst say that this request is denied, but not for how long: they count once no more
// kinds are remembered.
func find(known []denial, at time.Duration, s subject) (standing, ended *denial) {
	for i := range known {
		d := &known[i]
		same := s.cost == d.cost && s.burst == d.burst
		if !d.covers(s.kind) || !same && len(known) < denyKinds && !s.never() {
			continue
		}
		if at >= d.until && !d.far {
			ended = d
		} else if at < d.until && (standing == nil || d.decision.RetryAfter+d.maxWait > standing.decision.RetryAfter+standing.maxWait) {
			standing = d
		}
	}
	return standing, ended
}

// never reports whether the request can't ever pass the limit, now that it was denied.
func (s subject) never() bool {
	return s.limit != nil && s.cost > s.burst && !s.limit.Algorithm().BinaryOnly
}

// tell returns the decision as it stands now.
func (d *denial) tell(now time.Duration, s subject) algorithms.Decision {
	told := d.decision
	if s.never() {
		told.RetryAfter = algorithms.Forever
	} else if told.RetryAfter < algorithms.Forever {
		told.RetryAfter += d.maxWait - s.maxWait
	}
	told.Age((now - d.told).Microseconds())
	return told
}

// remember remembers a denial of a request that was sent at an instant. It does nothing if
// the key has changed since, if a known denial says as much, or if there is no room.
func (c *DenyCache) remember(r *Request, id string, sent time.Duration, d denial) {
	s, key := c.shardOf(r)
	key.id = id
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

// replaces reports whether d says all that another denial does: of the same cost and burst,
// and for as long.
func (d *denial) replaces(other *denial) bool {
	return d.cost == other.cost && d.burst == other.burst && d.maxWait >= other.maxWait && d.until >= other.until
}

// idle reports whether d has ended, and nobody asks about it.
func (d *denial) idle(now time.Duration) bool { return d.until <= now && d.asked == nil }

// roomLocked reports whether a shard has room. Now and then, and more often when there is
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

// shardOf returns the shard of a request's key, and the key of its denials there, but for the
// ID.
func (c *DenyCache) shardOf(r *Request) (*denyShard, denialKey) {
	key := c.hashes.Sum(r.Key)
	return &c.shards[key[0]%denyShards], denialKey{key: key}
}
