package store

import (
	"maps"
	"math"
	"sync"
	"sync/atomic"
)

// zoneTable counts how much of a [SharedMemory] each zone uses. Budgets refer to their zone by a
// number. The next sweep drops a zone that uses nothing.
type zoneTable struct {
	// published is an earlier copy of byName, which is read without a lock. A zone that is missing
	// in the copy is looked up under mu. After as many such look-ups as there are zones, a new copy
	// is made. So the cost per zone doesn't grow with the number of zones.
	published atomic.Pointer[map[string]*zoneUsage]

	mu       sync.Mutex // locked after any shard
	byName   map[string]*zoneUsage
	byNumber []*zoneUsage // nil where a number is free
	free     []uint32     // numbers
	missed   int          // look-ups under mu since the last copy
}

// zoneUsage is how much of a [SharedMemory] one zone uses.
type zoneUsage struct {
	name   string
	number uint32
	// weight is the weight of the zone's budgets. It is below 0 if the zone was dropped.
	weight atomic.Int64
}

// droppedZone is the weight of a dropped zone. It is far below any sum of weights.
const droppedZone = math.MinInt64 / 2

func newZoneTable() *zoneTable {
	t := &zoneTable{byName: make(map[string]*zoneUsage)}
	t.published.Store(new(map[string]*zoneUsage))
	return t
}

// zone returns a zone by its name. If the zone doesn't exist, it is added.
func (t *zoneTable) zone(name string) *zoneUsage {
	if z := (*t.published.Load())[name]; z != nil && z.weight.Load() >= 0 {
		return z
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	z := t.byName[name]
	if z == nil {
		z = &zoneUsage{name: name, number: uint32(len(t.byNumber))}
		if n := len(t.free); n > 0 {
			z.number, t.free = t.free[n-1], t.free[:n-1]
			t.byNumber[z.number] = z
		} else {
			t.byNumber = append(t.byNumber, z)
		}
		t.byName[name] = z
	}
	if t.missed++; t.missed >= len(t.byName) {
		t.publishLocked()
	}
	return z
}

// zoneByNumber returns the zone of a budget in a shard.
func (t *zoneTable) zoneByNumber(n uint32) *zoneUsage {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byNumber[n]
}

// addWeight adds to the weight of a zone, and returns the zone. If z was dropped meanwhile, the result
// is a new zone of the same name.
func (t *zoneTable) addWeight(z *zoneUsage, delta int64) *zoneUsage {
	for z.weight.Add(delta) < 0 {
		z = t.zone(z.name)
	}
	return z
}

// sweep drops the zones that use nothing.
func (t *zoneTable) sweep() {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := len(t.byName)
	for name, z := range t.byName {
		// A request may have looked up z just now. If it has added weight already, z stays. If it
		// adds weight later, addWeight notices that z was dropped.
		if z.weight.CompareAndSwap(0, droppedZone) {
			delete(t.byName, name)
			t.byNumber[z.number] = nil
			t.free = append(t.free, z.number)
		}
	}
	if len(t.byName) < before {
		t.publishLocked()
	}
}

func (t *zoneTable) publishLocked() {
	published := maps.Clone(t.byName)
	t.published.Store(&published)
	t.missed = 0
}
