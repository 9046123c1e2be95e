package ratelimit

import (
	"sync/atomic"
	"time"
)

// throttle lets an event through once per interval, and counts the events in between. The zero
// throttle is ready, and lets the first event through. It is safe for concurrent use.
type throttle struct {
	last atomic.Int64 // when due last let an event through, in ns since the Unix epoch
	held atomic.Int64 // how many events came since then
}

// due counts an event. If the last event was let through at least an interval ago, due lets this
// one through. Then it returns the number of events since then, including this one. Otherwise it
// returns 0.
func (t *throttle) due(interval time.Duration) int64 {
	t.held.Add(1)
	now, last := time.Now().UnixNano(), t.last.Load()
	if now-last < int64(interval) || !t.last.CompareAndSwap(last, now) {
		return 0
	}
	return t.held.Swap(0)
}
