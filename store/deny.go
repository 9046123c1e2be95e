package store

import (
	"context"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keyhash"
)

// DenyCache is a [Store] that remembers the denials of another store, and repeats them without asking
// that store. It never allows a request by itself. A DenyCache repeats a denial as long as the denial
// certainly stands, but for at most one second.
//
// The DenyCache doesn't notice if another instance gives events back or forgets a budget, or if the
// clock of the store is set ahead. Then it still denies until the second is over. The DenyCache also
// doesn't notice later charges to the budget, such as those of cheaper requests. Then the RetryAfter of
// a repeated denial can be too short.
//
// If a limit denies a request, it also denies requests of the same key that cost more. But it could deny them
// for longer, and so could another limit or ban of the request. So a call that differs from the denied one asks
// the store, at most 16 times per second for each denied key. A call in between gets the RetryAfter that is
// known. This bounds a flood that varies its costs or its other keys.
//
// A flood of requests that stay denied costs about one request to the store per second and key.
// Shortly before the second is over, one request asks the store again, while the others are still
// denied. A denial that ends earlier ends for all requests at once, because each of them can pass.
//
// Requests that change something even if they are denied always go to the store:
//
//   - requests in another mode than Binary,
//   - requests to a limit with Initial, if they may be the first of their budget,
//   - requests to a limit of a zone with a ban that doesn't stand, because the ban counts denials.
//
// A standing ban counts and charges nothing, in any mode. So in a zone with a ban, the DenyCache
// remembers only the ban. It never remembers that no slot was free, or that events were reserved, and answers nothing for a shadow.
type DenyCache struct {
	store  Store
	start  time.Time
	hashes keyhash.Hasher
	seed   maphash.Seed // of the hash of a call
	sets   [maxDenials / denySetSize]denySet
}

const (
	// maxDenialAge is how long a denial is remembered.
	maxDenialAge = time.Second
	// askAfter is how long after a denial the same call asks the store again. If a call that asks has no answer
	// after askAgain, another call asks, too.
	askAfter, askAgain = maxDenialAge * 3 / 4, maxDenialAge / 16
	// maxDenials is the largest number of remembered denials. A set that is full has room
	// only after an old denial has ended.
	maxDenials  = 1 << 16
	denySetSize = 16
)

// denySet has the denials of a part of all keys.
type denySet struct {
	mu      sync.Mutex
	denials []*denial
	// changed is the first instant after the last refund or change of any of the keys through this cache. A denial
	// of a request that was sent before may be outdated.
	changed time.Duration
}

// denyRule is a limit or a ban of a request, which can deny the request.
type denyRule struct {
	key           keyhash.Hash
	id            string
	events, burst int64 // limits of one ID can differ in them
}

// denial is a denial by a rule. Instants are times since the start of the cache.
type denial struct {
	denyRule
	cost       int64               // the least that is denied; 0 for a ban
	endsAfter  algorithms.Micros   // since the decision, for a request that can't be delayed
	decision   algorithms.Decision // by the limit; with a ban, RetryAfter is the longest of the zone's limits
	decidedAt  algorithms.Micros   // by the clock of the store
	sentAt     time.Duration       // when the request was sent
	answeredAt time.Duration       // when the answer came
	call       uint64              // the hash of the call that was denied
	askAt      atomic.Int64        // from then on, one call may ask the store again
}

// NewDenyCache returns a DenyCache for a store.
func NewDenyCache(store Store) *DenyCache {
	return &DenyCache{store: store, start: time.Now(), hashes: keyhash.New(), seed: maphash.MakeSeed()}
}

// now returns the time since the start of the cache.
func (c *DenyCache) now() time.Duration { return time.Since(c.start) }

// lock locks and returns the set with the denials of a key.
func (c *DenyCache) lock(key keyhash.Hash) *denySet {
	s := &c.sets[key[0]%uint64(len(c.sets))]
	s.mu.Lock()
	return s
}

// Take implements [Store].
func (c *DenyCache) Take(ctx context.Context, requests []ZoneRequest) (bool, error) {
	if slices.ContainsFunc(requests, mustAsk) {
		return c.store.Take(ctx, requests)
	}
	sentAt := c.now()
	if c.denies(requests, sentAt) {
		return false, nil
	}
	allowed, err := c.store.Take(ctx, requests)
	if !allowed && err == nil {
		c.remember(requests, sentAt)
	}
	return allowed, err
}

// mustAsk reports whether the store must decide a request in any case. A peek wants to see the budgets.
func mustAsk(r ZoneRequest) bool { return r.Peek || r.Ban == nil && r.Mode != algorithms.Binary }

// countRules returns the number of rules of a request: its ban, or else its limits.
func countRules(r *ZoneRequest) int {
	if r.Ban != nil {
		return 1
	}
	return len(r.Limits)
}

// ruleOf returns the rule with index i of a request.
func (c *DenyCache) ruleOf(r *ZoneRequest, i int) denyRule {
	if r.Ban != nil {
		return denyRule{key: c.hashes.Sum(r.Key), id: r.Ban.ID}
	}
	return denyRule{c.hashes.Sum(r.Key), r.Limits[i].ID, r.Limits[i].Events, r.Limits[i].Burst}
}

// changes reports whether a request changes something in the store unless its rule with index i is known to deny it:
// the ban counts denials, or a budget may begin.
func changes(r *ZoneRequest, i int) bool {
	return len(r.Limits) > 0 && (r.Ban != nil || r.Limits[i].KeptAfterReset())
}

// callOf returns a hash of what determines how long a call is denied.
func (c *DenyCache) callOf(requests []ZoneRequest) (hash uint64) {
	type part struct {
		before                uint64
		rule                  denyRule
		cost, limits, maxWait int64
	}
	for i := range requests {
		r := &requests[i]
		for j := range countRules(r) {
			if !r.Shadow {
				hash = maphash.Comparable(c.seed, part{hash, c.ruleOf(r, j), r.Cost, int64(len(r.Limits)), r.MaxWait})
			}
		}
	}
	return hash
}

// denies reports whether requests are certainly denied, and fills in their outcomes, which hold only then. The first
// denial decides whether the call asks the store nevertheless.
func (c *DenyCache) denies(requests []ZoneRequest, now time.Duration) (denied bool) {
	for i := range requests {
		r := &requests[i]
		r.ClearOutcome()
		for j := range countRules(r) {
			switch d := c.find(r, j, now); {
			case d == nil && changes(r, j):
				return false
			case d == nil:
			case !denied && d.asks(now, c.callOf(requests)):
				return false
			default:
				denied = true
				d.repeat(r, j, now)
			}
		}
	}
	return denied
}

// find returns the remembered denial of a request by its rule with index i, or nil.
func (c *DenyCache) find(r *ZoneRequest, i int, now time.Duration) *denial {
	rule := c.ruleOf(r, i)
	s := c.lock(rule.key)
	defer s.mu.Unlock()
	n := s.indexLocked(rule)
	if r.Shadow || n < 0 || r.Cost < s.denials[n].cost || !s.standsLocked(s.denials[n], r.MaxWait, now) {
		return nil
	}
	return s.denials[n]
}

// indexLocked returns the index of the remembered denial by a rule, or -1.
func (s *denySet) indexLocked(rule denyRule) int {
	return slices.IndexFunc(s.denials, func(d *denial) bool { return d.denyRule == rule })
}

// standsLocked reports whether a denial certainly stands. It is cautious, because the store decided some time after
// the request was sent, and counts in whole microseconds.
func (s *denySet) standsLocked(d *denial, maxWait algorithms.Micros, now time.Duration) bool {
	certain := min(d.endsAfter-maxWait-1, maxDenialAge.Microseconds())
	return d.sentAt >= s.changed && now < d.sentAt+time.Duration(certain)*time.Microsecond
}

// asks reports whether a call that the denial denies asks the store nevertheless. It keeps others from asking at the
// same time.
func (d *denial) asks(now time.Duration, call uint64) bool {
	at := d.askAt.Load()
	if int64(now) < at || call == d.call && now < d.sentAt+askAfter {
		return false
	}
	return d.askAt.CompareAndSwap(at, int64(now+askAgain))
}

// repeat fills in the outcome of a request that the denial by its rule with index i denies.
func (d *denial) repeat(r *ZoneRequest, i int, now time.Duration) {
	passed := (now - d.answeredAt).Microseconds()
	o := &r.Outcome
	o.Verdict, o.Cached, o.At = Denied, true, d.decidedAt+passed
	if r.Ban != nil {
		o.Verdict, o.Ban = Banned, BanOutcome{Stands: true, EndsAfter: d.endsAfter - passed}
	}
	if len(o.Decisions) > 0 {
		o.Decisions[i] = d.decision
		o.Decisions[i].Age(passed)
		if r.Ban == nil && o.Decisions[i].RetryAfter < algorithms.Forever {
			o.Decisions[i].RetryAfter -= r.MaxWait
		}
	}
}

// remember remembers the denials of a call.
func (c *DenyCache) remember(requests []ZoneRequest, sentAt time.Duration) {
	call, now := c.callOf(requests), c.now()
	for i := range requests {
		r := &requests[i]
		for j := range countRules(r) {
			d := &denial{denyRule: c.ruleOf(r, j), decidedAt: r.Outcome.At, sentAt: sentAt, answeredAt: now, call: call}
			d.setDecision(r, j)
			s := c.lock(d.key)
			s.addLocked(d, now)
			s.mu.Unlock()
		}
	}
}

// setDecision sets the decision by the rule with index i of a request. A denial that is repeated charges nothing.
func (d *denial) setDecision(r *ZoneRequest, i int) {
	if r.Ban == nil {
		d.cost, d.decision = r.Cost, r.Outcome.Decisions[i]
		d.decision.Receipt = algorithms.Receipt{}
		if d.decision.RetryAfter > 0 && d.decision.RetryAfter < algorithms.Forever {
			d.decision.RetryAfter += r.MaxWait
		}
		if !d.decision.Reserved { // which can end at any instant
			d.endsAfter = d.decision.RetryAfter
		}
		return
	}
	d.endsAfter, d.decision.NotAsked = r.Outcome.Ban.EndsAfter, true
	for _, decision := range r.Outcome.Decisions {
		d.decision.RetryAfter = max(d.decision.RetryAfter, decision.RetryAfter)
	}
}

// addLocked adds a denial if it stands, and if there is room. It replaces one by the same rule, unless that
// is of a lower cost and so denies more requests.
func (s *denySet) addLocked(d *denial, now time.Duration) {
	s.denials = slices.DeleteFunc(s.denials, func(old *denial) bool { return !s.standsLocked(old, 0, now) })
	n := s.indexLocked(d.denyRule)
	switch {
	case !s.standsLocked(d, 0, now):
	case n >= 0 && s.denials[n].cost >= d.cost:
		d.askAt.Store(s.denials[n].askAt.Load())
		s.denials[n] = d
	case n < 0 && len(s.denials) < denySetSize:
		s.denials = append(s.denials, d)
	}
}

// CountSlots implements [Store].
func (c *DenyCache) CountSlots(requests []ZoneRequest) { c.store.CountSlots(requests) }

// Correct implements [Store]. It forgets the denials of keys that get events back.
func (c *DenyCache) Correct(corrections []Correction, failed func(error)) {
	c.store.Correct(corrections, failed)
	for i := range corrections {
		if corrections[i].Refund != 0 {
			c.forget(corrections[i].Request.Key)
		}
	}
}

// List implements [Store].
func (c *DenyCache) List(ctx context.Context, l Listing) (Page, error) { return c.store.List(ctx, l) }

// Change implements [Store]. It forgets the denials of the key.
func (c *DenyCache) Change(ctx context.Context, change Change) error {
	err := c.store.Change(ctx, change)
	c.forget(change.Key)
	return err
}

// forget forgets the denials of a key so far, and those of the other keys of its set.
func (c *DenyCache) forget(key string) {
	s := c.lock(c.hashes.Sum(key))
	defer s.mu.Unlock()
	s.changed = c.now() + 1
}
