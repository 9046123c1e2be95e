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
// remembers only the ban. It never remembers that no slot was free, and answers nothing for a shadow.
type DenyCache struct {
	store  Store
	start  time.Time
	until  atomic.Int64 // no denial is remembered for longer, as a time since start
	hashes keyhash.Hasher
	seed   maphash.Seed // of the hash of a call
	sets   [maxDenials / denySetSize]denySet
}

const (
	// maxDenialAge is how long a denial is remembered.
	maxDenialAge = time.Second
	// askAhead is how long before the end of a denial one request asks the store again. If the
	// request has no answer after askAgain, another request asks, too.
	askAhead, askAgain = maxDenialAge / 4, maxDenialAge / 16
	// maxDenials is the largest number of remembered denials. A set that is full has room
	// only after an old denial has ended.
	maxDenials  = 1 << 16
	denySetSize = 16
)

// denySet has the denials of a part of all keys.
type denySet struct {
	// changed is the first instant after the last refund or change of any of the keys through this cache, as a
	// time since the start. A denial of a request that was sent before may be outdated.
	changed atomic.Int64

	mu      sync.Mutex
	denials []*denial
}

// denyRule is a limit or a ban of a request, which can deny the request.
type denyRule struct {
	id      string
	burst   int64             // a factor makes limits of one ID that differ in burst
	cost    int64             // 0 for a ban, which denies any cost
	maxWait algorithms.Micros // of the request
	counts  bool              // the rule changes something in the store unless it is known to deny
}

// denial is a denial by a rule. Instants are times since the start of the cache.
type denial struct {
	denyRule
	key         keyhash.Hash
	decision    algorithms.Decision // with the RetryAfter of a request that can't be delayed
	limits      algorithms.Decision // with a ban: RetryAfter is the longest of the zone's limits
	decidedAt   algorithms.Micros   // when the store decided, by its clock
	sentAt      time.Duration       // when the request was sent
	answeredAt  time.Duration       // when the answer came
	call        uint64              // the hash of the call that was denied
	askAt       time.Duration       // from then on, one such call asks the store again
	askOthersAt time.Duration       // from then on, one other call asks the store
}

// NewDenyCache returns a DenyCache for a store.
func NewDenyCache(store Store) *DenyCache {
	return &DenyCache{store: store, start: time.Now(), hashes: keyhash.New(), seed: maphash.MakeSeed()}
}

// now returns the time since the start of the cache.
func (c *DenyCache) now() time.Duration { return time.Since(c.start) }

// locate returns the hash of a key, and its set.
func (c *DenyCache) locate(key string) (*denySet, keyhash.Hash) {
	hash := c.hashes.Sum(key)
	return &c.sets[hash[0]%uint64(len(c.sets))], hash
}

// Take implements [Store].
func (c *DenyCache) Take(ctx context.Context, requests []Request) (bool, error) {
	if slices.ContainsFunc(requests, func(r Request) bool { return r.Peek }) { // to see the budgets, also if denied
		return c.store.Take(ctx, requests)
	}
	sentAt := c.now()
	if int64(sentAt) < c.until.Load() && c.denies(requests, sentAt) {
		return false, nil
	}
	allowed, err := c.store.Take(ctx, requests)
	if !allowed && err == nil {
		c.remember(requests, sentAt)
	}
	return allowed, err
}

// countRules returns the number of rules of a request whose denials can be remembered.
func countRules(r *Request) int {
	switch {
	case r.Ban != nil:
		return 1
	case r.Mode != algorithms.Binary:
		return 0
	}
	return len(r.Limits)
}

// ruleOf returns the rule with index i of a request.
func ruleOf(r *Request, i int) denyRule {
	if r.Ban != nil {
		return denyRule{id: r.Ban.ID, counts: len(r.Limits) > 0} // the ban counts denials
	}
	l := &r.Limits[i]
	return denyRule{l.ID, l.Burst, r.Cost, r.MaxWait, l.KeptAfterReset()} // the budget may begin
}

// callOf returns a hash of all that determines how long a call is denied, and the first instant after the
// last change of its keys.
func (c *DenyCache) callOf(requests []Request) (hash uint64, changed time.Duration) {
	type part struct {
		before        uint64
		key, id       string
		cost, burst   int64
		maxWait, mode int64
	}
	for i := range requests {
		r := &requests[i]
		s, _ := c.locate(r.Key)
		changed = max(changed, time.Duration(s.changed.Load()))
		if r.Shadow {
			continue
		}
		if r.Ban != nil {
			hash = maphash.Comparable(c.seed, part{before: hash, key: r.Key, id: r.Ban.ID})
		}
		for _, l := range r.Limits {
			hash = maphash.Comparable(c.seed, part{hash, r.Key, l.ID, r.Cost, l.Burst, r.MaxWait, int64(r.Mode)})
		}
	}
	return hash, changed
}

// denies reports whether requests are certainly denied, and then fills in their outcomes.
func (c *DenyCache) denies(requests []Request, now time.Duration) (denied bool) {
	call, changed := c.callOf(requests)
	for i := range requests {
		var ask bool
		if denied, ask = c.recall(&requests[i], now, call, changed, denied); ask {
			return false
		}
	}
	return denied
}

// recall fills in the outcome of a request of a call from remembered denials. It reports whether these or those of
// earlier requests deny the call, and whether the call must ask the store nevertheless. The first denial decides
// when the call asks for an exact RetryAfter.
func (c *DenyCache) recall(
	r *Request, now time.Duration, call uint64, changed time.Duration, deniedBefore bool,
) (denied, ask bool) {
	if r.Ban == nil && r.Mode != algorithms.Binary {
		return false, true
	}
	denied = deniedBefore
	r.Outcome = Outcome{Decisions: r.Outcome.Decisions[:0], Slots: SlotsOutcome{Free: true}}
	for range r.Limits {
		r.Outcome.Decisions = append(r.Outcome.Decisions, algorithms.Decision{NotAsked: true})
	}
	s, key := c.locate(r.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range countRules(r) {
		rule := ruleOf(r, i)
		n := s.indexLocked(key, rule)
		switch {
		case n >= 0 && !r.Shadow && rule.cost >= s.denials[n].cost && s.denials[n].stands(s, rule.maxWait, now):
			if !denied && s.denials[n].asks(now, call, changed) {
				return false, true
			}
			denied = true
			s.denials[n].repeat(r, i, now)
		case rule.counts:
			return false, true
		}
	}
	return denied, false
}

// indexLocked returns the index of the remembered denial by a rule of a key, or -1.
func (s *denySet) indexLocked(key keyhash.Hash, rule denyRule) int {
	return slices.IndexFunc(s.denials, func(d *denial) bool {
		return d.key == key && d.id == rule.id && d.burst == rule.burst
	})
}

// stands reports whether the denial certainly stands for a request that can be delayed by maxWait.
// stands is cautious, because the store decided some time after the request was sent, and counts in
// whole microseconds.
func (d *denial) stands(s *denySet, maxWait algorithms.Micros, now time.Duration) bool {
	certain := min(d.decision.RetryAfter-maxWait-1, maxDenialAge.Microseconds())
	return int64(d.sentAt) >= s.changed.Load() && now < d.sentAt+time.Duration(certain)*time.Microsecond
}

// asks reports whether a call that the denial denies must ask the store nevertheless. It keeps others from
// asking at the same time.
func (d *denial) asks(now time.Duration, call uint64, changed time.Duration) bool {
	at := &d.askAt
	if call != d.call || d.sentAt < changed {
		at = &d.askOthersAt
	}
	if now < *at {
		return false
	}
	*at = now + askAgain
	return true
}

// repeat fills in the outcome of a request that the denial by its rule with index i denies.
func (d *denial) repeat(r *Request, i int, now time.Duration) {
	passed := (now - d.answeredAt).Microseconds()
	o, decision, limits := &r.Outcome, d.decision, d.limits
	decision.Age(passed)
	limits.Age(passed)
	o.Cached, o.At = true, d.decidedAt+passed
	if r.Ban != nil {
		o.Verdict, o.Ban = Banned, BanOutcome{Stands: true, EndsAfter: decision.RetryAfter}
		if len(o.Decisions) > 0 {
			o.Decisions[0].RetryAfter = limits.RetryAfter
		}
		return
	}
	if decision.RetryAfter < algorithms.Forever {
		decision.RetryAfter -= r.MaxWait
	}
	o.Verdict, o.Decisions[i] = Denied, decision
}

// remember remembers the denials of a call.
func (c *DenyCache) remember(requests []Request, sentAt time.Duration) {
	call, _ := c.callOf(requests)
	now := c.now()
	for i := range requests {
		r := &requests[i]
		s, key := c.locate(r.Key)
		s.mu.Lock()
		for j := range countRules(r) {
			d := &denial{
				denyRule: ruleOf(r, j), key: key, decidedAt: r.Outcome.At,
				sentAt: sentAt, answeredAt: now, call: call, askAt: sentAt + maxDenialAge - askAhead,
			}
			d.setDecision(r, j)
			if !d.decision.Allowed && d.stands(s, d.maxWait, now) && s.addLocked(d, now) {
				c.until.Store(int64(sentAt + maxDenialAge))
			}
		}
		s.mu.Unlock()
	}
}

// setDecision sets the decision by the rule with index i of a request. A denial that is repeated charges nothing.
func (d *denial) setDecision(r *Request, i int) {
	if r.Ban != nil {
		d.decision.RetryAfter = r.Outcome.Ban.EndsAfter
		for _, decision := range r.Outcome.Decisions {
			d.limits.RetryAfter = max(d.limits.RetryAfter, decision.RetryAfter)
		}
		return
	}
	d.decision = r.Outcome.Decisions[i]
	d.decision.Receipt = algorithms.Receipt{}
	if d.decision.RetryAfter < algorithms.Forever {
		d.decision.RetryAfter += r.MaxWait
	}
}

// addLocked adds a denial, in place of the one by the same rule. It reports whether there was room. A denial that
// stands is kept if the new one is of a higher cost, because it denies more requests.
func (s *denySet) addLocked(d *denial, now time.Duration) bool {
	s.denials = slices.DeleteFunc(s.denials, func(old *denial) bool { return !old.stands(s, 0, now) })
	if n := s.indexLocked(d.key, d.denyRule); n >= 0 {
		if old := s.denials[n]; old.cost >= d.cost {
			d.askOthersAt = old.askOthersAt
			s.denials[n] = d
		}
		return true
	}
	if len(s.denials) == denySetSize {
		return false
	}
	s.denials = append(s.denials, d)
	return true
}

// CountSlots implements [SlotCounter].
func (c *DenyCache) CountSlots(requests []Request) { countSlots(c.store, requests) }

// Correct implements [Store]. It forgets the denials of keys that get events back.
func (c *DenyCache) Correct(corrections []Correction, failed func(error)) {
	c.store.Correct(corrections, failed)
	for i := range corrections {
		if corrections[i].Refund == 0 {
			continue
		}
		c.forget(corrections[i].Request.Key)
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
	s, _ := c.locate(key)
	s.mu.Lock() // so that changed never goes back
	defer s.mu.Unlock()
	s.changed.Store(int64(c.now() + 1))
}
