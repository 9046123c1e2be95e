package store

import (
	"math"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// shard is a part of a [Memory]: a map to places in a slab. Budgets lie next to
// each other and hold no pointer but to a log, which leaves the garbage collector
// next to nothing to do, however many there are.
type shard struct {
	// earliest is no later than the first expiry in the shard, so a shard with
	// nothing to drop is passed over without a scan. Written under mu.
	earliest atomic.Int64

	mu     sync.Mutex
	places map[budgetKey]uint32
	slab   []budget
	free   []uint32 // places in the slab that are not in use

	overrides map[overrideKey]override // nil as long as there has been none
}

type overrideKey struct{ zone, key string }

// override is what an operator has set for a key.
type override struct {
	text    string
	expires algorithms.Micros // 0: never
}

// budgetKey names a budget in memory. limit is a number given out by the store,
// and not a string, because that is a pointer less for each budget.
type budgetKey struct {
	limit uint32
	key   string
}

type budget struct {
	state   algorithms.State
	expires algorithms.Micros
}

// weight is how much a budget counts against the bound: 1, and 1 more for every
// 64 events its log has room for.
func (b *budget) weight() int64 { return 1 + b.state.Log.Cap()/64 }

func (s *shard) init() {
	s.places = make(map[budgetKey]uint32)
	s.earliest.Store(math.MaxInt64)
}

// putLocked adds a budget that isn't there, and returns its place in the slab. The
// slab may move, so pointers into it are no longer good.
func (s *shard) putLocked(key budgetKey, b budget) (place uint32) {
	if n := len(s.free); n > 0 {
		place, s.free = s.free[n-1], s.free[:n-1]
		s.slab[place] = b
	} else {
		place = uint32(len(s.slab))
		s.slab = append(s.slab, b)
	}
	key.key = strings.Clone(key.key) // the caller's may be part of something larger
	s.places[key] = place
	return place
}

// expiresLocked notes when a budget of the shard expires.
func (s *shard) expiresLocked(place uint32, at algorithms.Micros) {
	s.slab[place].expires = at
	if at < s.earliest.Load() {
		s.earliest.Store(at)
	}
}

// sweepLocked drops what has expired, and tells of each. Places may change.
func (s *shard) sweepLocked(now algorithms.Micros, dropped func(limit uint32, weight int64)) {
	earliest := int64(math.MaxInt64)
	for key, place := range s.places {
		b := &s.slab[place]
		if b.expires > now {
			earliest = min(earliest, b.expires)
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
	const small = 64
	if len(s.slab) > small && len(s.places) < len(s.slab)/4 {
		s.compactLocked()
	}
}

// dropLocked drops a budget, if it is there, and tells of it.
func (s *shard) dropLocked(key budgetKey, dropped func(limit uint32, weight int64)) {
	place, there := s.places[key]
	if !there {
		return
	}
	b := &s.slab[place]
	dropped(key.limit, b.weight())
	delete(s.places, key)
	*b = budget{}
	s.free = append(s.free, place)
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
	places, slab := make(map[budgetKey]uint32, len(s.places)), make([]budget, 0, len(s.places))
	for key, place := range s.places {
		places[key] = uint32(len(slab))
		slab = append(slab, s.slab[place])
	}
	s.places, s.slab, s.free = places, slab, nil
}
