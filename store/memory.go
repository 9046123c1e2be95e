package store

import (
	"context"
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// Memory keeps budgets in this process. It is exact under concurrency, and it
// outlives any one configuration: a configuration uses it through [Memory.Bound],
// which carries its own settings.
//
// Its clock starts as the wall clock and then runs on the monotonic one, so
// that setting the wall clock neither mints nor freezes budgets.
//
// The budgets of one key are all in one shard, so a request of one key takes one
// lock. Expired budgets are dropped a shard at a time: by [Memory.Sweep], and
// when a new key finds no room.
type Memory struct {
	seed  maphash.Seed
	start time.Time

	shards [shardCount]struct {
		shard
		_ [56]byte // fills two cache lines: neighbours' locks don't slow each other
	}
	keys      atomic.Int64
	reclaimed atomic.Int64 // where reclaim goes on

	limits     atomic.Pointer[limitTable]
	limitsMu   sync.Mutex // for changes of limits
	overflow   shard      // the budgets shared by keys that found no room; locked after all others
	overflowed atomic.Int64
}

// shardCount gives a shard of a full store of the default size about 1000
// budgets. A scan of them takes about 50 µs. A request waits for one scan, or,
// for a new key in a full store, for a few.
const shardCount = 1024

// limitTable is what the store knows of the limits it was asked about. It is
// replaced as a whole.
type limitTable struct {
	byID     map[string]*limitRecord
	byNumber []*limitRecord
}

type limitRecord struct {
	number uint32
	zone   *zoneCount
}

// zoneCount is how much of the store one zone holds.
type zoneCount struct {
	name string
	keys atomic.Int64
}

// NewMemory returns an empty store.
func NewMemory() *Memory {
	m := &Memory{seed: maphash.MakeSeed(), start: time.Now()}
	m.limits.Store(new(limitTable))
	for i := range m.shards {
		m.shards[i].init()
	}
	m.overflow.init()
	return m
}

// Now is the store's clock.
func (m *Memory) Now() algorithms.Micros {
	return m.start.UnixMicro() + time.Since(m.start).Microseconds()
}

// Keys is how many budgets the store holds; those with long logs count for more
// than one.
func (m *Memory) Keys() int64 { return m.keys.Load() }

// Overflowed is how many checks were decided on a shared budget because the
// store was full.
func (m *Memory) Overflowed() int64 { return m.overflowed.Load() }

// Sweep drops the budgets that have expired. It locks one shard at a time.
func (m *Memory) Sweep() {
	now := m.Now()
	for i := range m.shards {
		if s := &m.shards[i].shard; now >= s.earliest.Load() {
			s.mu.Lock()
			s.sweepLocked(now, m.dropped)
			s.mu.Unlock()
		}
	}
	m.overflow.mu.Lock()
	defer m.overflow.mu.Unlock()
	// A request reads the clock before it locks this shard: what has expired only
	// just may still be in force for it.
	m.overflow.sweepLocked(now-1_000_000, func(uint32, int64) {})
}

func (m *Memory) dropped(limit uint32, weight int64) {
	m.count(m.limits.Load().byNumber[limit], -weight)
}

// count notes that the budgets of a limit weigh more, or less.
func (m *Memory) count(l *limitRecord, by int64) {
	if by != 0 {
		l.zone.keys.Add(by)
		m.keys.Add(by)
	}
}

// limit returns the record of a limit, made when it is first asked about.
func (m *Memory) limit(zone, id string) *limitRecord {
	if l := m.limits.Load().byID[id]; l != nil {
		return l
	}
	m.limitsMu.Lock()
	defer m.limitsMu.Unlock()
	known := m.limits.Load()
	if l := known.byID[id]; l != nil {
		return l
	}
	l := &limitRecord{number: uint32(len(known.byNumber))}
	for _, other := range known.byNumber {
		if other.zone.name == zone {
			l.zone = other.zone
		}
	}
	if l.zone == nil {
		l.zone = &zoneCount{name: zone}
	}
	next := &limitTable{byID: maps.Clone(known.byID), byNumber: append(slices.Clone(known.byNumber), l)}
	if next.byID == nil {
		next.byID = make(map[string]*limitRecord)
	}
	next.byID[id] = l
	m.limits.Store(next)
	return l
}

// Bounded is a [Memory] as one configuration sees it: a [Store].
type Bounded struct {
	memory  *Memory
	maxKeys int64
	zones   func() int
	full    func(zone string)
}

// Bound returns the store as one configuration sees it. A new key is taken in
// while the store holds fewer than maxKeys, or the key's zone fewer than an equal
// share of them, by the number of zones. New keys that find no room share one
// ordinary budget per limit, so that a flood of keys gets nobody a fresh one;
// full, if not nil, is called with their zone. What is held already stays until
// it expires, and logs may grow.
func (m *Memory) Bound(maxKeys int64, zones func() int, full func(zone string)) *Bounded {
	return &Bounded{memory: m, maxKeys: maxKeys, zones: zones, full: full}
}

// Take implements [Store]. It fails for overrides alone.
func (b *Bounded) Take(ctx context.Context, requests []Request) (bool, error) {
	return b.TakeAt(ctx, 0, requests)
}

// TakeAt is Take at an instant of the caller's choice; 0 stands for the store's
// clock.
func (b *Bounded) TakeAt(_ context.Context, now algorithms.Micros, requests []Request) (bool, error) {
	t := b.begin(now, requests)
	defer t.release()
	if err := t.overridden(requests); err != nil {
		return false, err
	}
	return t.take(requests), nil
}

// begin locks what the requests need, and then looks at the clock if now is 0: what
// expires by then may be swept before.
func (b *Bounded) begin(now algorithms.Micros, requests []Request) *take {
	t := takes.Get().(*take)
	t.Bounded = b
	t.lock(requests)
	if now == 0 {
		now = b.memory.Now()
	}
	t.now = now
	return t
}

func (t *take) take(requests []Request) (allowed bool) {
	for i := range requests {
		r := &requests[i]
		for n := range r.Limits {
			t.find(t.shardOf[i], r, &r.Limits[n])
		}
	}
	for i := range t.found { // only now, for what found and checks hold has moved as they grew
		f := &t.found[i]
		f.was, t.checks[i].State = f.budget().state, &f.budget().state
	}
	n := 0
	for i := range requests {
		r := &requests[i]
		if len(r.Limits) == 0 {
			continue
		}
		checks := t.checks[n : n+len(r.Limits)]
		t.zones = append(t.zones, algorithms.Request{Mode: r.Mode, Cost: r.Cost, MaxWait: r.MaxWait, Shadow: r.Shadow, Checks: checks})
		n += len(checks)
	}
	allowed = algorithms.Take(t.zones, t.now)
	n = 0
	for i := range requests {
		r := &requests[i]
		r.Decisions = r.Decisions[:0]
		for i := range r.Limits {
			d, f := t.checks[n].Decision, &t.found[n]
			ban := r.Limits[i].Bans()
			if ban && !f.held && !t.hasRoom(f.limit.zone) { // rather no ban than one of all that find no room
				d = algorithms.Decision{Allowed: true, Remaining: algorithms.Forever}
			} else if d.Charged > 0 || f.budget().state != f.was {
				t.keep(f, t.now+d.ResetAfter+r.Limits[i].Linger())
			}
			d.Receipt.Shared = d.Charged > 0 && f.limit == nil
			r.Decisions = append(r.Decisions, d)
			n++
		}
	}
	return allowed
}

// Refund implements [Store]. It never fails.
func (b *Bounded) Refund(ctx context.Context, requests []Request, n int64) error {
	return b.RefundAt(ctx, 0, requests, n)
}

// RefundAt is Refund at an instant of the caller's choice; 0 stands for the
// store's clock.
func (b *Bounded) RefundAt(_ context.Context, now algorithms.Micros, requests []Request, n int64) error {
	t := b.begin(now, requests)
	defer t.release()
	t.refund(requests, n)
	return nil
}

// Renew implements [Store]. It never fails.
func (b *Bounded) Renew(ctx context.Context, requests []Request) error {
	return b.RenewAt(ctx, 0, requests)
}

// RenewAt is Renew at an instant of the caller's choice; 0 stands for the store's clock.
func (b *Bounded) RenewAt(_ context.Context, now algorithms.Micros, requests []Request) error {
	for i := range requests {
		r := &requests[i]
		for j := range r.Decisions {
			if d := &r.Decisions[j]; d.Charged > 0 {
				b.renew(now, Request{Zone: r.Zone, Key: r.Key, Limits: r.Limits[j : j+1], Mode: algorithms.Force, Cost: d.Charged}, d)
			}
		}
	}
	return nil
}

// renew is Renew for one budget.
func (b *Bounded) renew(now algorithms.Micros, r Request, d *algorithms.Decision) {
	one := []Request{r}
	one[0].Decisions = []algorithms.Decision{*d}
	t := b.begin(now, one)
	defer t.release()
	t.refund(one, d.Charged)
	t.take(one)
	d.Charged, d.Receipt = one[0].Decisions[0].Charged, one[0].Decisions[0].Receipt
}

func (t *take) refund(requests []Request, n int64) {
	for i := range requests {
		r := &requests[i]
		for j, d := range r.Decisions {
			if d.Charged == 0 {
				continue
			}
			limit := t.memory.limit(r.Zone, r.Limits[j].ID)
			f := found{shard: t.shardOf[i], key: budgetKey{limit: limit.number, key: r.Key}, limit: limit}
			if d.Receipt.Shared {
				f = found{shard: t.lockOverflow(), key: budgetKey{limit: limit.number}}
			}
			if f.look(); !f.held {
				continue
			}
			l, s := r.Limits[j].Limit, &f.budget().state
			algorithms.Refund(l, s, t.now, d.Receipt, min(n, d.Charged))
			if l.Linger() > 0 { // then it matters how long it is known
				look := []algorithms.Request{{Checks: []algorithms.Check{{Limit: l, State: s}}}}
				algorithms.Take(look, t.now)
				f.shard.expiresLocked(f.place, t.now+look[0].Checks[0].Decision.ResetAfter+l.Linger())
			}
			if f.limit != nil {
				t.memory.count(f.limit, f.budget().weight()-f.weight)
			}
		}
	}
}

// take is the working memory of one TakeAt, RefundAt or RenewAt.
type take struct {
	*Bounded
	now      algorithms.Micros
	shardOf  []*shard // of each request
	locked   []uint16 // the shards locked, ascending
	overflow bool     // the overflow shard is locked too
	// overflowed are the zones that found no room, to be told of without locks.
	overflowed []string
	found      []found // for each check
	checks     []algorithms.Check
	zones      []algorithms.Request
}

// found is the budget of one check and where it belongs.
type found struct {
	shard  *shard
	key    budgetKey
	limit  *limitRecord // nil for an overflow budget, which isn't counted
	held   bool         // it is in the shard, at this place of the slab
	place  uint32
	was    algorithms.State
	fresh  budget // if it isn't held: what keep will put there
	weight int64  // as counted: 0 if it isn't held
}

// budget returns where the budget is now; the next one put into the shard may
// move it.
func (f *found) budget() *budget {
	if f.held {
		return &f.shard.slab[f.place]
	}
	return &f.fresh
}

// look looks whether the budget is in its shard.
func (f *found) look() {
	if f.place, f.held = f.shard.places[f.key]; f.held {
		f.weight = f.budget().weight()
	} else {
		f.weight = 0
	}
}

var takes = sync.Pool{New: func() any { return new(take) }}

// lock locks the shards of all requests' keys, in ascending order.
func (t *take) lock(requests []Request) {
	for i := range requests {
		s := uint16(maphash.String(t.memory.seed, requests[i].Key) % shardCount)
		t.shardOf = append(t.shardOf, &t.memory.shards[s].shard)
		t.locked = append(t.locked, s)
	}
	slices.Sort(t.locked)
	t.locked = slices.Compact(t.locked)
	for _, s := range t.locked {
		t.memory.shards[s].mu.Lock()
	}
}

func (t *take) release() {
	if t.overflow {
		t.memory.overflow.mu.Unlock()
	}
	for _, s := range t.locked {
		t.memory.shards[s].mu.Unlock()
	}
	if t.full != nil {
		for _, zone := range t.overflowed {
			t.full(zone)
		}
	}
	clear(t.shardOf)
	clear(t.overflowed)
	clear(t.found)
	clear(t.checks)
	clear(t.zones)
	*t = take{shardOf: t.shardOf[:0], locked: t.locked[:0], found: t.found[:0], checks: t.checks[:0], zones: t.zones[:0], overflowed: t.overflowed[:0]}
	takes.Put(t)
}

// find finds the budget of a key: the one held, or a fresh one, which keep puts
// into its shard once something is charged, or the one shared by the keys that
// found no room.
func (t *take) find(s *shard, r *Request, l *Limit) {
	limit := t.memory.limit(r.Zone, l.ID)
	f := found{shard: s, key: budgetKey{limit: limit.number, key: r.Key}, limit: limit}
	f.look()
	if !f.held && !l.Bans() && !t.hasRoom(limit.zone) && !t.reclaim(limit.zone) {
		f = found{shard: t.overflowShard(r.Zone), key: budgetKey{limit: limit.number}}
		f.look()
	}
	if f.held && l.Linger() > 0 && f.budget().expires <= t.now { // a budget that begins with less isn't as good as full
		f.budget().state = algorithms.State{}
	}
	t.found = append(t.found, f)
	t.checks = append(t.checks, algorithms.Check{Limit: l.Limit})
}

// hasRoom tells whether a zone may take in a new key.
func (t *take) hasRoom(zone *zoneCount) bool {
	return t.memory.keys.Load() < t.maxKeys || zone.keys.Load() < t.maxKeys/int64(max(t.Bounded.zones(), 1))
}

// reclaim drops expired budgets until a zone has room, and tells whether it has.
// It scans a few shards at most, the next call the next few, and passes over
// those that others hold.
func (t *take) reclaim(zone *zoneCount) bool {
	m := t.memory
	first := m.reclaimed.Load()
	scanned, n := 0, int64(0)
	for ; n < shardCount && scanned < 4 && !t.hasRoom(zone); n++ {
		i := uint16((first + n) % shardCount)
		s := &m.shards[i].shard
		if t.now < s.earliest.Load() {
			continue
		}
		if _, ours := slices.BinarySearch(t.locked, i); ours {
			s.sweepLocked(t.now, m.dropped)
		} else if s.mu.TryLock() {
			s.sweepLocked(t.now, m.dropped)
			s.mu.Unlock()
		}
		scanned++
	}
	m.reclaimed.Store(first + n)
	for i := range t.found { // what was found earlier may have been dropped just now
		t.found[i].look()
	}
	return t.hasRoom(zone)
}

// overflowShard notes that a zone found no room, and locks and returns the shard of
// the shared budgets.
func (t *take) overflowShard(zone string) *shard {
	t.memory.overflowed.Add(1)
	t.overflowed = append(t.overflowed, zone)
	return t.lockOverflow()
}

func (t *take) lockOverflow() *shard {
	if !t.overflow {
		t.memory.overflow.mu.Lock()
		t.overflow = true
	}
	return &t.memory.overflow
}

// keep notes that a budget was charged, and puts it into its shard if it is new.
func (t *take) keep(f *found, expires algorithms.Micros) {
	if !f.held {
		f.place, f.held = f.shard.putLocked(f.key, f.fresh), true
	}
	f.shard.expiresLocked(f.place, expires)
	if f.limit != nil {
		t.memory.count(f.limit, f.budget().weight()-f.weight)
	}
}
