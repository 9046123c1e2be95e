package store

import (
	"maps"
	"sync"
	"sync/atomic"
)

// zoneTable counts how much of a [SharedMemory] each zone uses. Budgets refer to their zone by a
// number. A zone stays when it uses nothing, because only configurations can name zones.
type zoneTable struct {
	// published is an earlier copy of byName, which is read without a lock. A zone that is missing
	// in the copy is looked up under mu. After as many such look-ups as there are zones, a new copy
	// is made. So the cost per zone doesn't grow with the number of zones.
	published atomic.Pointer[map[string]*zoneUsage]

	mu       sync.Mutex // locked after any shard
	byName   map[string]*zoneUsage
	byNumber []*zoneUsage
	missed   int // look-ups under mu since the last copy
}

// zoneUsage is how much of a [SharedMemory] one zone uses.
type zoneUsage struct {
	name   string
	number uint32
	weight atomic.Int64 // of the zone's budgets
}

func newZoneTable() *zoneTable {
	t := &zoneTable{byName: make(map[string]*zoneUsage)}
	t.published.Store(new(map[string]*zoneUsage))
	return t
}

// zone returns a zone by its name. If the zone doesn't exist, it is added.
func (t *zoneTable) zone(name string) *zoneUsage {
	if z := (*t.published.Load())[name]; z != nil {
		return z
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	z := t.byName[name]
	if z == nil {
		z = &zoneUsage{name: name, number: uint32(len(t.byNumber))}
		t.byName[name], t.byNumber = z, append(t.byNumber, z)
	}
	if t.missed++; t.missed >= len(t.byName) {
		published := maps.Clone(t.byName)
		t.published.Store(&published)
		t.missed = 0
	}
	return z
}

// zoneByNumber returns the zone of a budget in a shard.
func (t *zoneTable) zoneByNumber(n uint32) *zoneUsage {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byNumber[n]
}
