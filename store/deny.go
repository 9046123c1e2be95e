package store

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keyhash"
)

// DenyCache is a [Store] that remembers the denials of another store, and repeats them without
// asking that store. It repeats a denial as long as the denial is certain, and a second at most.
// It never admits anything by itself. For up to that second it can deny a request that the store
// would allow by then: because events were given back, a budget was forgotten, or the clock of the
// store was set ahead.
//
// A denial by a limit holds for requests of the same key that cost as much or more and have the
// same burst or less: the limit would deny these as well, whatever others take meanwhile.
//
// Shortly before the second is over, one request asks the store again, while the others are
// still denied. So a flood of requests that stay denied costs about one check per second and key.
// A denial that ends earlier ends for all requests at once, because each may be the one that
// passes.
//
// Some requests change a budget or a ban even if they are denied. They are always passed on:
//
//   - if the mode isn't Binary,
//   - if a limit has Initial, and the request may be the first of its budget,
//   - if a ban counts denials.
//
// While a ban stands, nothing is counted or charged. So in a zone with a ban, only the ban is
// remembered. The lack of a free slot is never remembered.
type DenyCache struct {
	store  Store
	start  time.Time
	hashes keyhash.Hasher
	held   atomic.Int64
	shards [denyShards]denyShard
}

const (
	// maxDenialAge is how long a denial is remembered at most.
	maxDenialAge = time.Second
	// askAhead is how long before the end of a denial one request asks the store again. If it
	// has no answer after denyAgain, another request asks, too.
	askAhead, askAgain = maxDenialAge / 4, maxDenialAge / 16
	// maxDenials is how many denials are remembered at most. A new denial then has room only if
	// an old one has ended.
	maxDenials = 1 << 16
	// maxVariants is how many denials of one limit and key are remembered, one per kind. While
	// there are fewer, a request of another kind asks the store, and gets an exact RetryAfter.
	// After that it gets an upper bound, if a remembered denial covers it.
	maxVariants = 4
	denyShards  = 64
	// changeCells is how many instants of changes a shard keeps. Keys that share an instant
	// count as changed together, which costs at most another question to the store.
	changeCells = 64
)

// denyShard is a part of a [DenyCache]. All denials of a key are in the same shard.
type denyShard struct {
	mu    sync.Mutex
	known map[denialKey][]denial // of different kinds, the newest last
	held  int
	swept time.Duration
	// changed holds, by a hash of the key, the instant of the last refund or change through
	// this cache. If a request was sent before that instant, its denial may be outdated.
	changed [changeCells]time.Duration
}

type denialKey struct {
	id  string       // of the limit or the ban
	key keyhash.Hash // bounds the memory of long keys
}

// variant is the part of a request that decides how long a limit denies it. All denials by bans
// are of the zero kind.
type variant struct{ cost, burst int64 }

// denial is a denial by a limit, or a ban. Instants are times since the start of the cache.
type denial struct {
	variant
	decision   algorithms.Decision // with the RetryAfter of a request that can't be held
	sent       time.Duration
	answeredAt time.Duration // when the answer came
	askAt      time.Duration // the first request from then on asks the store
}

// subject is a limit or a ban of a request, by which the request can be denied again.
type subject struct {
	id string
	variant
	maxWait algorithms.Micros
	limit   *Limit // nil for a ban
}

// subjects returns the number of limits or bans whose remembered denials can deny a request.
func subjects(r *Request) int {
	switch {
	case r.Ban != nil:
		return 1
	case r.Mode != algorithms.Binary:
		return 0
	}
	return len(r.Limits)
}

// subjectOf returns the i-th of the limits or bans that subjects counts.
func subjectOf(r *Request, i int) subject {
	if r.Ban != nil {
		return subject{id: r.Ban.ID}
	}
	l := &r.Limits[i]
	return subject{l.ID, variant{r.Cost, l.Burst}, r.MaxWait, l}
}

// NewDenyCache returns a cache in front of a store.
func NewDenyCache(store Store) *DenyCache {
	c := &DenyCache{store: store, start: time.Now(), hashes: keyhash.New()}
	for i := range c.shards {
		c.shards[i].known = make(map[denialKey][]denial)
	}
	return c
}

func (c *DenyCache) now() time.Duration { return time.Since(c.start) }

// Take implements [Store].
func (c *DenyCache) Take(ctx context.Context, requests []Request) (bool, error) {
	if c.held.Load() > 0 && c.deniesAll(requests) {
		return false, nil
	}
	sent := c.now()
	allowed, err := c.store.Take(ctx, requests)
	if !allowed && err == nil {
		for i := range requests {
			c.remember(&requests[i], sent)
		}
	}
	return allowed, err
}

// deniesAll reports whether requests are known to be denied, and fills in their outcomes.
func (c *DenyCache) deniesAll(requests []Request) (denied bool) {
	now := c.now()
	for i := range requests {
		stands, ask := c.recall(&requests[i], now)
		if ask {
			return false
		}
		denied = denied || stands
	}
	return denied
}

// recall fills in the outcome of a request from remembered denials. It reports whether the zone
// denies the request, and whether the store must be asked in any case.
func (c *DenyCache) recall(r *Request, now time.Duration) (denied, ask bool) {
	if r.Ban == nil && r.Mode != algorithms.Binary {
		return false, true
	}
	o := &r.Outcome
	*o = Outcome{Decisions: o.Decisions[:0], Slots: SlotsOutcome{Free: true}}
	for range r.Limits {
		o.Decisions = append(o.Decisions, algorithms.Decision{NotAsked: true})
	}
	shard, key := c.shardOf(r.Key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	for i := range subjects(r) {
		s := subjectOf(r, i)
		key.id = s.id
		d := findDenial(shard.known[key], s, now)
		switch {
		case (d == nil || r.Shadow) && (s.limit == nil || s.limit.Lingers()):
			return false, true // the ban may have to count a denial, or the budget to begin
		case d == nil:
			continue
		case now >= d.askAt:
			d.askAt = now + askAgain
			return false, true
		}
		o.Cached, denied = true, !r.Shadow
		if told := d.decisionNow(s, now); s.limit != nil {
			o.Verdict, o.Decisions[i] = Denied, told
		} else {
			o.Verdict, o.Ban = Banned, BanOutcome{Stands: true, EndsAfter: told.RetryAfter}
		}
	}
	return denied, false
}

// findDenial returns the denial that denies a subject, out of the known denials of a limit and key. That
// is the denial of the subject's own kind or, if an inexact RetryAfter is good enough, the newest
// denial that covers the subject.
func findDenial(known []denial, s subject, now time.Duration) (found *denial) {
	for i := len(known) - 1; i >= 0; i-- {
		d := &known[i]
		stands := d.stands(s.maxWait, now)
		switch {
		case d.variant == s.variant && stands:
			return d
		case d.variant == s.variant:
			return nil
		case found == nil && stands && d.covers(s.variant) && (len(known) == maxVariants || s.neverFits()):
			found = d
		}
	}
	return found
}

// covers reports whether a limit that denies requests of one kind also denies those of another.
func (k variant) covers(other variant) bool { return other.cost >= k.cost && other.burst <= k.burst }

// stands reports whether the denial certainly stands for a request that may be held for maxWait.
// It is cautious: the store decided after the denied request was sent, and counts in whole
// microseconds.
func (d *denial) stands(maxWait algorithms.Micros, now time.Duration) bool {
	certain := min(d.decision.RetryAfter-maxWait-1, maxDenialAge.Microseconds())
	return now < d.sent+time.Duration(certain)*time.Microsecond
}

// neverFits reports whether the limit never has room for the cost of the request.
func (s subject) neverFits() bool {
	return s.limit != nil && s.cost > s.burst && !s.limit.Algorithm().BinaryOnly
}

// decisionNow returns the decision as it stands now. The RetryAfter of a request of another kind is an
// upper bound: when the budget is as good as untouched, the request passes.
func (d *denial) decisionNow(s subject, now time.Duration) algorithms.Decision {
	told := d.decision
	switch {
	case s.neverFits():
		told.RetryAfter = algorithms.Forever
	case d.variant != s.variant:
		told.RetryAfter = max(told.RetryAfter, told.ResetAfter) - s.maxWait
	default:
		told.RetryAfter -= s.maxWait
	}
	told.Age((now - d.answeredAt).Microseconds())
	return told
}

// remember remembers the denials of a request that was sent at an instant. It remembers nothing if
// the key has changed since, if the denials have ended already, or if there is no room.
func (c *DenyCache) remember(r *Request, sent time.Duration) {
	now := c.now()
	shard, key := c.shardOf(r.Key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if *shard.changedLocked(key) > sent {
		return
	}
	for i := range subjects(r) {
		s := subjectOf(r, i)
		d := denial{variant: s.variant, sent: sent, answeredAt: now, askAt: sent + maxDenialAge - askAhead}
		if s.limit == nil {
			d.decision = algorithms.Decision{Allowed: r.Outcome.Ban.EndsAfter == 0, RetryAfter: r.Outcome.Ban.EndsAfter}
		} else if d.decision = r.Outcome.Decisions[i]; d.decision.RetryAfter < algorithms.Forever {
			d.decision.RetryAfter += s.maxWait
		}
		if key.id = s.id; !d.decision.Allowed && d.stands(s.maxWait, now) {
			c.addLocked(shard, key, d)
		}
	}
}

// addLocked adds a denial to the known denials of a limit and key. It replaces the denial of the
// same kind, or the oldest one if there are denyKinds.
func (c *DenyCache) addLocked(s *denyShard, key denialKey, d denial) {
	room := c.roomLocked(s, d.answeredAt)
	known := s.known[key]
	old := slices.IndexFunc(known, func(old denial) bool { return old.variant == d.variant })
	if old < 0 && len(known) == maxVariants {
		old = 0
	}
	if old >= 0 {
		known = slices.Delete(known, old, old+1)
	} else if !room {
		return
	}
	c.setDenialsLocked(s, key, append(known, d))
}

// roomLocked reports whether a shard has room. Now and then, and more often when there is no room,
// it drops the denials that have ended.
func (c *DenyCache) roomLocked(s *denyShard, now time.Duration) bool {
	const most = maxDenials / denyShards
	pause := maxDenialAge
	if s.held >= most {
		pause /= 16
	}
	if now-s.swept >= pause {
		s.swept = now
		for key, known := range s.known {
			if !slices.ContainsFunc(known, func(d denial) bool { return d.stands(0, now) }) {
				c.setDenialsLocked(s, key, nil)
			}
		}
	}
	return s.held < most
}

// CountSlots implements slotCounter.
func (c *DenyCache) CountSlots(requests []Request) { countSlots(c.store, requests) }

// Correct implements [Store]. It forgets the denials by limits that get a charge back.
func (c *DenyCache) Correct(corrections []Correction, failed func(error)) {
	c.store.Correct(corrections, failed)
	for i := range corrections {
		r := corrections[i].Request
		if corrections[i].Refund == 0 {
			continue
		}
		s, key := c.shardOf(r.Key)
		s.mu.Lock()
		for j, d := range r.Outcome.Decisions {
			if key.id = r.Limits[j].ID; d.Charged > 0 {
				c.setDenialsLocked(s, key, nil)
				*s.changedLocked(key) = c.now() + 1
			}
		}
		s.mu.Unlock()
	}
}

// Change implements [Store]. It forgets the denials of the key in the zone.
func (c *DenyCache) Change(ctx context.Context, change Change) error {
	err := c.store.Change(ctx, change)
	s, key := c.shardOf(change.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	*s.changedLocked(key) = c.now() + 1
	for known := range s.known {
		if known.key == key.key && strings.HasPrefix(known.id, change.Zone+":") {
			c.setDenialsLocked(s, known, nil)
		}
	}
	return err
}

// changedLocked returns where a shard keeps the first instant after the last change of a key.
func (s *denyShard) changedLocked(key denialKey) *time.Duration {
	return &s.changed[key.key[1]%changeCells]
}

// setDenialsLocked sets the known denials of a limit and key.
func (c *DenyCache) setDenialsLocked(s *denyShard, key denialKey, known []denial) {
	grown := len(known) - len(s.known[key])
	if len(known) > 0 {
		s.known[key] = known
	} else {
		delete(s.known, key)
	}
	s.held += grown
	c.held.Add(int64(grown))
}

// shardOf returns the shard of a key, and the key of its denials there, without the ID.
func (c *DenyCache) shardOf(key string) (*denyShard, denialKey) {
	sum := c.hashes.Sum(key)
	return &c.shards[sum[0]%denyShards], denialKey{key: sum}
}
