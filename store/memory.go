package store

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keyhash"
)

// SharedMemory holds the budgets of this process, for any number of [Memory] stores. It outlives
// configurations, so a new configuration finds the budgets of the previous one. A SharedMemory must
// be made by [NewSharedMemory] or [NewRepeatableMemory]. All methods are safe for concurrent use.
//
// The clock starts as the wall clock and continues as the monotonic clock. So setting the wall clock
// neither refills nor freezes budgets.
//
// Expired budgets stay until [SharedMemory.Sweep] drops them, or until a new key needs their room.
type SharedMemory struct {
	// All budgets of a key are in one shard, so a request of one key takes one lock. Most requests need only the first
	// cache line of a shard.
	shards [shardCount]struct {
		shard
		_ [56]byte // fills two cache lines, so locks of adjacent shards don't slow each other
	}

	// The name of a budget is a hash of its key and its limit. A long key needs no more memory
	// than a short one, and limits need no table.
	names budgetNamer
	start time.Time

	weight      atomic.Int64 // of all budgets, except those in overflow
	nextReclaim atomic.Int64 // the shard where the next reclaim begins

	zones      *zoneTable
	overflow   shard // the budgets shared by keys without room; locked after all other shards
	overflowed atomic.Int64
}

// shardCount is the number of shards. A shard of a full store of the default size has about 1000
// budgets, and a sweep of the shard takes about 50 µs. A request waits for one sweep. If its key is
// new and the store is full, it waits for a few.
const shardCount = 1024

// NewSharedMemory returns a SharedMemory without budgets.
func NewSharedMemory() *SharedMemory {
	return newSharedMemory(budgetNamer{keyhash.New(), keyhash.New()})
}

// NewRepeatableMemory returns a SharedMemory without budgets. The same calls with the same instants have
// the same outcomes in each SharedMemory with the same secrets. The secrets matter only when the
// SharedMemory is full, because they decide which expired budgets it drops first. Nobody who chooses
// keys may know them.
func NewRepeatableMemory(secrets [2][16]byte) *SharedMemory {
	return newSharedMemory(budgetNamer{keyhash.FromSecret(secrets[0]), keyhash.FromSecret(secrets[1])})
}

func newSharedMemory(names budgetNamer) *SharedMemory {
	m := &SharedMemory{names: names, start: time.Now(), zones: newZoneTable()}
	for i := range m.shards {
		m.shards[i].init()
	}
	m.overflow.init()
	return m
}

// Now returns the time of the store's clock.
func (m *SharedMemory) Now() algorithms.Micros {
	return m.start.UnixMicro() + time.Since(m.start).Microseconds()
}

// Keys returns the number of budgets, where a long log counts as more than one budget. For example,
// a log of 640 events counts as 11.
func (m *SharedMemory) Keys() int64 { return m.weight.Load() }

// Overflowed returns how often a limit or slots were decided on an overflow budget, because the store
// had no room for the key.
func (m *SharedMemory) Overflowed() int64 { return m.overflowed.Load() }

// Sweep drops the budgets that have expired. It locks one shard at a time.
func (m *SharedMemory) Sweep() { m.SweepAt(m.Now()) }

// SweepAt is Sweep at an instant of the caller's choice.
func (m *SharedMemory) SweepAt(now algorithms.Micros) {
	for i := range m.shards {
		if s := &m.shards[i].shard; now >= s.earliest.Load() {
			s.mu.Lock()
			s.sweepLocked(now, m.subtractWeight)
			s.mu.Unlock()
		}
	}
	m.overflow.mu.Lock()
	defer m.overflow.mu.Unlock()
	// A request reads the clock before it locks this shard. A budget that has expired since then
	// is still in force for that request.
	m.overflow.sweepLocked(now-1_000_000, ignoreWeight)
}

// subtractWeight subtracts the weight of a dropped budget.
func (m *SharedMemory) subtractWeight(zoneNumber uint32, weight int64) {
	m.zones.zoneByNumber(zoneNumber).weight.Add(-weight)
	m.weight.Add(-weight)
}

// ignoreWeight ignores a dropped budget of the overflow shard, which is not counted.
func ignoreWeight(uint32, int64) {}

// Memory is a [Store] with budgets in a [SharedMemory], and with the bound of one configuration.
// [NewMemory] makes one for a program with one configuration, [SharedMemory.Bounded] several that share
// their budgets. The decisions are exact, also under concurrency.
type Memory struct {
	shared    *SharedMemory
	maxKeys   int64
	zoneCount func() int
	full      func(zone string)
}

// NewMemory returns a store without budgets, with room for maxKeys budgets of each zone.
// [SharedMemory.Bounded] says what happens when it is full.
func NewMemory(maxKeys int64) *Memory {
	return NewSharedMemory().Bounded(maxKeys, func() int { return 1 }, nil)
}

// Bounded returns a store that accepts a new key only if there is room. There is room if the
// SharedMemory holds fewer than maxKeys budgets, or the key's zone holds fewer than its equal share
// of maxKeys. For example, each of 4 zones has room for 250 of 1000 keys, even if another zone
// holds more. zones returns the number of zones.
//
// All keys without room share one budget per limit, and one count of slots per zone. So a flood of
// keys gets no fresh budgets. Keys without room are not banned. full, if not nil, is called for each
// use of an overflow budget, with the zone. It is called without locks, possibly from several
// goroutines at once.
//
// Budgets stay until they expire, and logs may grow, even in a full store. A count of slots stays
// until all slots are given back. A slot of the overflow budget is given back to the overflow budget, even
// if the key has room by then.
func (m *SharedMemory) Bounded(maxKeys int64, zones func() int, full func(zone string)) *Memory {
	return &Memory{shared: m, maxKeys: maxKeys, zoneCount: zones, full: full}
}

// Take implements [Store]. The only error is an [OverriddenError].
func (m *Memory) Take(ctx context.Context, requests []ZoneRequest) (bool, error) {
	return m.TakeAt(ctx, 0, requests)
}

// TakeAt is Take at an instant of the caller's choice. 0 stands for the store's clock.
func (m *Memory) TakeAt(_ context.Context, now algorithms.Micros, requests []ZoneRequest) (bool, error) {
	tx := m.begin()
	defer tx.end()
	for i := range requests {
		tx.addKey(requests[i].Key)
	}
	tx.lock(now)
	if err := tx.checkOverrides(requests); err != nil {
		return false, err
	}
	return tx.decide(0, requests), nil
}

// Correct implements [Store]. It never fails.
func (m *Memory) Correct(corrections []Correction, _ func(error)) {
	_ = m.CorrectAt(context.Background(), 0, corrections)
}

// CorrectAt is Correct at an instant of the caller's choice. 0 stands for the store's clock. The
// error is always nil.
func (m *Memory) CorrectAt(_ context.Context, now algorithms.Micros, corrections []Correction) error {
	for _, report := range m.correct(now, corrections) {
		report()
	}
	return nil
}

// correct makes corrections, and returns what must be called without locks.
func (m *Memory) correct(now algorithms.Micros, corrections []Correction) (reports []func()) {
	tx := m.begin()
	defer tx.end()
	for i := range corrections {
		tx.addKey(corrections[i].Request.Key)
	}
	tx.lock(now)
	for i := range corrections {
		c := &corrections[i]
		if c.Refund > 0 {
			tx.refund(i, c.Request, c.Refund)
		}
		if c.Releases() {
			tx.release(i, c.Request)
		}
		if c.Charges() {
			tx.charge(i, c)
			if report := c.Charged; report != nil {
				decisions := slices.Clone(tx.charged[0].Outcome.Decisions)
				reports = append(reports, func() { report(decisions) })
			}
		}
		if c.Leave && c.Request.Outcome.Slots.Taken {
			tx.leaveSlot(i, c.Request)
		}
	}
	return reports
}

// CountSlots implements [Store]. A full store, too, counts the slots for their own key, because
// they are given back to that key.
func (m *Memory) CountSlots(requests []ZoneRequest) { m.countSlots(requests, anyNumber) }

// AdmitSlots counts slots granted by another store, like CountSlots. If a zone that isn't a shadow has no room for
// them, AdmitSlots counts none, and returns false.
func (m *Memory) AdmitSlots(requests []ZoneRequest) bool { return m.countSlots(requests, upToLimit) }

// slotBound says how many slots countSlots counts.
type slotBound bool

const (
	anyNumber slotBound = false
	upToLimit slotBound = true
)

// countSlots counts the slots that requests have taken. If a zone that isn't a shadow has no room for them within
// the bound, countSlots counts none, and returns false.
func (m *Memory) countSlots(requests []ZoneRequest, bound slotBound) bool {
	tx := m.begin()
	defer tx.end()
	for i := range requests {
		tx.addKey(requests[i].Key)
	}
	tx.lock(0)
	for i := range requests {
		r := &requests[i]
		if !r.Outcome.Slots.Taken {
			continue
		}
		e := tx.find(i, tx.shared.zones.zone(r.Zone), r.Slots.ID)
		if bound == upToLimit && !r.Shadow && e.state.A >= r.Slots.Limit {
			return false
		}
		e.state.A++
		tx.addItem(r).slots = e
	}
	for i := range tx.items {
		tx.save(&tx.items[i].slots, neverExpires)
	}
	return true
}

// Change implements [Store]. It never fails.
func (m *Memory) Change(ctx context.Context, c Change) error { return m.ChangeAt(ctx, 0, c) }

// ChangeAt is Change at an instant of the caller's choice. 0 stands for the store's clock. The error
// is always nil.
func (m *Memory) ChangeAt(_ context.Context, now algorithms.Micros, c Change) error {
	tx := m.begin()
	defer tx.end()
	tx.addKey(c.Key)
	tx.lock(now)
	tx.change(c)
	return nil
}
