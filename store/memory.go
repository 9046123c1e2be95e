package store

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keyhash"
)

// SharedMemory keeps budgets in this process. It is exact under concurrency, and it
// outlives any one configuration: a configuration uses it through [Memory.Bounded],
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
type SharedMemory struct {
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

// NewSharedMemory returns an empty store.
func NewSharedMemory() *SharedMemory {
	m := &SharedMemory{hashes: newBudgetHasher(), start: time.Now(), zones: newZoneTable()}
	for i := range m.shards {
		m.shards[i].init()
	}
	m.overflow.init()
	return m
}

// Now is the store's clock.
func (m *SharedMemory) Now() algorithms.Micros {
	return m.start.UnixMicro() + time.Since(m.start).Microseconds()
}

// Keys is how many budgets the store holds; those with long logs count for more
// than one.
func (m *SharedMemory) Keys() int64 { return m.keys.Load() }

// Overflowed is how many checks were decided on a shared budget because the
// store was full.
func (m *SharedMemory) Overflowed() int64 { return m.overflowed.Load() }

// Sweep drops the budgets that have expired. It locks one shard at a time.
func (m *SharedMemory) Sweep() {
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
	m.overflow.sweepLocked(now-1_000_000, uncounted)
}

// uncounted is for budgets that the bound doesn't count.
func uncounted(uint32, int64) {}

// dropped subtracts the weight of a dropped budget of a zone.
func (m *SharedMemory) dropped(zone uint32, weight int64) {
	m.zones.count(m.zones.numbered(zone), -weight)
	m.keys.Add(-weight)
}

// Memory is a [SharedMemory] as one configuration sees it: a [Store].
type Memory struct {
	shared  *SharedMemory
	maxKeys int64
	zones   func() int
	full    func(zone string)
}

// Bounded returns the store as one configuration sees it. A new key is taken in
// while the store holds fewer than maxKeys, or the key's zone fewer than an equal
// share of them, by the number of zones. New keys that find no room share one
// ordinary budget per limit, so that a flood of keys gets nobody a fresh one;
// full, if not nil, is called with their zone. They share their slots in the same way,
// and are not banned. What is held already stays until it expires, and logs may grow.
//
// The slots of a key are a count, which stays as long as it is above 0. A slot that is
// taken from the shared count is given back to it, whatever the key has by then.
func (m *SharedMemory) Bounded(maxKeys int64, zones func() int, full func(zone string)) *Memory {
	return &Memory{shared: m, maxKeys: maxKeys, zones: zones, full: full}
}

// Take implements [Store]. It fails for overrides alone.
func (b *Memory) Take(ctx context.Context, requests []Request) (bool, error) {
	return b.TakeAt(ctx, 0, requests)
}

// TakeAt is Take at an instant of the caller's choice; 0 stands for the store's
// clock.
func (b *Memory) TakeAt(_ context.Context, now algorithms.Micros, requests []Request) (bool, error) {
	t := b.begin()
	defer t.release()
	for i := range requests {
		t.addKey(requests[i].Key)
	}
	t.lock(now)
	if err := t.checkOverrides(requests); err != nil {
		return false, err
	}
	return t.decide(0, requests), nil
}

// decide decides requests, the keys of which begin at first, and charges them.
func (t *transaction) decide(first int, requests []Request) (allowed bool) {
	for i := range requests {
		t.findBudgets(first+i, &requests[i])
	}
	t.prepare(requests)
	allowed = algorithms.Take(t.zones, t.now)
	found := t.found
	for i := range requests {
		found = found[t.fillOutcome(&requests[i], &t.zones[i], found):]
	}
	return allowed
}

// prepare makes the zones ready to be decided.
func (t *transaction) prepare(requests []Request) {
	// Only now, because found, checks, slots and bans move while they grow.
	found, checks, slots, bans := t.found, t.checks, t.slots, t.bans
	for i := range requests {
		r := &requests[i]
		z := algorithms.Request{Mode: r.Mode, Cost: r.Cost, MaxWait: r.MaxWait, Shadow: r.Shadow}
		z.Checks, checks = checks[:len(r.Limits)], checks[len(r.Limits):]
		for j := range z.Checks {
			z.Checks[j].State = &found[j].state
			found[j].was = found[j].state
		}
		found = found[len(r.Limits):]
		if r.Slots != nil {
			z.Slots, slots = &slots[0], slots[1:]
			z.Slots.InFlight, z.Slots.Peek = found[0].state.A, r.Peek
			found = found[1:]
		}
		if r.Ban != nil {
			z.Ban, bans = &bans[0], bans[1:]
			z.Ban.State = &found[0].state
			found[0].was = found[0].state
			found = found[1:]
		}
		t.zones = append(t.zones, z)
	}
}

// fillOutcome fills in the outcome of a request, the first of whose budgets is the first of found,
// and keeps what has changed. It returns how many budgets the request has.
func (t *transaction) fillOutcome(r *Request, z *algorithms.Request, found []found) (n int) {
	o := &r.Outcome
	*o = Outcome{Decisions: o.Decisions[:0], Slots: SlotsOutcome{Free: true}}
	for j := range z.Checks {
		d, f := z.Checks[j].Decision, &found[n]
		n++
		if d.Charged > 0 || f.state != f.was {
			expires := t.now + d.ResetAfter
			if l := &r.Limits[j]; l.Lingers() {
				expires = l.Expires(&f.state)
			}
			t.save(f, expires)
		}
		d.Receipt.Shared = d.Charged > 0 && f.zone == nil
		o.Decisions = append(o.Decisions, d)
	}
	if s := z.Slots; s != nil {
		f := &found[n]
		n++
		o.Slots = SlotsOutcome{Free: s.Taken || s.Free(), Taken: s.Taken, InFlight: s.InFlight, Shared: f.zone == nil}
		if s.Taken {
			f.state.A = s.InFlight
			t.save(f, neverExpires)
		}
	}
	if z.Ban != nil {
		d, f := z.Ban.Decision, &found[n]
		n++
		// Rather no ban than one of all keys that find no room.
		if f.held || f.state == f.was || t.hasRoom(f.zone) {
			o.Ban = BanOutcome{Stands: d.Stands, Began: d.Began, EndsAfter: d.EndsAfter}
			if f.state != f.was {
				t.save(f, t.now+d.ResetAfter)
			}
		}
	}
	o.SetVerdict()
	return n
}

// neverFits is when a count of slots above 0 expires.
const neverExpires algorithms.Micros = math.MaxInt64

// transaction is the working memory of one TakeAt, CorrectAt or ChangeAt.
type transaction struct {
	*Memory
	now      algorithms.Micros
	keys     []keyhash.Hash // of each request's key
	locked   []uint16       // the shards locked, ascending
	overflow bool           // the overflow shard is locked too
	// overflowed are the zones that found no room, to be told of without locks.
	overflowed []string
	found      []found // of each request: for its limits, its slots and its ban
	checks     []algorithms.Check
	slots      []algorithms.SlotsCheck
	bans       []algorithms.BanCheck
	zones      []algorithms.Request
	charges    [1]Request // see [take.charge]
}

// found is a budget, or slots or a ban, and its place.
type found struct {
	shard *shard
	key   keyhash.Hash
	zone  *zoneCount // nil for an overflow budget, which isn't counted
	was   algorithms.State
	stored
}

// findInShard looks for a budget in its shard.
func findInShard(s *shard, key keyhash.Hash, zone *zoneCount) found {
	return found{shard: s, key: key, zone: zone, stored: s.loadLocked(key)}
}

var transactions = sync.Pool{New: func() any { return new(transaction) }}

func (b *Memory) begin() *transaction {
	t := transactions.Get().(*transaction)
	t.Memory = b
	return t
}

// addKey adds a key to those that lock locks.
func (t *transaction) addKey(key string) {
	hash := t.shared.hashes.key(key)
	t.keys = append(t.keys, hash)
	t.locked = append(t.locked, shardOf(hash))
}

// lock locks the shards of all keys, in ascending order, and then looks at the clock if now
// is 0: what expires by then may be swept before.
func (t *transaction) lock(now algorithms.Micros) {
	slices.Sort(t.locked)
	t.locked = slices.Compact(t.locked)
	for _, s := range t.locked {
		t.shared.shards[s].mu.Lock()
	}
	if now == 0 {
		now = t.shared.Now()
	}
	t.now = now
}

// shardOf returns the number of the shard with all budgets of a key.
func shardOf(key keyhash.Hash) uint16 { return uint16(key[0] % shardCount) }

// shard returns the shard of a request's key.
func (t *transaction) shard(request int) *shard {
	return &t.shared.shards[shardOf(t.keys[request])].shard
}

func (t *transaction) release() {
	if t.overflow {
		t.shared.overflow.mu.Unlock()
	}
	for _, s := range t.locked {
		t.shared.shards[s].mu.Unlock()
	}
	if t.full != nil {
		for _, zone := range t.overflowed {
			t.full(zone)
		}
	}
	clear(t.overflowed)
	t.forgetFound()
	decisions := t.charges[0].Outcome.Decisions
	*t = transaction{
		keys: t.keys[:0], locked: t.locked[:0], overflowed: t.overflowed[:0],
		found: t.found, checks: t.checks, slots: t.slots, bans: t.bans, zones: t.zones,
	}
	t.charges[0].Outcome.Decisions = decisions
	transactions.Put(t)
}

// forgetFound empties the working memory of decide.
func (t *transaction) forgetFound() {
	clear(t.found)
	clear(t.checks)
	clear(t.bans)
	clear(t.zones)
	t.found, t.checks, t.slots, t.bans, t.zones = t.found[:0], t.checks[:0], t.slots[:0], t.bans[:0], t.zones[:0]
}

// findDenial finds the budgets of a request, its slots and its ban.
func (t *transaction) findBudgets(request int, r *Request) {
	if len(r.Limits) == 0 && r.Slots == nil && r.Ban == nil {
		return
	}
	zone := t.shared.zones.of(r.Zone)
	for i := range r.Limits {
		l := &r.Limits[i]
		f := t.findOrShare(request, zone, l.ID)
		if f.held && l.Lingers() && f.expires <= t.now { // a budget that begins with less isn't as good as full
			f.state = algorithms.State{}
		}
		t.found = append(t.found, f)
		t.checks = append(t.checks, algorithms.Check{Limit: l.Limit})
	}
	if s := r.Slots; s != nil {
		t.found = append(t.found, t.findOrShare(request, zone, s.ID))
		t.slots = append(t.slots, algorithms.SlotsCheck{Limit: s.Limit})
	}
	if b := r.Ban; b != nil {
		t.found = append(t.found, findInShard(t.shard(request), t.shared.hashes.budget(t.keys[request], b.ID), zone))
		t.bans = append(t.bans, algorithms.BanCheck{Ban: b.Ban})
	}
}

// findOrShare finds the budget of a request's key. That is the one held, or a fresh one, which
// keep puts into the shard once something is charged. If there is no room, it is the one that
// keys without room share.
func (t *transaction) findOrShare(request int, zone *zoneCount, id string) found {
	f := findInShard(t.shard(request), t.shared.hashes.budget(t.keys[request], id), zone)
	if !f.held && !t.hasRoom(zone) && !t.reclaim(zone) {
		return findInShard(t.overflowShard(zone.name), t.shared.hashes.shared(id), nil)
	}
	return f
}

// hasRoom tells whether a zone may take in a new key.
func (t *transaction) hasRoom(zone *zoneCount) bool {
	return t.shared.keys.Load() < t.maxKeys || zone.keys.Load() < t.maxKeys/int64(max(t.Memory.zones(), 1))
}

// reclaim drops expired budgets until a zone has room, and tells whether it has.
// It scans a few shards at most, the next call the next few, and passes over
// those that others hold.
func (t *transaction) reclaim(zone *zoneCount) bool {
	m := t.shared
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
func (t *transaction) overflowShard(zone string) *shard {
	t.shared.overflowed.Add(1)
	t.overflowed = append(t.overflowed, zone)
	return t.lockOverflow()
}

func (t *transaction) lockOverflow() *shard {
	if !t.overflow {
		t.shared.overflow.mu.Lock()
		t.overflow = true
	}
	return &t.shared.overflow
}

// save saves a budget in its shard until it expires.
func (t *transaction) save(f *found, expires algorithms.Micros) {
	if by := weightOf(f.state) - f.weight; by != 0 && f.zone != nil {
		zone := f.zone
		if f.held {
			zone = t.shared.zones.numbered(f.zoneNumber)
		}
		f.zoneNumber = t.shared.zones.count(zone, by).number
		t.shared.keys.Add(by)
	}
	f.expires = expires
	f.shard.saveLocked(f.key, &f.stored)
}
