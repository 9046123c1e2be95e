package ratelimit

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// slotLines holds the lines of the requests that wait for a slot, one line per key. Requests
// stand in the order in which they came. Only the first one asks the store. It asks at once when
// this process has given a slot of the key back. Otherwise it asks after pauses, because another
// process may have given one back.
//
// The lines outlive configurations, because waiting requests do. Each waiting request has a
// place in the delay queue of its zone. This bounds the memory.
type slotLines struct {
	firstPause, maxPause time.Duration // between two questions of a line

	waiting atomic.Int64 // the number of requests in all lines; written under mu
	mu      sync.Mutex
	byKey   map[slotKey]*slotLine
}

// processSlotLines are the lines of all handlers.
var processSlotLines = newSlotLines(firstSlotPause, maxSlotPause)

const (
	// firstSlotPause is the pause before the first question of a line that needs no reason.
	// Each further pause is twice as long, up to maxSlotPause, until a request leaves the line
	// with a slot.
	firstSlotPause = 10 * time.Millisecond
	maxSlotPause   = 250 * time.Millisecond
)

func newSlotLines(firstPause, maxPause time.Duration) *slotLines {
	return &slotLines{firstPause: firstPause, maxPause: maxPause, byKey: make(map[slotKey]*slotLine)}
}

// slotKey names the slots of a key in a zone.
type slotKey struct {
	backend *backend // nil for the store in memory
	id, key string
}

// slotLine is a line of requests that wait for a slot of one key.
type slotLine struct {
	waiters   list.List   // of *slotWaiter, in the order in which they came; never empty
	asker     *slotWaiter // the one that is asking the store, or nil
	mayBeFree bool        // a slot may have become free since the last question was asked
	nextAsk   time.Time   // when the first request asks, even if mayBeFree is false
	pause     time.Duration
}

// slotWaiter is a request that waits for slots, in one line at a time.
type slotWaiter struct {
	came    time.Time
	needs   []slotNeed    // one for each zone in which the request can wait
	at      int           // the index of the need in whose line it stands
	element *list.Element // in that line; nil if it stands in no line
	changed chan struct{} // has room for one value; receives one when it may be its turn
}

// slotNeed is a slot that a request needs.
type slotNeed struct {
	slotKey
	entry int       // the index of the zone's entry
	until time.Time // when the request gives up in the line
	// waiting, if not nil, is the number of requests in the lines of the zone, for the metrics.
	waiting *atomic.Int64
}

// count counts n more requests in the lines of the zone.
func (n *slotNeed) count(more int64) {
	if n.waiting != nil {
		n.waiting.Add(more)
	}
}

var errNoSlotInTime = errors.New("no slot became free in time")

// isOccupied reports whether a request waits for a slot.
func (l *slotLines) isOccupied(key slotKey) bool {
	if l.waiting.Load() == 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byKey[key] != nil
}

// wake makes the first request of a line ask the store, because a slot was given back. Requests that
// join later ask by themselves. So wake must come after the slot was given back.
func (l *slotLines) wake(key slotKey) {
	if l.waiting.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if line := l.byKey[key]; line != nil {
		line.mayBeFree = true
		line.callFirst()
	}
}

// join puts a request into the line of one of its needs. If it stands in another line, it leaves
// that line. If it has just asked as the first of this line, the next question comes after a
// pause.
func (l *slotLines) join(w *slotWaiter, need int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.element == nil || w.at != need {
		l.removeLocked(w, true)
		l.insertLocked(w, need)
		return
	}
	line := l.byKey[w.needs[need].slotKey]
	line.asker = nil
	line.nextAsk = time.Now().Add(line.pause)
	line.pause = min(2*line.pause, l.maxPause)
	line.callFirst()
}

// leave removes a request that has asked the store. slotsRemain reports whether slots may still be
// free.
func (l *slotLines) leave(w *slotWaiter, slotsRemain bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removeLocked(w, slotsRemain)
}

// insertLocked puts a request into a line. A new line asks at once, because a slot may have been
// given back after the request asked, and before it joined.
func (l *slotLines) insertLocked(w *slotWaiter, need int) {
	key := w.needs[need].slotKey
	line := l.byKey[key]
	if line == nil {
		line = &slotLine{pause: l.firstPause} // nextAsk has passed
		l.byKey[key] = line
	}
	before := line.waiters.Back()
	for before != nil && before.Value.(*slotWaiter).came.After(w.came) {
		before = before.Prev()
	}
	w.at = need
	if before == nil {
		w.element = line.waiters.PushFront(w)
	} else {
		w.element = line.waiters.InsertAfter(w, before)
	}
	l.waiting.Add(1)
	w.needs[need].count(1)
	line.callFirst()
}

// removeLocked removes a request from its line, if it stands in one. If the request was asking,
// slotsRemain reports whether slots may still be free.
func (l *slotLines) removeLocked(w *slotWaiter, slotsRemain bool) {
	if w.element == nil {
		return
	}
	key := w.needs[w.at].slotKey
	line := l.byKey[key]
	line.waiters.Remove(w.element)
	w.element = nil
	l.waiting.Add(-1)
	w.needs[w.at].count(-1)
	if line.asker == w {
		line.asker = nil
		line.mayBeFree = line.mayBeFree || slotsRemain
		line.nextAsk, line.pause = time.Now().Add(l.firstPause), l.firstPause
	}
	if line.waiters.Len() == 0 {
		delete(l.byKey, key)
	} else {
		line.callFirst()
	}
}

// first returns the first request of the line.
func (line *slotLine) first() *slotWaiter { return line.waiters.Front().Value.(*slotWaiter) }

// callFirst makes the first request of the line look whether it is its turn.
func (line *slotLine) callFirst() {
	select {
	case line.first().changed <- struct{}{}:
	default:
	}
}

// awaitTurn waits until a request that stands in a line is to ask the store. After an error the
// request stands in no line.
func (l *slotLines) awaitTurn(ctx context.Context, w *slotWaiter) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		wait, err := l.turn(w)
		if err != nil || wait == 0 {
			return err
		}
		timer.Reset(wait)
		select {
		case <-w.changed:
		case <-timer.C:
		case <-ctx.Done():
			l.leave(w, false)
			return errClientGone
		}
	}
}

// turn returns 0 if a request is to ask the store now. Otherwise it returns how long to wait at
// most before the next look.
func (l *slotLines) turn(w *slotWaiter) (wait time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	line, now := l.byKey[w.needs[w.at].slotKey], time.Now()
	left := w.needs[w.at].until.Sub(now)
	if left <= 0 {
		l.removeLocked(w, false)
		return 0, errNoSlotInTime
	}
	if line.first() != w || line.asker != nil {
		return left, nil
	}
	if pause := line.nextAsk.Sub(now); !line.mayBeFree && pause > 0 {
		return min(pause, left), nil
	}
	if need := l.earlierLocked(w); need >= 0 {
		l.removeLocked(w, false)
		l.insertLocked(w, need)
		return max(w.needs[need].until.Sub(now), 1), nil
	}
	line.asker, line.mayBeFree = w, false
	return 0, nil
}

// earlierLocked returns the index of a need for which a request waits that came earlier, or -1.
func (l *slotLines) earlierLocked(w *slotWaiter) int {
	for i := range w.needs {
		line := l.byKey[w.needs[i].slotKey]
		if i != w.at && line != nil && line.first().came.Before(w.came) {
			return i
		}
	}
	return -1
}
