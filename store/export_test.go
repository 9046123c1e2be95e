package store

// Held is how many refusals are remembered.
func (c *DenyCache) Held() int64 { return c.held.Load() }
