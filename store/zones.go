package store

import (
	"maps"
	"math"
	"sync"
	"sync/atomic"
)

// zoneTable counts how much of a [SharedMemory] each zone holds. The next sweep drops the record of
// a zone that holds nothing. A budget knows its zone by number.
type zoneTable struct {
	// known is an earlier copy of byName, to be read without a lock. A zone missing in the
	// copy is looked up under mu. After as many such look-ups as there are zones, a new copy
	// is made. So the cost per zone doesn't grow with their number.
	known atomic.Pointer[map[string]*zoneCount]

	mu       sync.Mutex // locked after any shard
	byName   map[string]*zoneCount
	byNumber []*zoneCount // nil where a number is free
	free     []uint32
	missed   int
}

// zoneCount is how much of the store one zone holds.
type zoneCount struct {
	name   string
	number uint32
	// keys is the weight that the zone holds; below 0 once the record is dropped.
	keys atomic.Int64
}

// droppedZone is far below any sum of weights.
const droppedZone = math.MinInt64 / 2

func newZoneTable() *zoneTable {
	t := &zoneTable{byName: make(map[string]*zoneCount)}
	t.known.Store(new(map[string]*zoneCount))
	return t
}

// of returns the record of a zone, and makes one if there is none.
func (t *zoneTable) of(name string) *zoneCount {
	if z := (*t.known.Load())[name]; z != nil && z.keys.Load() >= 0 {
		return z
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	z := t.byName[name]
	if z == nil {
		z = &zoneCount{name: name, number: uint32(len(t.byNumber))}
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

// count adds to the weight that a zone holds. It returns the zone's record, which is a new
// one if z has been dropped.
func (t *zoneTable) count(z *zoneCount, by int64) *zoneCount {
	for z.keys.Add(by) < 0 {
		z = t.of(z.name)
	}
	return z
}

// numbered returns the record of a zone that holds something.
func (t *zoneTable) numbered(n uint32) *zoneCount {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byNumber[n]
}

// sweep drops the records of zones that hold nothing.
func (t *zoneTable) sweep() {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := len(t.byName)
	for name, z := range t.byName {
		// A request may have looked z up just now. If it has counted something, z stays;
		// if it does so later, count notices.
		if z.keys.CompareAndSwap(0, droppedZone) {
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
	known := maps.Clone(t.byName)
	t.known.Store(&known)
	t.missed = 0
}
