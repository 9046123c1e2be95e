package store

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keyhash"
)

// Memory keeps budgets in this process. It is exact under concurrency, and it
// outlives any one configuration: a configuration uses it through [Memory.Bound],
// which carries its own settings.
//
// Its clock starts as the wall clock and then runs on the monotonic one, so
// that setting the wall clock neither mints nor freezes budgets.
//
// A budget is kept under a hash of its key and its limit. So long keys weigh no more than
// short ones, and limits need no table.
//
// The budgets of one key are all in one shard, so a request of one key takes one
// lock. Expired budgets are dropped a shard at a time: by [Memory.Sweep], and
// when a new key finds no room.
type Memory struct {
	hashes budgetHasher
	start  time.Time

	shards [shardCount]struct {
		shard
		_ [32]byte // fills two cache lines: neighbours' locks don't slow each other
	}
	keys      atomic.Int64
	reclaimed atomic.Int64 // where reclaim goes on

	zones      *zoneTable
	overflow   shard // the budgets shared by keys that found no room; locked after all others
	overflowed atomic.Int64
}

// shardCount gives a shard of a full store of the default size about 1000
// budgets. A scan of them takes about 50 µs. A request waits for one scan, or,
// for a new key in a full store, for a few.
const shardCount = 1024

// NewMemory returns an empty store.
func NewMemory() *Memory {
	m := &Memory{hashes: newBudgetHasher(), start: time.Now(), zones: newZoneTable()}
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
	m.zones.sweep()
	m.overflow.mu.Lock()
	defer m.overflow.mu.Unlock()
	// A request reads the clock before it locks this shard: what has expired only
	// just may still be in force for it.
	m.overflow.sweepLocked(now-1_000_000, func(uint32, int64) {})
}

// dropped subtracts the weight of a dropped budget of a zone.
func (m *Memory) dropped(zone uint32, weight int64) {
	m.zones.count(m.zones.numbered(zone), -weight)
	m.keys.Add(-weight)
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
			t.find(i, r, &r.Limits[n])
		}
	}
	for i := range t.found { // only now, because found and checks move while they grow
		f := &t.found[i]
		f.was, t.checks[i].State = f.state, &f.state
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
			if ban && !f.held && !t.hasRoom(f.zone) { // rather no ban than one of all that find no room
				d = algorithms.Decision{Allowed: true, Remaining: algorithms.Forever}
			} else if d.Charged > 0 || f.state != f.was {
				t.keep(f, t.now+d.ResetAfter+r.Limits[i].Linger())
			}
			d.Receipt.Shared = d.Charged > 0 && f.zone == nil
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
			id := r.Limits[j].ID
			f := look(t.shard(i), t.memory.hashes.budget(t.keys[i], id), t.memory.zones.of(r.Zone))
			if d.Receipt.Shared {
				f = look(t.lockOverflow(), t.memory.hashes.shared(id), nil)
			}
			l, expires := r.Limits[j].Limit, f.expires
			if !f.held || l.Linger() > 0 && expires <= t.now { // it would be known to be full once more
				continue
			}
			algorithms.Refund(l, &f.state, t.now, d.Receipt, min(n, d.Charged))
			if l.Linger() > 0 { // then it matters how long it is known
				look := []algorithms.Request{{Checks: []algorithms.Check{{Limit: l, State: &f.state}}}}
				algorithms.Take(look, t.now)
				expires = t.now + look[0].Checks[0].Decision.ResetAfter + l.Linger()
			}
			t.keep(&f, expires)
		}
	}
}

// take is the working memory of one TakeAt, RefundAt or RenewAt.
type take struct {
	*Bounded
	now      algorithms.Micros
	keys     []keyhash.Hash // of each request's key
	locked   []uint16       // the shards locked, ascending
	overflow bool           // the overflow shard is locked too
	// overflowed are the zones that found no room, to be told of without locks.
	overflowed []string
	found      []found // for each check
	checks     []algorithms.Check
	zones      []algorithms.Request
}

// found is the budget of one check, and its place.
type found struct {
	shard *shard
	key   keyhash.Hash
	zone  *zoneCount // nil for an overflow budget, which isn't counted
	was   algorithms.State
	stored
}

// look looks for a budget in its shard.
func look(s *shard, key keyhash.Hash, zone *zoneCount) found {
	return found{shard: s, key: key, zone: zone, stored: s.loadLocked(key)}
}

var takes = sync.Pool{New: func() any { return new(take) }}

// lock locks the shards of all requests' keys, in ascending order.
func (t *take) lock(requests []Request) {
	for i := range requests {
		key := t.memory.hashes.key(requests[i].Key)
		t.keys = append(t.keys, key)
		t.locked = append(t.locked, shardOf(key))
	}
	slices.Sort(t.locked)
	t.locked = slices.Compact(t.locked)
	for _, s := range t.locked {
		t.memory.shards[s].mu.Lock()
	}
}

// shardOf returns the number of the shard with all budgets of a key.
func shardOf(key keyhash.Hash) uint16 { return uint16(key[0] % shardCount) }

// shard returns the shard of a request's key.
func (t *take) shard(request int) *shard { return &t.memory.shards[shardOf(t.keys[request])].shard }

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
	clear(t.overflowed)
	clear(t.found)
	clear(t.checks)
	clear(t.zones)
	*t = take{
		keys: t.keys[:0], locked: t.locked[:0], overflowed: t.overflowed[:0],
		found: t.found[:0], checks: t.checks[:0], zones: t.zones[:0],
	}
	takes.Put(t)
}

// find finds the budget of a request's key. That is the one held, or a fresh one, which keep
// puts into the shard once something is charged. If there is no room, it is the one that
// keys without room share.
func (t *take) find(request int, r *Request, l *Limit) {
	zone := t.memory.zones.of(r.Zone)
	f := look(t.shard(request), t.memory.hashes.budget(t.keys[request], l.ID), zone)
	if !f.held && !l.Bans() && !t.hasRoom(zone) && !t.reclaim(zone) {
		f = look(t.overflowShard(r.Zone), t.memory.hashes.shared(l.ID), nil)
	}
	if f.held && l.Linger() > 0 && f.expires <= t.now { // a budget that begins with less isn't as good as full
		f.state = algorithms.State{}
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
	for i := range t.found { // budgets found earlier may be dropped or moved by now
		f := &t.found[i]
		f.shard.findLocked(f.key, &f.stored)
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

// keep saves a budget in its shard until it expires.
func (t *take) keep(f *found, expires algorithms.Micros) {
	if by := weightOf(f.state) - f.weight; by != 0 && f.zone != nil {
		zone := f.zone
		if f.held {
			zone = t.memory.zones.numbered(f.zoneNumber)
		}
		f.zoneNumber = t.memory.zones.count(zone, by).number
		t.memory.keys.Add(by)
	}
	f.expires = expires
	f.shard.saveLocked(f.key, &f.stored)
}
