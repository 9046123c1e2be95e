package store

import (
	"math"
	"slices"
	"sync"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keyhash"
)

// transaction is one TakeAt, CorrectAt, ChangeAt, CountSlots or AdmitSlots of a [Memory]: the locks that it
// holds, and its working memory. Methods refer to a request by its index, in the order of addKey.
type transaction struct {
	memory *Memory
	shared *SharedMemory
	now    algorithms.Micros
	keys   []keyhash.Hash // of the requests

	locked         []uint16 // the numbers of the locked shards, ascending
	overflowLocked bool
	overflowed     []string // the zones that found no room, for Memory.full

	// entries has the entries of each request in the order of its limits, then its slots, then
	// its ban. The other slices are the input of algorithms.Take.
	entries []entry
	checks  []algorithms.Check
	slots   []algorithms.SlotsCheck
	bans    []algorithms.BanCheck
	zones   []algorithms.Request

	charged [1]Request // the request of charge
}

// entry is a budget, a count of slots or a ban, as it was found in a shard.
type entry struct {
	shard  *shard
	name   keyhash.Hash
	zone   *zoneUsage // nil in the overflow shard, which isn't counted
	before algorithms.State
	stored
}

// neverExpires is the expiry of a count of slots, which is dropped when all slots are given back.
const neverExpires algorithms.Micros = math.MaxInt64

var transactions = sync.Pool{New: func() any { return new(transaction) }}

func (m *Memory) begin() *transaction {
	tx := transactions.Get().(*transaction)
	tx.memory, tx.shared = m, m.shared
	return tx
}

// addKey adds the key of a request. lock locks the shard of the key.
func (tx *transaction) addKey(key string) {
	hash := tx.shared.names.key(key)
	tx.keys = append(tx.keys, hash)
	tx.locked = append(tx.locked, shardNumber(hash))
}

// lock locks the shards of all keys in ascending order, so that no two transactions wait for each
// other. If now is 0, lock reads the clock afterwards, because a budget that expires by then may be
// swept before.
func (tx *transaction) lock(now algorithms.Micros) {
	slices.Sort(tx.locked)
	tx.locked = slices.Compact(tx.locked)
	for _, s := range tx.locked {
		tx.shared.shards[s].mu.Lock()
	}
	if now == 0 {
		now = tx.shared.Now()
	}
	tx.now = now
}

// lockOverflow locks and returns the overflow shard.
func (tx *transaction) lockOverflow() *shard {
	if !tx.overflowLocked {
		tx.shared.overflow.mu.Lock()
		tx.overflowLocked = true
	}
	return &tx.shared.overflow
}

// end unlocks all shards, calls Memory.full, and returns the transaction to the pool.
func (tx *transaction) end() {
	if tx.overflowLocked {
		tx.shared.overflow.mu.Unlock()
	}
	for _, s := range tx.locked {
		tx.shared.shards[s].mu.Unlock()
	}
	if full := tx.memory.full; full != nil {
		for _, zone := range tx.overflowed {
			full(zone)
		}
	}
	clear(tx.overflowed)
	tx.clearEntries()
	decisions := tx.charged[0].Outcome.Decisions
	*tx = transaction{
		keys: tx.keys[:0], locked: tx.locked[:0], overflowed: tx.overflowed[:0],
		entries: tx.entries, checks: tx.checks, slots: tx.slots, bans: tx.bans, zones: tx.zones,
	}
	tx.charged[0].Outcome.Decisions = decisions
	transactions.Put(tx)
}

// clearEntries empties the working memory of decide.
func (tx *transaction) clearEntries() {
	clear(tx.entries)
	clear(tx.checks)
	clear(tx.bans)
	clear(tx.zones)
	tx.entries, tx.checks, tx.slots, tx.bans, tx.zones = tx.entries[:0], tx.checks[:0], tx.slots[:0], tx.bans[:0], tx.zones[:0]
}

// decide decides requests, charges them, and fills in their outcomes. first is the index of the
// first request.
func (tx *transaction) decide(first int, requests []Request) (allowed bool) {
	for i := range requests {
		tx.findEntries(first+i, &requests[i])
	}
	tx.linkEntries(requests)
	allowed = algorithms.Take(tx.zones, tx.now)
	rest := tx.entries
	for i := range requests {
		rest = rest[tx.fillOutcome(&requests[i], &tx.zones[i], rest):]
	}
	return allowed
}

// findEntries finds the budgets of a request, its slots and its ban.
func (tx *transaction) findEntries(request int, r *Request) {
	if len(r.Limits) == 0 && r.Slots == nil && r.Ban == nil {
		return
	}
	zone := tx.shared.zones.zone(r.Zone)
	for i := range r.Limits {
		l := &r.Limits[i]
		e := tx.findOrShare(request, zone, l.ID, r.Peek)
		if e.exists && l.KeptAfterReset() && e.expires <= tx.now { // an expired budget with Initial begins again
			e.state = algorithms.State{}
		}
		tx.entries = append(tx.entries, e)
		tx.checks = append(tx.checks, algorithms.Check{Limit: l.Limit})
	}
	if s := r.Slots; s != nil {
		tx.entries = append(tx.entries, tx.findOrShare(request, zone, s.ID, r.Peek))
		tx.slots = append(tx.slots, algorithms.SlotsCheck{Limit: s.Limit})
	}
	if b := r.Ban; b != nil {
		tx.entries = append(tx.entries, tx.find(request, zone, b.ID))
		tx.bans = append(tx.bans, algorithms.BanCheck{Ban: b.Ban})
	}
}

// linkEntries makes the input of algorithms.Take, which refers to the states of the entries. It runs
// after all entries are found, because the slices move while they grow.
func (tx *transaction) linkEntries(requests []Request) {
	entries, checks, slots, bans := tx.entries, tx.checks, tx.slots, tx.bans
	for i := range requests {
		r := &requests[i]
		z := algorithms.Request{Mode: r.Mode, Cost: r.Cost, MaxWait: r.MaxWait, Shadow: r.Shadow, Peek: r.Peek}
		z.Checks, checks = checks[:len(r.Limits)], checks[len(r.Limits):]
		for j := range z.Checks {
			z.Checks[j].State = &entries[j].state
			entries[j].before = entries[j].state
		}
		entries = entries[len(r.Limits):]
		if r.Slots != nil {
			z.Slots, slots = &slots[0], slots[1:]
			z.Slots.InFlight = entries[0].state.A
			entries = entries[1:]
		}
		if r.Ban != nil {
			z.Ban, bans = &bans[0], bans[1:]
			z.Ban.State = &entries[0].state
			entries[0].before = entries[0].state
			entries = entries[1:]
		}
		tx.zones = append(tx.zones, z)
	}
}

// fillOutcome fills in the outcome of a request, and saves the entries that have changed. The entries
// of the request are the first n entries.
func (tx *transaction) fillOutcome(r *Request, z *algorithms.Request, entries []entry) (n int) {
	o := &r.Outcome
	*o = Outcome{At: tx.now, Decisions: o.Decisions[:0], Slots: SlotsOutcome{Free: true}}
	for j := range z.Checks {
		d, e := z.Checks[j].Decision, &entries[n]
		n++
		if d.Charged > 0 || e.state != e.before {
			expires := tx.now + d.ResetAfter
			if l := &r.Limits[j]; l.KeptAfterReset() {
				expires = l.Expires(&e.state)
			}
			tx.save(e, expires)
		}
		d.Receipt.Shared = d.Receipt != (algorithms.Receipt{}) && e.zone == nil
		o.Decisions = append(o.Decisions, d)
	}
	if s := z.Slots; s != nil {
		e := &entries[n]
		n++
		o.Slots = SlotsOutcome{Free: s.Taken || s.Free(), Taken: s.Taken, InFlight: s.InFlight, Shared: e.zone == nil}
		if s.Taken {
			e.state.A = s.InFlight
			tx.save(e, neverExpires)
		}
	}
	if z.Ban != nil {
		d, e := z.Ban.Decision, &entries[n]
		n++
		// A key without room is not banned: a shared ban would ban all such keys.
		if e.exists || !d.Began && e.state == e.before || tx.hasRoom(e.zone) {
			o.Ban = BanOutcome{Stands: d.Stands, Began: d.Began, EndsAfter: d.EndsAfter}
			if d.Began {
				e.label = newBanLabel(r.Key, r.Ban.ID)
			}
			if e.state != e.before {
				tx.save(e, tx.now+d.ResetAfter)
			}
		}
	}
	o.SetVerdict()
	return n
}

// refund gives back n events to each limit of a request.
func (tx *transaction) refund(request int, r *Request, n int64) {
	for i, d := range r.Outcome.Decisions {
		if d.Charged == 0 {
			continue
		}
		l := r.Limits[i]
		e := tx.findCharged(request, r.Zone, l.ID, d.Receipt.Shared)
		if !e.exists || l.KeptAfterReset() && e.expires <= tx.now { // a saved budget would not begin again
			continue
		}
		algorithms.Refund(l.Limit, &e.state, tx.now, d.Receipt, min(n, d.Charged))
		expires := e.expires
		if l.KeptAfterReset() {
			expires = l.Expires(&e.state)
		}
		tx.save(&e, expires)
	}
}

// charge charges n events to each limit of a request, as far as there is room.
func (tx *transaction) charge(request int, r *Request, mode algorithms.Mode, n int64) {
	tx.clearEntries()
	c := &tx.charged[0]
	*c = Request{
		Zone: r.Zone, Key: r.Key, Limits: r.Limits, Mode: mode, Cost: n,
		Outcome: Outcome{Decisions: c.Outcome.Decisions},
	}
	tx.decide(request, tx.charged[:])
}

// leaveSlot gives back the slot of a request.
func (tx *transaction) leaveSlot(request int, r *Request) {
	shared := r.Outcome.Slots.Shared
	e := tx.findCharged(request, r.Zone, r.Slots.ID, shared)
	switch {
	case e.state.A > 1:
		e.state.A--
		tx.save(&e, neverExpires)
	case shared:
		e.shard.dropLocked(e.name, ignoreWeight)
	default:
		e.shard.dropLocked(e.name, tx.shared.subtractWeight)
	}
}

// shardOf returns the shard of a request's key.
func (tx *transaction) shardOf(request int) *shard {
	return &tx.shared.shards[shardNumber(tx.keys[request])].shard
}

// find finds a budget of a request's key. If the budget doesn't exist, find returns an untouched one,
// which save puts into the shard.
func (tx *transaction) find(request int, zone *zoneUsage, id string) entry {
	s, name := tx.shardOf(request), tx.shared.names.budget(tx.keys[request], id)
	return entry{shard: s, name: name, zone: zone, stored: s.loadLocked(name)}
}

// findShared finds the budget shared by all keys without room.
func (tx *transaction) findShared(id string) entry {
	s, name := tx.lockOverflow(), tx.shared.names.sharedBudget(id)
	return entry{shard: s, name: name, stored: s.loadLocked(name)}
}

// findOrShare finds a budget of a request's key or, if the key is new and there is no room, the
// shared budget. A peek isn't counted as a use of the shared budget.
func (tx *transaction) findOrShare(request int, zone *zoneUsage, id string, peek bool) entry {
	e := tx.find(request, zone, id)
	if !e.exists && !tx.hasRoom(zone) && !tx.reclaim(zone) {
		if !peek {
			tx.shared.overflowed.Add(1)
			tx.overflowed = append(tx.overflowed, zone.name)
		}
		return tx.findShared(id)
	}
	return e
}

// findCharged finds the budget that a request was charged to.
func (tx *transaction) findCharged(request int, zone, id string, shared bool) entry {
	if shared {
		return tx.findShared(id)
	}
	return tx.find(request, tx.shared.zones.zone(zone), id)
}

// hasRoom reports whether there is room for a new key of a zone.
func (tx *transaction) hasRoom(zone *zoneUsage) bool {
	maxKeys := tx.memory.maxKeys
	return tx.shared.weight.Load() < maxKeys || zone.weight.Load() < maxKeys/int64(max(tx.memory.zoneCount(), 1))
}

// reclaim drops expired budgets until a zone has room, and reports whether the zone has room. To keep
// the request fast, reclaim sweeps at most 4 shards, and skips shards that are locked by others. The
// next call continues with the next shards.
func (tx *transaction) reclaim(zone *zoneUsage) bool {
	const maxSweeps = 4
	m := tx.shared
	first := m.nextReclaim.Load()
	sweeps, n := 0, int64(0)
	for ; n < shardCount && sweeps < maxSweeps && !tx.hasRoom(zone); n++ {
		number := uint16((first + n) % shardCount)
		s := &m.shards[number].shard
		if tx.now < s.earliest.Load() {
			continue
		}
		if _, ours := slices.BinarySearch(tx.locked, number); ours {
			s.sweepLocked(tx.now, m.subtractWeight)
		} else if s.mu.TryLock() {
			s.sweepLocked(tx.now, m.subtractWeight)
			s.mu.Unlock()
		}
		sweeps++
	}
	m.nextReclaim.Store(first + n)
	for i := range tx.entries { // the sweeps may have dropped or moved them
		e := &tx.entries[i]
		e.shard.relocateLocked(e.name, &e.stored)
	}
	return tx.hasRoom(zone)
}

// save saves an entry in its shard until it expires, and counts its weight.
func (tx *transaction) save(e *entry, expires algorithms.Micros) {
	if delta := weightOf(e.state, e.label) - e.weight; delta != 0 && e.zone != nil {
		zone := e.zone
		if e.exists {
			zone = tx.shared.zones.zoneByNumber(e.zoneNumber)
		}
		e.zoneNumber = tx.shared.zones.addWeight(zone, delta).number
		tx.shared.weight.Add(delta)
	}
	e.expires = expires
	e.shard.saveLocked(e.name, &e.stored)
}
