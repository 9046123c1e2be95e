package store

import (
	"math"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keyhash"
)

// shard is a part of a [SharedMemory]: a map to places in a slab. Neither budgets nor places hold
// pointers, so the garbage collector doesn't scan them. Logs are pointers, and are kept
// apart.
type shard struct {
	// earliest is no later than the first expiry in the shard, so a shard with
	// nothing to drop is passed over without a scan. Written under mu.
	earliest atomic.Int64

	mu     sync.Mutex
	places map[keyhash.Hash]place
	slab   []*[slabPart]budget        // in parts, so that it grows without copying
	next   uint32                     // the first place that has never been in use
	free   []uint32                   // places before it that are not in use
	logs   map[uint32]*algorithms.Log // by place, of the budgets that have one; nil at first

	overrides map[overrideKey]override // nil as long as there has been none
}

// place is the index of a budget in the slab, and the number of its zone.
type place struct{ at, zone uint32 }

// budget is an [algorithms.State] without its log.
type budget struct {
	a, b, c int64
	expires algorithms.Micros
}

// slabPart is how many budgets are allocated together: 1 kB.
const slabPart = 32

// stored is a copy of a budget in a shard, or of an untouched one.
type stored struct {
	held       bool // the shard holds the budget, at this place
	at         uint32
	zoneNumber uint32
	state      algorithms.State
	expires    algorithms.Micros
	weight     int64 // as counted: 0 if it isn't held
}

// budgetHasher names budgets by the hash of the key and the hash of the limit's ID. The hash
// of the key also selects the shard. The two hashes have different secrets, so that no key
// can cancel out a limit.
type budgetHasher struct{ keys, limits keyhash.Hasher }

func newBudgetHasher() budgetHasher { return budgetHasher{keyhash.New(), keyhash.New()} }

func (h *budgetHasher) key(key string) keyhash.Hash { return h.keys.Sum(key) }

// budget returns the name of a key's budget of a limit.
func (h *budgetHasher) budget(key keyhash.Hash, limitID string) keyhash.Hash {
	return key.Xor(h.limits.Sum(limitID))
}

// shared returns the name of the budget that keys without room share.
func (h *budgetHasher) shared(limitID string) keyhash.Hash { return h.limits.Sum(limitID) }

type overrideKey struct{ zone, key string }

// override is what an operator has set for a key.
type override struct {
	text    string
	expires algorithms.Micros // 0: never
}

// weightOf returns how much a budget counts against the bound: 1, and 1 more for every 64
// events that its log has room for.
func weightOf(s algorithms.State) int64 { return 1 + s.Log.Cap()/64 }

func (s *shard) init() {
	s.places = make(map[keyhash.Hash]place)
	s.earliest.Store(math.MaxInt64)
}

// at returns the budget at a place. The budget stays there until the next sweep.
func (s *shard) at(place uint32) *budget { return &s.slab[place/slabPart][place%slabPart] }

// findLocked looks up again the place of a budget that loadLocked returned; it may be gone.
func (s *shard) findLocked(key keyhash.Hash, f *stored) {
	p, held := s.places[key]
	if f.held, f.at = held, p.at; !held {
		f.weight = 0
	}
}

// loadLocked returns a budget, or an untouched one if there is none.
func (s *shard) loadLocked(key keyhash.Hash) stored {
	p, held := s.places[key]
	if !held {
		return stored{}
	}
	b := s.at(p.at)
	state := algorithms.State{A: b.a, B: b.b, C: b.c, Log: s.logs[p.at]}
	return stored{held: true, at: p.at, zoneNumber: p.zone, state: state, expires: b.expires, weight: weightOf(state)}
}

// saveLocked saves a budget at its place, or at a free one if it is new.
func (s *shard) saveLocked(key keyhash.Hash, f *stored) {
	if !f.held {
		f.held, f.at = true, s.roomLocked()
		s.places[key] = place{f.at, f.zoneNumber}
	}
	*s.at(f.at) = budget{f.state.A, f.state.B, f.state.C, f.expires}
	s.logLocked(f.at, f.state.Log)
	if f.expires < s.earliest.Load() {
		s.earliest.Store(f.expires)
	}
}

// roomLocked returns a place that is not in use.
func (s *shard) roomLocked() (at uint32) {
	if n := len(s.free); n > 0 {
		at, s.free = s.free[n-1], s.free[:n-1]
		return at
	}
	if at = s.next; at%slabPart == 0 {
		s.slab = append(s.slab, new([slabPart]budget))
	}
	s.next++
	return at
}

// logLocked sets the log of the budget at a place; nil for none.
func (s *shard) logLocked(at uint32, log *algorithms.Log) {
	switch {
	case s.logs[at] == log:
	case log == nil:
		delete(s.logs, at)
	default:
		if s.logs == nil {
			s.logs = make(map[uint32]*algorithms.Log)
		}
		s.logs[at] = log
	}
}

// sweepLocked drops what has expired, and tells of each. Places may change.
func (s *shard) sweepLocked(now algorithms.Micros, dropped func(zone uint32, weight int64)) {
	earliest := int64(math.MaxInt64)
	for key, p := range s.places {
		if expires := s.at(p.at).expires; expires > now {
			earliest = min(earliest, expires)
			continue
		}
		s.dropLocked(key, dropped)
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

// dropLocked drops a budget, if it is there, and tells of it.
func (s *shard) dropLocked(key keyhash.Hash, dropped func(zone uint32, weight int64)) {
	f := s.loadLocked(key)
	if !f.held {
		return
	}
	dropped(f.zoneNumber, f.weight)
	delete(s.places, key)
	s.logLocked(f.at, nil)
	s.free = append(s.free, f.at)
}

// overrideOf returns the text of a key's override; empty for none.
func (s *shard) overrideOf(key overrideKey, now algorithms.Micros) string {
	o := s.overrides[key]
	if o.expires > 0 && o.expires <= now {
		return ""
	}
	return o.text
}

// overrideLocked sets a key's override; one without a text is none.
func (s *shard) overrideLocked(key overrideKey, o override) {
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

// compactLocked gives back the room that a flood left behind. Places change.
func (s *shard) compactLocked() {
	places, slab, logs := s.places, s.slab, s.logs
	s.places = make(map[keyhash.Hash]place, len(places))
	s.slab, s.next, s.free, s.logs = nil, 0, nil, nil
	for key, p := range places {
		at := s.roomLocked()
		s.places[key] = place{at, p.zone}
		*s.at(at) = slab[p.at/slabPart][p.at%slabPart]
		s.logLocked(at, logs[p.at])
	}
}
