package ratelimit

import (
	"sync/atomic"
	"time"
)

// throttle lets something happen once in a while and counts what it held back.
// The zero throttle is ready.
type throttle struct {
	last atomic.Int64 // ns since the epoch
	held atomic.Int64
}

// due returns 0, or how many times it was called since it last returned
// another number, if that is at least an interval ago.
func (t *throttle) due(interval time.Duration) int64 {
	t.held.Add(1)
	now, last := time.Now().UnixNano(), t.last.Load()
	if now-last < int64(interval) || !t.last.CompareAndSwap(last, now) {
		return 0
	}
	return t.held.Swap(0)
}
