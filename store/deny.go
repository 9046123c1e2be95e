package store

import (
	"context"
	"hash/maphash"
	"slices"
	"strings"
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
// Another limit or ban of a request could deny it for longer than the remembered denial. So the DenyCache
// repeats the denial only if the store has decided on all of them together, or has denied each of them. A flood
// can vary the keys of the others. So the DenyCache asks the store about them at most 16 times per second for
// each denied key. A request in between gets only the RetryAfter that is known.
//
// If a limit denies a request, it also denies requests of the same key that cost as much or more, and
// have the same or a smaller burst. So one remembered denial answers these, too.
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
// remembers only the ban. It never remembers that no slot was free.
type DenyCache struct {
	store   Store
	start   time.Time
	hashes  keyhash.Hasher
	seed    maphash.Seed // of togetherHash
	denials atomic.Int64 // the number of remembered denials
	shards  [denyShards]denyShard
}

const (
	// maxDenialAge is how long a denial is remembered.
	maxDenialAge = time.Second
	// askAhead is how long before the end of a denial one request asks the store again. If the
	// request has no answer after askAgain, another request asks, too.
	askAhead, askAgain = maxDenialAge / 4, maxDenialAge / 16
	// maxDenials is the largest number of remembered denials. If it is reached, a new denial is
	// remembered only after an old one has ended.
	maxDenials = 1 << 16
	// maxDemands is the largest number of remembered denials of one limit and key, one per demand.
	// While there are fewer, a request with another demand asks the store, and gets an exact
	// RetryAfter. After that the request gets an upper bound, if a remembered denial covers it.
	maxDemands = 4
	denyShards = 64
	// changeCells is the number of instants of changes in a shard. Keys that share an instant seem
	// to change together, which costs at most another request to the store.
	changeCells = 64
)

// denyShard is a part of a [DenyCache]. All denials of a key are in the same shard.
type denyShard struct {
	mu       sync.Mutex
	byBudget map[budgetKey][]denial // with different demands, the newest last
	denials  int                    // the number of denials in byBudget
	swept    time.Duration          // the instant of the last sweep
	// changed has, by a hash of the key, the first instant after the last refund or change through
	// this cache. A denial of a request that was sent before may be outdated.
	changed [changeCells]time.Duration
	// askOthersAt has instants, by a hash of a denied key. From then on, a request of this key may ask the
	// store about its other rules.
	askOthersAt [changeCells]time.Duration
}

// budgetKey identifies the budget of a limit, or a ban, of a key.
type budgetKey struct {
	id  string       // of the limit or the ban
	key keyhash.Hash // a hash, so that long keys need no more memory
}

// demand is the part of a request that determines for how long a limit denies it. For bans it is zero.
type demand struct{ cost, burst int64 }

// denial is a denial by a limit or a ban. Instants are times since the start of the cache.
type denial struct {
	demand
	decision   algorithms.Decision // with the RetryAfter of a request that can't be delayed
	decidedAt  algorithms.Micros   // when the store decided, by its clock
	sentAt     time.Duration       // when the request was sent
	answeredAt time.Duration       // when the answer came
	askAt      time.Duration       // from then on, one request asks the store again
	together   uint64              // the togetherHash of the request
	limits     []limitDecision     // with a ban: the decisions of the zone's limits
}

// limitDecision is the decision of a limit about a request that a ban denied. The limit can have no room
// when the ban ends.
type limitDecision struct {
	id   string
	mode algorithms.Mode
	denial
}

// denyRule is a limit or a ban of a request, which can deny the request.
type denyRule struct {
	id string
	demand
	maxWait algorithms.Micros
	mode    algorithms.Mode
	limit   *Limit // nil for a ban
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
		return denyRule{id: r.Ban.ID}
	}
	return limitRule(r, i)
}

// limitRule returns the rule of the limit with index i of a request.
func limitRule(r *Request, i int) denyRule {
	l := &r.Limits[i]
	return denyRule{l.ID, demand{r.Cost, l.Burst}, r.MaxWait, r.Mode, l}
}

// NewDenyCache returns a DenyCache for a store.
func NewDenyCache(store Store) *DenyCache {
	c := &DenyCache{store: store, start: time.Now(), hashes: keyhash.New(), seed: maphash.MakeSeed()}
	for i := range c.shards {
		c.shards[i].byBudget = make(map[budgetKey][]denial)
	}
	return c
}

// now returns the time since the start of the cache.
func (c *DenyCache) now() time.Duration { return time.Since(c.start) }

// Take implements [Store].
func (c *DenyCache) Take(ctx context.Context, requests []Request) (bool, error) {
	if peeks(requests) { // to see the budgets, also if the requests are denied
		return c.store.Take(ctx, requests)
	}
	if c.denials.Load() > 0 && c.denies(requests) {
		return false, nil
	}
	sentAt := c.now()
	allowed, err := c.store.Take(ctx, requests)
	if !allowed && err == nil {
		together := c.togetherHash(requests)
		for i := range requests {
			c.remember(&requests[i], sentAt, together)
		}
	}
	return allowed, err
}

// peeks reports whether any of the requests is a peek.
func peeks(requests []Request) bool {
	for i := range requests {
		if requests[i].Peek {
			return true
		}
	}
	return false
}

// recall fills in the outcome of a request from remembered denials, and adds to what is known. It reports
// whether the request must ask the store in any case.
func (c *DenyCache) recall(r *Request, now time.Duration, known *recollection) (ask bool) {
	if r.Ban == nil && r.Mode != algorithms.Binary {
		return true
	}
	o := &r.Outcome
	*o = Outcome{Decisions: o.Decisions[:0], Slots: SlotsOutcome{Free: true}}
	for range r.Limits {
		o.Decisions = append(o.Decisions, algorithms.Decision{NotAsked: true})
	}
	s, key := c.locate(r.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range countRules(r) {
		rule := ruleOf(r, i)
		key.id = rule.id
		d := findDenial(s.byBudget[key], rule, now)
		changes := rule.limit == nil || rule.limit.KeptAfterReset() // the ban counts the denial, or the budget begins
		switch {
		case d == nil && (!changes || len(r.Limits) == 0): // a ban without limits counts nothing
			if !r.Shadow {
				known.unknown, known.changedAt = true, max(known.changedAt, *s.changedLocked(key))
			}
			continue
		case changes && (d == nil || r.Shadow):
			return true
		case rule.limit == nil && len(d.limits) < len(r.Limits):
			return true // the request of the denial had no limits, so their waits are unknown
		case now >= d.askAt:
			d.askAt = now + askAgain
			return true
		}
		o.Cached = true
		if !r.Shadow {
			known.denied = r
		}
		if d.sentAt >= known.sentAt {
			known.sentAt, known.together = d.sentAt, d.together
		}
		o.At = d.decidedAt + (now - d.answeredAt).Microseconds()
		if decision := d.decisionAt(now, rule); rule.limit != nil {
			o.Verdict, o.Decisions[i] = Denied, decision
		} else {
			o.Verdict, o.Ban = Banned, BanOutcome{Stands: true, EndsAfter: decision.RetryAfter}
			d.recallLimits(r, now)
		}
	}
	return false
}

// recallLimits fills in how long the limits of a zone deny a request that a remembered ban denies.
func (d *denial) recallLimits(r *Request, now time.Duration) {
	for i, l := range d.limits[:min(len(d.limits), len(r.Limits))] {
		rule := limitRule(r, i)
		if l.id != rule.id {
			continue
		}
		if l.mode != r.Mode {
			l.decision.RetryAfter = l.decision.ResetAfter
		}
		r.Outcome.Decisions[i].RetryAfter = max(l.decisionAt(now, rule).RetryAfter, 0)
	}
}

// findDenial returns the one of a budget's denials that denies a request by a rule, or nil. This is the
// denial with the same demand. If an upper bound of RetryAfter is good enough, it may also be the
// newest denial that covers the demand.
func findDenial(denials []denial, rule denyRule, now time.Duration) (found *denial) {
	for i := len(denials) - 1; i >= 0; i-- {
		d := &denials[i]
		stands := d.stands(rule.maxWait, now)
		switch {
		case d.demand == rule.demand && stands:
			return d
		case d.demand == rule.demand:
			return nil
		case found == nil && stands && d.covers(rule.demand) && (len(denials) == maxDemands || rule.neverFits()):
			found = d
		}
	}
	return found
}

// covers reports whether a limit that denies a demand also denies another one.
func (d demand) covers(other demand) bool { return other.cost >= d.cost && other.burst <= d.burst }

// stands reports whether the denial certainly stands for a request that can be delayed by maxWait.
// stands is cautious, because the store decided some time after the request was sent, and counts in
// whole microseconds.
func (d *denial) stands(maxWait algorithms.Micros, now time.Duration) bool {
	certain := min(d.decision.RetryAfter-maxWait-1, maxDenialAge.Microseconds())
	return now < d.sentAt+time.Duration(certain)*time.Microsecond
}

// neverFits reports whether the request costs more than the limit ever has room for.
func (r denyRule) neverFits() bool {
	inPart := r.mode == algorithms.Nary || r.mode == algorithms.Force
	return r.limit != nil && r.cost > r.burst && !inPart && !r.limit.Algorithm().BinaryOnly
}

// decisionAt returns the decision of a denial as it is at an instant, for a request by a rule. If the
// demand is another one, RetryAfter is an upper bound: the time until the budget is fully
// restored.
func (d *denial) decisionAt(now time.Duration, rule denyRule) algorithms.Decision {
	decision := d.decision
	switch {
	case rule.neverFits():
		decision.RetryAfter = algorithms.Forever
	case decision.RetryAfter == algorithms.Forever:
		decision.RetryAfter = decision.ResetAfter // of a request that didn't fit, but this one does
	case d.demand != rule.demand:
		decision.RetryAfter = max(decision.RetryAfter, decision.ResetAfter) - rule.maxWait
	default:
		decision.RetryAfter -= rule.maxWait
	}
	decision.Age((now - d.answeredAt).Microseconds())
	return decision
}

// remember remembers the denials of a request. It remembers nothing if the key was changed after the
// request was sent, if the denials have ended already, or if there is no room.
func (c *DenyCache) remember(r *Request, sentAt time.Duration, together uint64) {
	now := c.now()
	s, key := c.locate(r.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if *s.changedLocked(key) > sentAt {
		return
	}
	for i := range countRules(r) {
		rule := ruleOf(r, i)
		d := denial{
			demand: rule.demand, decidedAt: r.Outcome.At,
			sentAt: sentAt, answeredAt: now, askAt: sentAt + maxDenialAge - askAhead, together: together,
		}
		if rule.limit != nil {
			d.decision = undelayed(r.Outcome.Decisions[i], rule.maxWait)
		} else if wait := r.Outcome.Ban.EndsAfter; wait > 0 {
			d.decision.RetryAfter = wait
			for j, decision := range r.Outcome.Decisions {
				rule := limitRule(r, j)
				remembered := denial{demand: rule.demand, decision: undelayed(decision, rule.maxWait), answeredAt: now}
				d.limits = append(d.limits, limitDecision{rule.id, r.Mode, remembered})
			}
		} else {
			d.decision.Allowed = true
		}
		if key.id = rule.id; !d.decision.Allowed && d.stands(rule.maxWait, now) {
			c.addLocked(s, key, d)
		}
	}
}

// undelayed returns the decision with the RetryAfter of a request that can't be delayed. In mode Uniform
// a limit with room has a RetryAfter, too, because it was charged.
func undelayed(d algorithms.Decision, maxWait algorithms.Micros) algorithms.Decision {
	switch {
	case d.Allowed:
		d.RetryAfter = max(d.RetryAfter, d.Wait)
	case d.RetryAfter < algorithms.Forever:
		d.RetryAfter += maxWait
	}
	d.Receipt = algorithms.Receipt{} // a denial that is repeated charges nothing
	return d
}

// addLocked adds a denial to those of its budget. It replaces the denial with the same demand or, if
// there are maxDemands, the oldest denial.
func (c *DenyCache) addLocked(s *denyShard, key budgetKey, d denial) {
	hasRoom := c.makeRoomLocked(s, d.answeredAt)
	denials := s.byBudget[key]
	old := slices.IndexFunc(denials, func(old denial) bool { return old.demand == d.demand })
	if old < 0 && len(denials) == maxDemands {
		old = 0
	}
	if old >= 0 {
		if len(d.limits) == 0 && denials[old].stands(0, d.answeredAt) { // still the same ban
			d.limits = denials[old].limits
		}
		denials = slices.Delete(denials, old, old+1)
	} else if !hasRoom {
		return
	}
	c.setDenialsLocked(s, key, append(denials, d))
}

// makeRoomLocked drops the denials that have ended, once in a while, or more often if there is no room.
// It reports whether the shard has room for another denial.
func (c *DenyCache) makeRoomLocked(s *denyShard, now time.Duration) bool {
	const maxPerShard = maxDenials / denyShards
	pause := maxDenialAge
	if s.denials >= maxPerShard {
		pause /= 16
	}
	if now-s.swept >= pause {
		s.swept = now
		for key, denials := range s.byBudget {
			if !slices.ContainsFunc(denials, func(d denial) bool { return d.stands(0, now) }) {
				c.setDenialsLocked(s, key, nil)
			}
		}
	}
	return s.denials < maxPerShard
}

// CountSlots implements [SlotCounter].
func (c *DenyCache) CountSlots(requests []Request) { countSlots(c.store, requests) }

// Correct implements [Store]. It forgets the denials by limits that get events back.
func (c *DenyCache) Correct(corrections []Correction, failed func(error)) {
	c.store.Correct(corrections, failed)
	for i := range corrections {
		r := corrections[i].Request
		if corrections[i].Refund == 0 {
			continue
		}
		s, key := c.locate(r.Key)
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

// List implements [Store].
func (c *DenyCache) List(ctx context.Context, l Listing) (Page, error) { return c.store.List(ctx, l) }

// Change implements [Store]. It forgets the denials of the key in the zone.
func (c *DenyCache) Change(ctx context.Context, change Change) error {
	err := c.store.Change(ctx, change)
	s, key := c.locate(change.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	*s.changedLocked(key) = c.now() + 1
	for k := range s.byBudget {
		if k.key == key.key && strings.HasPrefix(k.id, change.Zone+":") {
			c.setDenialsLocked(s, k, nil)
		}
	}
	return err
}

// changedLocked returns the place of the first instant after the last change of a key.
func (s *denyShard) changedLocked(key budgetKey) *time.Duration {
	return &s.changed[key.key[1]%changeCells]
}

// setDenialsLocked sets the denials of a budget.
func (c *DenyCache) setDenialsLocked(s *denyShard, key budgetKey, denials []denial) {
	delta := len(denials) - len(s.byBudget[key])
	if len(denials) > 0 {
		s.byBudget[key] = denials
	} else {
		delete(s.byBudget, key)
	}
	s.denials += delta
	c.denials.Add(int64(delta))
}

// locate returns the shard of a key, and the key of its budgets there, without the ID.
func (c *DenyCache) locate(key string) (*denyShard, budgetKey) {
	sum := c.hashes.Sum(key)
	return &c.shards[sum[0]%denyShards], budgetKey{key: sum}
}
