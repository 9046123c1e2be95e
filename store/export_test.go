package store

// Held is how many denials are remembered.
func (c *DenyCache) Held() int64 { return c.held.Load() }

// Zones is how many zones there are records of, and ZoneKeys what all of them hold.
func (m *SharedMemory) Zones() int {
	m.zones.mu.Lock()
	defer m.zones.mu.Unlock()
	return len(m.zones.byName)
}

func (m *SharedMemory) ZoneKeys() (sum int64) {
	m.zones.mu.Lock()
	defer m.zones.mu.Unlock()
	for _, z := range m.zones.byName {
		sum += z.keys.Load()
	}
	return sum
}

// ZoneNumbers is how many numbers of zones have ever been in use at the same time.
func (m *SharedMemory) ZoneNumbers() int {
	m.zones.mu.Lock()
	defer m.zones.mu.Unlock()
	return len(m.zones.byNumber)
}

// Shared is how many budgets are shared between keys that found no room.
func (m *SharedMemory) Shared() int {
	m.overflow.mu.Lock()
	defer m.overflow.mu.Unlock()
	return len(m.overflow.places)
}
