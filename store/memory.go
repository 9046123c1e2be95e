package store

import (
	"context"
	"hash/maphash"
	"math"
	"slices"
	"strings"
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

	shards [shardCount]shard
	zones  sync.Map // zone name → *zoneCount
	keys   atomic.Int64

	overflow   shard // the budgets shared by keys that found no room; locked after all others
	overflowed atomic.Int64
}

// shardCount gives a shard of a full store of the default size about 1000
// budgets. A scan of them takes about 50 µs, which is the longest a request
// waits for a sweep.
const shardCount = 1024

type shard struct {
	// earliest is no later than the first expiry in the shard, so a shard with
	// nothing to drop is passed over without a scan. Written under mu.
	earliest atomic.Int64

	mu      sync.Mutex
	budgets map[budgetKey]*budget

	_ [40]byte // fills the cache line: neighbours' locks don't slow each other
}

type budgetKey struct{ limit, key string }

type budget struct {
	state   algorithms.State
	expires algorithms.Micros
	zone    *zoneCount // nil for an overflow budget, which isn't counted
}

// zoneCount is how much of the store one zone holds.
type zoneCount struct{ keys atomic.Int64 }

// weight is how much a budget counts against the bound: 1, and 1 more for every
// 64 events its log holds.
func (b *budget) weight() int64 { return 1 + b.state.Log.Len()/64 }

// NewMemory returns an empty store.
func NewMemory() *Memory {
	m := &Memory{seed: maphash.MakeSeed(), start: time.Now()}
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
		if s := &m.shards[i]; now >= s.earliest.Load() {
			s.mu.Lock()
			m.sweepLocked(s, now)
			s.mu.Unlock()
		}
	}
}

func (m *Memory) sweepLocked(s *shard, now algorithms.Micros) {
	earliest := int64(math.MaxInt64)
	for key, b := range s.budgets {
		if b.expires <= now {
			delete(s.budgets, key)
			m.count(b, -b.weight())
			continue
		}
		earliest = min(earliest, b.expires)
	}
	s.earliest.Store(earliest)
}

// count notes that the weight of a budget in the store has changed.
func (m *Memory) count(b *budget, by int64) {
	if b.zone != nil && by != 0 {
		b.zone.keys.Add(by)
		m.keys.Add(by)
	}
}

// zone returns the count of a zone, made at its first request.
func (m *Memory) zone(name string) *zoneCount {
	if z, ok := m.zones.Load(name); ok {
		return z.(*zoneCount)
	}
	z, _ := m.zones.LoadOrStore(strings.Clone(name), new(zoneCount))
	return z.(*zoneCount)
}

func (s *shard) init() {
	s.budgets = make(map[budgetKey]*budget)
	s.earliest.Store(math.MaxInt64)
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
// full, if not nil, is called with their zone, and must not block. What is held
// already stays until it expires, and logs may grow.
func (m *Memory) Bound(maxKeys int64, zones func() int, full func(zone string)) *Bounded {
	return &Bounded{memory: m, maxKeys: maxKeys, zones: zones, full: full}
}

// Take implements [Store]. It never fails.
func (b *Bounded) Take(ctx context.Context, requests []Request) (bool, error) {
	return b.TakeAt(ctx, b.memory.Now(), requests)
}

// TakeAt is Take at an instant of the caller's choice.
func (b *Bounded) TakeAt(_ context.Context, now algorithms.Micros, requests []Request) (bool, error) {
	t := takes.Get().(*take)
	defer t.release()
	t.Bounded, t.now = b, now
	t.lock(requests)
	for i := range requests {
		r := &requests[i]
		for _, l := range r.Limits {
			held := t.find(t.shardOf[i], r, l)
			t.checks = append(t.checks, algorithms.Check{Limit: l.Limit, State: &held.state, Cost: r.Cost})
		}
	}
	allowed := algorithms.Take(t.checks, now)
	n := 0
	for i := range requests {
		r := &requests[i]
		r.Decisions = r.Decisions[:0]
		for range r.Limits {
			d := t.checks[n].Decision
			if d.Charged > 0 {
				t.keep(&t.found[n], now+d.ResetAfter)
			}
			r.Decisions = append(r.Decisions, d)
			n++
		}
	}
	return allowed, nil
}

// take is the working memory of one TakeAt.
type take struct {
	*Bounded
	now      algorithms.Micros
	shardOf  []*shard // of each request
	locked   []uint16 // the shards locked, ascending
	overflow bool     // the overflow shard is locked too
	found    []found  // for each check
	checks   []algorithms.Check
}

// found is the budget of one check and where it belongs.
type found struct {
	*budget
	shard  *shard
	key    budgetKey
	isNew  bool  // not in the shard yet
	weight int64 // as counted: 0 if new
}

var takes = sync.Pool{New: func() any { return new(take) }}

// lock locks the shards of all requests' keys, in ascending order.
func (t *take) lock(requests []Request) {
	for i := range requests {
		s := uint16(maphash.String(t.memory.seed, requests[i].Key) % shardCount)
		t.shardOf = append(t.shardOf, &t.memory.shards[s])
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
	clear(t.shardOf)
	clear(t.found)
	clear(t.checks)
	*t = take{shardOf: t.shardOf[:0], locked: t.locked[:0], found: t.found[:0], checks: t.checks[:0]}
	takes.Put(t)
}

// find returns the budget of a key: the one held, or a new one, which keep puts
// into its shard once something is charged, or the one shared by the keys that
// found no room.
func (t *take) find(s *shard, r *Request, l Limit) *budget {
	key := budgetKey{limit: l.ID, key: r.Key}
	held := s.budgets[key]
	if held == nil {
		zone := t.memory.zone(r.Zone)
		if t.room(zone) || t.reclaim(zone) {
			held = &budget{zone: zone}
			t.found = append(t.found, found{budget: held, shard: s, key: key, isNew: true})
			return held
		}
		s, key = t.overflowShard(r.Zone), budgetKey{limit: l.ID}
		if held = s.budgets[key]; held == nil {
			held = new(budget)
			s.budgets[key] = held
		}
	}
	t.found = append(t.found, found{budget: held, shard: s, key: key, weight: held.weight()})
	return held
}

// room tells whether a zone may take in a new key.
func (t *take) room(zone *zoneCount) bool {
	return t.memory.keys.Load() < t.maxKeys || zone.keys.Load() < t.maxKeys/int64(max(t.zones(), 1))
}

// reclaim drops expired budgets until a zone has room, and tells whether it has.
// It passes over shards that others hold.
func (t *take) reclaim(zone *zoneCount) bool {
	for i := range t.memory.shards {
		s := &t.memory.shards[i]
		if t.now < s.earliest.Load() {
			continue
		}
		if _, ours := slices.BinarySearch(t.locked, uint16(i)); ours {
			t.memory.sweepLocked(s, t.now)
		} else if s.mu.TryLock() {
			t.memory.sweepLocked(s, t.now)
			s.mu.Unlock()
		}
		if t.room(zone) {
			break
		}
	}
	for i := range t.found { // what was found earlier may have been dropped just now
		f := &t.found[i]
		if f.zone != nil && f.shard.budgets[f.key] != f.budget {
			f.isNew, f.weight = true, 0
		}
	}
	return t.room(zone)
}

// overflowShard locks and returns the shard of the shared budgets.
func (t *take) overflowShard(zone string) *shard {
	t.memory.overflowed.Add(1)
	if t.full != nil {
		t.full(zone)
	}
	if !t.overflow {
		t.memory.overflow.mu.Lock()
		t.overflow = true
	}
	return &t.memory.overflow
}

// keep notes that a budget was charged, and puts it into its shard if it is new.
func (t *take) keep(f *found, expires algorithms.Micros) {
	if f.isNew {
		f.key.key = strings.Clone(f.key.key) // the request's own may be part of something larger
		f.shard.budgets[f.key] = f.budget
	}
	f.expires = expires
	if expires < f.shard.earliest.Load() {
		f.shard.earliest.Store(expires)
	}
	t.memory.count(f.budget, f.budget.weight()-f.weight)
}
