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

	items []item
	zones []algorithms.ZoneRequest // of the items: the input of algorithms.Take

	charged [1]ZoneRequest // the request of charge
}

// item is a request that is decided, with its entries and what algorithms.Take decides for each.
type item struct {
	request              *ZoneRequest
	limits               []entry
	checks               []algorithms.Check // of limits, which is the order of algorithms.ZoneRequest
	slots, reserved, ban entry
	reserves             bool // the charge is counted as reserved
	slotsCheck           algorithms.SlotsCheck
	reservedCheck        algorithms.ReservedCheck
	banCheck             algorithms.BanCheck
}

// entry is a budget, a count of slots or a ban, as it was found in a shard.
type entry struct {
	shard  *shard
	name   keyhash.Hash
	zone   *zoneUsage // nil in the overflow shard, which isn't counted
	before algorithms.State
	stored
}

// inOverflow reports whether it is an overflow budget, that of all keys for which there was no room.
func (e *entry) inOverflow() bool { return e.zone == nil }

// neverExpires is the expiry of a count of slots or reserved events, which is dropped when all are given back.
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
	tx.clearItems()
	decisions := tx.charged[0].Outcome.Decisions
	*tx = transaction{
		keys: tx.keys[:0], locked: tx.locked[:0], overflowed: tx.overflowed[:0],
		items: tx.items, zones: tx.zones,
	}
	tx.charged[0].Outcome.Decisions = decisions
	transactions.Put(tx)
}

// clearItems empties the working memory of decide. The items keep the memory of their slices.
func (tx *transaction) clearItems() {
	for i := range tx.items {
		it := &tx.items[i]
		clear(it.limits)
		clear(it.checks)
		*it = item{limits: it.limits[:0], checks: it.checks[:0]}
	}
	clear(tx.zones)
	tx.items, tx.zones = tx.items[:0], tx.zones[:0]
}

// addItem adds an item without entries.
func (tx *transaction) addItem(r *ZoneRequest) *item {
	n := len(tx.items)
	tx.items = slices.Grow(tx.items, 1)[:n+1]
	tx.items[n].request = r
	return &tx.items[n]
}

// decide decides requests, charges them, and fills in their outcomes. first is the index of the
// first request.
func (tx *transaction) decide(first int, requests []ZoneRequest) (allowed bool) {
	for i := range requests {
		tx.findEntries(first+i, tx.addItem(&requests[i]))
	}
	for i := range tx.items { // all entries are found, so no item moves any more
		tx.zones = append(tx.zones, tx.items[i].link())
	}
	allowed = algorithms.Take(tx.zones, tx.now)
	for i := range tx.items {
		tx.fillOutcome(&tx.items[i])
	}
	return allowed
}

// findEntries finds the budgets of an item, its slots, its reserved events and its ban.
func (tx *transaction) findEntries(request int, it *item) {
	r := it.request
	if len(r.Limits) == 0 && r.Slots == nil && r.Ban == nil {
		return
	}
	zone := tx.shared.zones.zone(r.Zone)
	for i := range r.Limits {
		l := &r.Limits[i]
		e := tx.findOrOverflow(request, zone, l.ID, r.Peek)
		if e.exists && l.KeptAfterReset() && e.expires <= tx.now { // an expired budget with Initial begins again
			e.state = algorithms.State{}
		}
		it.limits = append(it.limits, e)
		it.checks = append(it.checks, algorithms.Check{Limit: l.Limit})
	}
	if s := r.Slots; s != nil {
		it.slots = tx.findOrOverflow(request, zone, s.ID, r.Peek)
	}
	if r.ReservedID != "" {
		it.reserved, it.reserves = tx.findReserved(request, zone, it)
	}
	if b := r.Ban; b != nil {
		it.ban = tx.find(request, zone, b.ID)
	}
}

// findReserved finds the reserved events of an item, which are where its budgets are. Without room for them, and if only
// some budgets are in overflow, what the request is charged counts as used at once: ok is false.
func (tx *transaction) findReserved(request int, zone *zoneUsage, it *item) (e entry, ok bool) {
	id, inOverflow := it.request.ReservedID, 0
	for i := range it.limits {
		if it.limits[i].inOverflow() {
			inOverflow++
		}
	}
	switch inOverflow {
	case 0:
		e = tx.find(request, zone, id)
		return e, e.exists || tx.hasRoom(zone) || tx.reclaim(zone)
	case len(it.limits):
		return tx.findOverflow(id), true
	}
	return entry{}, false
}

// link returns the input of algorithms.Take, which refers to the states of the item's entries.
func (it *item) link() algorithms.ZoneRequest {
	r := it.request
	z := algorithms.ZoneRequest{Mode: r.Mode, Cost: r.Cost, MaxWait: r.MaxWait, Shadow: r.Shadow, Peek: r.Peek, Checks: it.checks}
	for i := range it.limits {
		e := &it.limits[i]
		e.before, it.checks[i].State = e.state, &e.state
	}
	if r.Slots != nil {
		it.slotsCheck = algorithms.SlotsCheck{Limit: r.Slots.Limit, InFlight: it.slots.state.A}
		z.Slots = &it.slotsCheck
	}
	if it.reserves {
		it.reservedCheck = algorithms.ReservedCheck{Events: it.reserved.state.A}
		z.Reserved = &it.reservedCheck
	}
	if r.Ban != nil {
		it.ban.before = it.ban.state
		it.banCheck = algorithms.BanCheck{Ban: r.Ban.Ban, State: &it.ban.state}
		z.Ban = &it.banCheck
	}
	return z
}

// fillOutcome fills in the outcome of the request of an item, and saves the entries that have changed.
func (tx *transaction) fillOutcome(it *item) {
	r := it.request
	o := &r.Outcome
	*o = Outcome{At: tx.now, Decisions: o.Decisions[:0], Slots: SlotsOutcome{Free: true}}
	for i := range it.limits {
		d, e := it.checks[i].Decision, &it.limits[i]
		if d.Charged > 0 || e.state != e.before {
			l := &r.Limits[i]
			expires := l.KeptUntil(&e.state)
			if l.KeptAfterReset() {
				expires = l.Expires(&e.state)
			}
			tx.save(e, expires)
		}
		d.Receipt.Overflow = d.Receipt != (algorithms.Receipt{}) && e.inOverflow()
		o.Decisions = append(o.Decisions, d)
	}
	if r.Slots != nil {
		s, e := &it.slotsCheck, &it.slots
		o.Slots = SlotsOutcome{Free: s.Taken || s.Free(), Taken: s.Taken, InFlight: s.InFlight, Overflow: e.inOverflow()}
		if s.Taken {
			e.state.A = s.InFlight
			tx.save(e, neverExpires)
		}
	}
	if it.reserves {
		c, e := &it.reservedCheck, &it.reserved
		o.Reserved = ReservedOutcome{Events: c.Events, Added: c.Added, Overflow: e.inOverflow()}
		if c.Added > 0 {
			e.state.A = c.Events
			tx.save(e, neverExpires)
		}
	}
	if r.Ban != nil {
		o.Ban = tx.banOutcome(it)
	}
	o.SetVerdict()
}

// banOutcome returns the outcome of the ban of an item, and saves the ban if it has changed.
func (tx *transaction) banOutcome(it *item) BanOutcome {
	d, e := it.banCheck.Decision, &it.ban
	changed := e.state != e.before
	if !e.exists && (d.Began || changed) && !tx.hasRoom(e.zone) { // a ban in overflow would ban all such keys
		return BanOutcome{}
	}
	if d.Began {
		e.label = newBanLabel(it.request.Key, it.request.Ban.ID)
	}
	if changed {
		tx.save(e, tx.now+d.ResetAfter)
	}
	return BanOutcome{Stands: d.Stands, Began: d.Began, EndsAfter: d.EndsAfter}
}

// refund gives back n events to each limit of a request.
func (tx *transaction) refund(request int, r *ZoneRequest, n int64) {
	for i, d := range r.Outcome.Decisions {
		if d.Charged == 0 {
			continue
		}
		l := r.Limits[i]
		e := tx.findCharged(request, r.Zone, l.ID, d.Receipt.Overflow)
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

// charge makes the Charge of a correction.
func (tx *transaction) charge(request int, c *Correction) {
	tx.clearItems()
	decisions := tx.charged[0].Outcome.Decisions
	tx.charged[0] = c.ChargeRequest()
	tx.charged[0].Outcome.Decisions = decisions
	tx.decide(request, tx.charged[:])
}

// leaveSlot gives back the slot of a request.
func (tx *transaction) leaveSlot(request int, r *ZoneRequest) {
	tx.subtract(tx.findCharged(request, r.Zone, r.Slots.ID, r.Outcome.Slots.Overflow), 1)
}

// release ends the reservation of a request.
func (tx *transaction) release(request int, r *ZoneRequest) {
	o := &r.Outcome.Reserved
	tx.subtract(tx.findCharged(request, r.Zone, r.ReservedID, o.Overflow), o.Added)
}

// subtract subtracts n from a count, and drops the count if it becomes 0.
func (tx *transaction) subtract(e entry, n int64) {
	switch {
	case e.state.A > n:
		e.state.A -= n
		tx.save(&e, neverExpires)
	case e.inOverflow():
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

// findOverflow finds the overflow budget, which all keys without room share.
func (tx *transaction) findOverflow(id string) entry {
	s, name := &tx.shared.overflow, tx.shared.names.overflowBudget(id)
	if !tx.overflowLocked {
		s.mu.Lock()
		tx.overflowLocked = true
	}
	return entry{shard: s, name: name, stored: s.loadLocked(name)}
}

// findOrOverflow finds a budget of a request's key or, if the key is new and there is no room, the
// overflow budget. A peek isn't counted as a use of it.
func (tx *transaction) findOrOverflow(request int, zone *zoneUsage, id string, peek bool) entry {
	e := tx.find(request, zone, id)
	if !e.exists && !tx.hasRoom(zone) && !tx.reclaim(zone) {
		if !peek {
			tx.shared.overflowed.Add(1)
			tx.overflowed = append(tx.overflowed, zone.name)
		}
		return tx.findOverflow(id)
	}
	return e
}

// findCharged finds the budget that a request was charged to.
func (tx *transaction) findCharged(request int, zone, id string, overflow bool) entry {
	if overflow {
		return tx.findOverflow(id)
	}
	return tx.find(request, tx.shared.zones.zone(zone), id)
}

// hasRoom reports whether there is room for a new key of a zone.
func (tx *transaction) hasRoom(zone *zoneUsage) bool {
	maxKeys := tx.memory.maxKeys
	return tx.shared.weight.Load() < maxKeys || zone.weight.Load() < maxKeys/int64(max(tx.memory.zoneCount(), 1))
}

// reclaim drops expired budgets until a zone has room, and reports whether the zone has room. To keep
// the request fast, reclaim sweeps at most 4 shards. It skips shards that are locked by others, and those of the
// request itself, whose entries must stay where they were found. The next call continues with the next shards.
func (tx *transaction) reclaim(zone *zoneUsage) bool {
	const maxSweeps = 4
	m := tx.shared
	first := m.nextReclaim.Load()
	sweeps, n := 0, int64(0)
	for ; n < shardCount && sweeps < maxSweeps && !tx.hasRoom(zone); n++ {
		s := &m.shards[(first+n)%shardCount].shard
		if tx.now < s.earliest.Load() {
			continue
		}
		if s.mu.TryLock() {
			s.sweepLocked(tx.now, m.subtractWeight)
			s.mu.Unlock()
			sweeps++
		}
	}
	m.nextReclaim.Store(first + n)
	return tx.hasRoom(zone)
}

// save saves an entry in its shard until it expires, and counts its weight.
func (tx *transaction) save(e *entry, expires algorithms.Micros) {
	if delta := weightOf(e.state.Log, e.label) - e.weight; delta != 0 && e.zone != nil {
		e.zoneNumber = e.zone.number
		e.zone.weight.Add(delta)
		tx.shared.weight.Add(delta)
	}
	e.expires = expires
	e.shard.saveLocked(e.name, &e.stored)
}
