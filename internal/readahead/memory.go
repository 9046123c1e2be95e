package readahead

import "sync/atomic"

// Memory is the memory that the buffers of many bodies share. It is safe for concurrent use.
type Memory struct {
	size int64
	used atomic.Int64
}

// NewMemory returns a memory of this many bytes.
func NewMemory(size int64) *Memory { return &Memory{size: size} }

// Take takes n bytes. If they aren't free, it takes none and returns false.
func (m *Memory) Take(n int) bool {
	for {
		used := m.used.Load()
		if used+int64(n) > m.size {
			return false
		}
		if m.used.CompareAndSwap(used, used+int64(n)) {
			return true
		}
	}
}

// GiveBack gives back n bytes.
func (m *Memory) GiveBack(n int) { m.used.Add(-int64(n)) }

// Used returns how many bytes are taken.
func (m *Memory) Used() int64 { return m.used.Load() }
