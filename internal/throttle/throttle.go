// Package throttle lets events through at intervals, so that many failures make few log messages. It never delays
// anybody, and starts no goroutine.
package throttle

import (
	"sync/atomic"
	"time"
)

// Throttle lets an event through once per interval, and counts the events in between. The zero
// Throttle is ready, and lets the first event through. It is safe for concurrent use.
type Throttle struct {
	last atomic.Pointer[time.Time] // when an event was last let through; nil if none was
	held atomic.Int64              // how many events came since then
}

// Due counts an event. If the last event was let through at least an interval ago, Due lets this
// one through. Then it returns the number of events since then, including this one. Otherwise it
// returns 0.
func (t *Throttle) Due(interval time.Duration) int64 { return t.dueAt(time.Now(), interval) }

// dueAt is Due at a given instant. Instants of time.Now have a monotonic clock, so it doesn't matter if
// somebody sets the clock of the machine.
func (t *Throttle) dueAt(now time.Time, interval time.Duration) int64 {
	t.held.Add(1)
	last := t.last.Load()
	if last != nil && now.Sub(*last) < interval {
		return 0
	}
	let := now // allocated only here
	if !t.last.CompareAndSwap(last, &let) {
		return 0
	}
	return t.held.Swap(0)
}
