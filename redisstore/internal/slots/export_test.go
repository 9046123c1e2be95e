package slots

// MaxIdle is maxIdle for tests.
const MaxIdle = maxIdle

// Knows reports whether a key is remembered.
func (t *Table) Knows(name string) bool { return t.keys[name] != nil }

// Len returns how many keys are remembered, and how many of them are idle.
func (t *Table) Len() (all, idle int) { return len(t.keys), len(t.confirmed) + t.unconfirmed }

// SetMaxIdle changes the maximum number of idle keys.
func (t *Table) SetMaxIdle(n int) { t.maxIdle = n }
