package store

import (
	"math"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keyhash"
)

// shard is a part of a [SharedMemory]. Logs are pointers, and few budgets have one, so they are in a separate map.
type shard struct {
	// earliest is no later than the first expiry in the shard. So a shard without expired budgets
	// is skipped without a lock. It is written under mu.
	earliest atomic.Int64

	mu        sync.Mutex
	budgets   table
	logs      map[keyhash.Hash]*algorithms.Log // of budgets; nil until there is a log
	banLabels map[keyhash.Hash]*banLabel       // of keys that were banned; nil until there is one
	overrides map[overrideKey]override         // nil until there is an override
}

// stored is a copy of a budget in a shard. The zero stored is an untouched budget.
type stored struct {
	exists     bool // in the shard
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
func weightOf(log *algorithms.Log, label *banLabel) int64 { return 1 + log.Cap()/64 + label.weight() }

func (s *shard) init() { s.earliest.Store(math.MaxInt64) }

// loadLocked returns a copy of a budget. If the budget doesn't exist, the copy is untouched.
func (s *shard) loadLocked(name keyhash.Hash) stored {
	place, exists := s.budgets.find(name)
	if !exists {
		return stored{}
	}
	b := &s.budgets.places[place]
	state := algorithms.State{A: b.a, B: b.b, C: b.c, D: b.d, Log: s.logs[name]}
	label := s.banLabels[name]
	return stored{
		exists: true, zoneNumber: b.zoneNumber, state: state, label: label, expires: b.expires, weight: weightOf(state.Log, label),
	}
}

// saveLocked saves a copy of a budget. If the budget doesn't exist, saveLocked adds it.
func (s *shard) saveLocked(name keyhash.Hash, c *stored) {
	c.exists = true
	s.budgets.put(budget{
		name: name, a: c.state.A, b: c.state.B, c: c.state.C, d: c.state.D, expires: c.expires, zoneNumber: c.zoneNumber,
	})
	s.setLogLocked(name, c.state.Log)
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

// setLogLocked sets the log of a budget. A nil log removes it.
func (s *shard) setLogLocked(name keyhash.Hash, log *algorithms.Log) {
	switch {
	case s.logs[name] == log:
	case log == nil:
		delete(s.logs, name)
	default:
		if s.logs == nil {
			s.logs = make(map[keyhash.Hash]*algorithms.Log)
		}
		s.logs[name] = log
	}
}

// sweepLocked drops all expired budgets and overrides. It calls dropped for each dropped budget.
func (s *shard) sweepLocked(now algorithms.Micros, dropped func(zoneNumber uint32, weight int64)) {
	earliest := int64(math.MaxInt64)
	s.budgets.removeAll(func(b *budget) bool {
		if b.expires > now {
			earliest = min(earliest, b.expires)
			return false
		}
		s.forgetLocked(b, dropped)
		return true
	})
	for key, o := range s.overrides {
		if o.expires > now {
			earliest = min(earliest, o.expires)
		} else if o.expires > 0 {
			delete(s.overrides, key)
		}
	}
	s.earliest.Store(earliest)
}

// dropLocked drops a budget, and then calls dropped. If the budget doesn't exist, dropLocked does
// nothing.
func (s *shard) dropLocked(name keyhash.Hash, dropped func(zoneNumber uint32, weight int64)) {
	if place, exists := s.budgets.find(name); exists {
		s.forgetLocked(&s.budgets.places[place], dropped)
		s.budgets.remove(place)
	}
}

// forgetLocked calls dropped for a budget, and drops its log and its label.
func (s *shard) forgetLocked(b *budget, dropped func(zoneNumber uint32, weight int64)) {
	dropped(b.zoneNumber, weightOf(s.logs[b.name], s.banLabels[b.name]))
	delete(s.banLabels, b.name)
	s.setLogLocked(b.name, nil)
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
