package store

import (
	"math"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keyhash"
)

// shard is a part of a [SharedMemory]: a slab of budgets, and a map from the names of budgets to
// their places. Both are without pointers, so the garbage collector doesn't scan them. Logs are
// pointers, so they have a separate map.
type shard struct {
	// earliest is no later than the first expiry in the shard. So a shard without expired budgets
	// is skipped without a lock. It is written under mu.
	earliest atomic.Int64

	mu     sync.Mutex
	places map[keyhash.Hash]place
	slab   []*[slabPart]budget        // in parts, so that the slab grows without copying
	next   uint32                     // the first index that was never in use
	free   []uint32                   // the indexes before next that are not in use
	logs   map[uint32]*algorithms.Log // by index; nil until there is a log

	banLabels map[keyhash.Hash]*banLabel // of keys that were banned; nil until there is one
	overrides map[overrideKey]override   // nil until there is an override
}

// place is the index of a budget in the slab, and the number of its zone.
type place struct{ index, zoneNumber uint32 }

// budget is an [algorithms.State] without its log, and its expiry.
type budget struct {
	a, b, c, d int64
	expires    algorithms.Micros
}

// slabPart is the number of budgets that are allocated together: 1.25 kB.
const slabPart = 32

// stored is a copy of a budget in a shard. The zero stored is an untouched budget.
type stored struct {
	exists     bool   // in the shard
	index      uint32 // in the slab, if it exists
	zoneNumber uint32
	state      algorithms.State
	label      *banLabel // nil unless the state is of a ban that began
	expires    algorithms.Micros
	weight     int64 // as counted; 0 if it doesn't exist
}

// budgetNamer names budgets by the hash of the key and the hash of the ID of the limit, slots or ban.
// The hash of the key also selects the shard. The two hashes have different secrets, so no choice of
// a key can cancel out an ID.
type budgetNamer struct{ keys, ids keyhash.Hasher }

// key returns the hash of a key.
func (n *budgetNamer) key(key string) keyhash.Hash { return n.keys.Sum(key) }

// budget returns the name of a key's budget.
func (n *budgetNamer) budget(key keyhash.Hash, id string) keyhash.Hash {
	return key.Xor(n.ids.Sum(id))
}

// overflowBudget returns the name of the budget shared by keys without room.
func (n *budgetNamer) overflowBudget(id string) keyhash.Hash { return n.ids.Sum(id) }

// shardNumber returns the number of the shard that has all budgets of a key.
func shardNumber(key keyhash.Hash) uint16 { return uint16(key[0] % shardCount) }

type overrideKey struct{ zone, key string }

// override is the run-time override of a key.
type override struct {
	text    string
	expires algorithms.Micros // 0: never
}

// weightOf returns how much a budget counts against the bound: 1, and 1 more for every 64 events that
// its log has room for. The label of a ban counts, too.
func weightOf(s algorithms.State, label *banLabel) int64 { return 1 + s.Log.Cap()/64 + label.weight() }

func (s *shard) init() {
	s.places = make(map[keyhash.Hash]place)
	s.earliest.Store(math.MaxInt64)
}

// budgetAt returns the budget at an index. The budget stays there until the next sweep.
func (s *shard) budgetAt(index uint32) *budget { return &s.slab[index/slabPart][index%slabPart] }

// loadLocked returns a copy of a budget. If the budget doesn't exist, the copy is untouched.
func (s *shard) loadLocked(name keyhash.Hash) stored {
	p, exists := s.places[name]
	if !exists {
		return stored{}
	}
	b := s.budgetAt(p.index)
	state := algorithms.State{A: b.a, B: b.b, C: b.c, D: b.d, Log: s.logs[p.index]}
	label := s.banLabels[name]
	return stored{
		exists: true, index: p.index, zoneNumber: p.zoneNumber, state: state, label: label, expires: b.expires,
		weight: weightOf(state, label),
	}
}

// saveLocked saves a copy of a budget. If the budget doesn't exist, saveLocked adds it.
func (s *shard) saveLocked(name keyhash.Hash, c *stored) {
	if !c.exists {
		c.exists, c.index = true, s.allocateLocked()
		s.places[name] = place{c.index, c.zoneNumber}
	}
	*s.budgetAt(c.index) = budget{c.state.A, c.state.B, c.state.C, c.state.D, c.expires}
	s.setLogLocked(c.index, c.state.Log)
	if c.label != nil {
		if s.banLabels == nil {
			s.banLabels = make(map[keyhash.Hash]*banLabel)
		}
		s.banLabels[name] = c.label
	}
	if c.expires < s.earliest.Load() {
		s.earliest.Store(c.expires)
	}
}

// allocateLocked returns an index that is not in use.
func (s *shard) allocateLocked() (index uint32) {
	if n := len(s.free); n > 0 {
		index, s.free = s.free[n-1], s.free[:n-1]
		return index
	}
	if index = s.next; index%slabPart == 0 {
		s.slab = append(s.slab, new([slabPart]budget))
	}
	s.next++
	return index
}

// setLogLocked sets the log of the budget at an index. A nil log removes it.
func (s *shard) setLogLocked(index uint32, log *algorithms.Log) {
	switch {
	case s.logs[index] == log:
	case log == nil:
		delete(s.logs, index)
	default:
		if s.logs == nil {
			s.logs = make(map[uint32]*algorithms.Log)
		}
		s.logs[index] = log
	}
}

// sweepLocked drops all expired budgets and overrides. It calls dropped for each dropped budget. The
// other budgets may move to other indexes.
func (s *shard) sweepLocked(now algorithms.Micros, dropped func(zoneNumber uint32, weight int64)) {
	earliest := int64(math.MaxInt64)
	for name, p := range s.places {
		if expires := s.budgetAt(p.index).expires; expires > now {
			earliest = min(earliest, expires)
			continue
		}
		s.dropLocked(name, dropped)
	}
	for key, o := range s.overrides {
		if o.expires > now {
			earliest = min(earliest, o.expires)
		} else if o.expires > 0 {
			delete(s.overrides, key)
		}
	}
	s.earliest.Store(earliest)
	if s.next > slabPart && len(s.places) < int(s.next)/4 {
		s.compactLocked()
	}
}

// dropLocked drops a budget, and then calls dropped. If the budget doesn't exist, dropLocked does
// nothing.
func (s *shard) dropLocked(name keyhash.Hash, dropped func(zoneNumber uint32, weight int64)) {
	c := s.loadLocked(name)
	if !c.exists {
		return
	}
	dropped(c.zoneNumber, c.weight)
	delete(s.places, name)
	delete(s.banLabels, name)
	s.setLogLocked(c.index, nil)
	s.free = append(s.free, c.index)
}

// compactLocked frees the memory of a slab that is mostly unused, for example after a flood of keys.
// All budgets move to other indexes.
func (s *shard) compactLocked() {
	places, slab, logs := s.places, s.slab, s.logs
	s.places = make(map[keyhash.Hash]place, len(places))
	s.slab, s.next, s.free, s.logs = nil, 0, nil, nil
	for name, p := range places {
		index := s.allocateLocked()
		s.places[name] = place{index, p.zoneNumber}
		*s.budgetAt(index) = slab[p.index/slabPart][p.index%slabPart]
		s.setLogLocked(index, logs[p.index])
	}
}

// overrideTextLocked returns the text of a key's override. The text is empty if there is none.
func (s *shard) overrideTextLocked(key overrideKey, now algorithms.Micros) string {
	o := s.overrides[key]
	if o.expires > 0 && o.expires <= now {
		return ""
	}
	return o.text
}

// setOverrideLocked sets a key's override. An override without a text removes it.
func (s *shard) setOverrideLocked(key overrideKey, o override) {
	if o.text == "" {
		delete(s.overrides, key)
		return
	}
	if s.overrides == nil {
		s.overrides = make(map[overrideKey]override)
	}
	s.overrides[overrideKey{strings.Clone(key.zone), strings.Clone(key.key)}] = o
	if o.expires > 0 && o.expires < s.earliest.Load() {
		s.earliest.Store(o.expires)
	}
}
