package store

import "math"

// Denials returns the number of denials that take memory.
func (c *DenyCache) Denials() (n int) {
	for i := range c.sets {
		n += len(c.sets[i].denials)
	}
	return n
}

// Zones returns the number of known zones.
func (m *SharedMemory) Zones() int {
	m.zones.mu.Lock()
	defer m.zones.mu.Unlock()
	return len(m.zones.byName)
}

// ZoneKeys returns the sum of the zones' weights, which is to equal Keys.
func (m *SharedMemory) ZoneKeys() (sum int64) {
	m.zones.mu.Lock()
	defer m.zones.mu.Unlock()
	for _, z := range m.zones.byName {
		sum += z.weight.Load()
	}
	return sum
}

// LeastZoneKeys returns the least weight of a zone.
func (m *SharedMemory) LeastZoneKeys() int64 {
	m.zones.mu.Lock()
	defer m.zones.mu.Unlock()
	least := int64(math.MaxInt64)
	for _, z := range m.zones.byName {
		least = min(least, z.weight.Load())
	}
	return least
}

// OverflowBudgets returns the number of overflow budgets.
func (m *SharedMemory) OverflowBudgets() int {
	m.overflow.mu.Lock()
	defer m.overflow.mu.Unlock()
	return m.overflow.budgets.used
}

// BanLabels returns the number of keys that are kept for lists of bans.
func (m *SharedMemory) BanLabels() (n int) {
	for i := range m.shards {
		n += len(m.shards[i].banLabels)
	}
	return n
}

// KeptOverrides returns the number of overrides that take memory.
func (m *SharedMemory) KeptOverrides() (n int) {
	for i := range m.shards {
		n += len(m.shards[i].overrides)
	}
	return n
}
