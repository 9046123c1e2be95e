package redisstore

import (
	"crypto/rand"
	"errors"
	"sync"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore/internal/slots"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// DefaultSlotExpiry is how long the count of an instance lives after the instance has set it.
const DefaultSlotExpiry = time.Duration(algorithms.SlotsExpiry) * time.Microsecond

// slotCounts counts the slots that requests of this process hold, whichever store admitted them, and
// keeps these counts in Redis. Package slots has the rules. The nodes of a cluster share one
// inFlight.
type slotCounts struct {
	instance algorithms.Instance
	names    wire.Names
	expiry   algorithms.Micros
	started  time.Time
	// route returns the store that has a name, or nil if none works.
	route func(name string) *Store
	// wander, if not nil, sets the count of a name that has moved away from the node that route
	// returns.
	setMoved func(name string)

	mu         sync.Mutex
	table      *slots.Table
	parked     map[string][]waiting // by name: calls that wait for a message in flight
	queuedSets map[string]bool      // names with a call in a queue that sets their count
	timer      *time.Timer          // of the next turn; nil if no name is known
}

// waiting is a call that waits, and the store that sends it.
type waiting struct {
	store *Store
	call  *pendingCall
}

// slotsOp is the operation of a message on the slots of one name.
type slotsOp struct {
	slots.Op
	name       string
	takes      int
	had, taken int64
	seen       bool // had is known
	err        error
}

// setInterval is the time between turns. Each turn sets the counts that are due.
const setInterval = 100 * time.Millisecond

func newSlotCounts(names wire.Names, expiry time.Duration, route func(string) *Store) *slotCounts {
	f := &slotCounts{
		names: names, expiry: expiry.Microseconds(), started: time.Now(), route: route,
		table: slots.New(expiry.Microseconds()), parked: make(map[string][]waiting), queuedSets: make(map[string]bool),
	}
	_, _ = rand.Read(f.instance[:]) // never fails
	return f
}

func (f *slotCounts) at(t time.Time) algorithms.Micros { return t.Sub(f.started).Microseconds() }

// namesOf returns the names of the slots of requests.
func (f *slotCounts) namesOf(requests []store.Request) (names []string) {
	for i := range requests {
		if r := &requests[i]; r.Slots != nil {
			names = append(names, f.names.Name(r.Key, r.Slots.ID))
		}
	}
	return names
}

// park lets a call wait if its slots must not be taken or set now, and reports whether the call
// waits.
func (f *slotCounts) park(s *Store, c *pendingCall) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	name, wait := f.waitLocked(c)
	if wait == 0 {
		return false
	}
	f.parked[name] = append(f.parked[name], waiting{s, c})
	if wait < algorithms.Forever && len(f.parked[name]) == 1 {
		time.AfterFunc(time.Duration(wait)*time.Microsecond, func() { f.unpark(name) })
	}
	return true
}

// canSend reports whether the slots of a call may be taken or set now.
func (f *slotCounts) canSend(c *pendingCall) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, wait := f.waitLocked(c)
	return wait == 0
}

// joins reports whether a call is about slots of a name whose count must be set. If a message
// contains another such call, this one travels with it, or waits for its end.
func (f *slotCounts) joins(c *pendingCall, name string) bool {
	if len(c.slotNames) == 0 || c.slotNames[0] != name {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.table.Sets(name)
}

// waitLocked returns the first name of a call whose slots must not be taken or set now, and how
// long to wait, as [slots.Table.Wait] does. It returns 0 if there is no such name.
func (f *slotCounts) waitLocked(c *pendingCall) (name string, wait algorithms.Micros) {
	now := f.at(time.Now())
	for _, name := range c.slotNames {
		if wait := f.table.Wait(name, now); wait > 0 {
			return name, wait
		}
	}
	return "", 0
}

// unpark puts the calls that wait for a name back into their queues.
func (f *slotCounts) unpark(name string) {
	f.mu.Lock()
	parked := f.parked[name]
	delete(f.parked, name)
	f.mu.Unlock()
	for len(parked) > 0 {
		s := parked[0].store
		var mine []*pendingCall
		var others []waiting
		for _, w := range parked {
			if w.store == s {
				mine = append(mine, w.call)
			} else {
				others = append(others, w)
			}
		}
		s.requeue(mine)
		parked = others
	}
}

// prepare adds the operations on the slots of its calls to a batch.
func (f *slotCounts) prepare(b *batch) {
	for _, c := range b.calls {
		for i, name := range c.slotNames {
			if b.setAt == nil {
				b.setAt = make(map[string]int)
			}
			n, known := b.setAt[name]
			if !known {
				n = len(b.sets)
				b.setAt[name] = n
				b.sets = append(b.sets, slotsOp{name: name})
			}
			if c.takesSlot(i) {
				b.sets[n].takes++
			}
		}
	}
	if len(b.sets) == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.at(time.Now())
	does := b.sets[:0]
	for _, op := range b.sets {
		delete(f.queuedSets, op.name)
		if op.Op = f.table.Prepare(op.name, op.takes, now); op.Set || op.takes > 0 {
			b.setAt[op.name] = len(does)
			does = append(does, op)
		} else {
			delete(b.setAt, op.name)
		}
	}
	b.sets = does
	f.scheduleLocked()
}

// recordResult notes the result for the slots of a part whose message has ended with err.
func (f *slotCounts) recordResult(p *scriptCall, err error, deadline time.Time) {
	if len(p.sets) == 0 {
		return
	}
	f.mu.Lock()
	now := f.at(time.Now())
	for _, op := range p.sets {
		switch {
		case err == nil && op.err == nil && op.seen:
			f.table.Replied(op.Op, op.taken, op.had, now)
		case err == nil: // the script reports an error of the key
			f.table.Lost(op.Op, now, now)
		case certainlyNotRun(err) || !p.payload.sent:
			f.table.NotRun(op.Op, now)
		default:
			f.table.Lost(op.Op, f.at(deadline), now)
		}
	}
	f.mu.Unlock()
	for _, op := range p.sets {
		f.unpark(op.name)
	}
}

// leaveSlots notes that requests no longer hold their slots. With sends, the counts in Redis are set
// soon.
func (f *slotCounts) leaveSlots(corrections []store.Correction, sends bool) {
	for _, c := range corrections {
		r := c.Request
		if !c.Leave || !r.Outcome.Slots.Taken {
			continue
		}
		name := f.names.Name(r.Key, r.Slots.ID)
		f.mu.Lock()
		f.table.Leave(name, f.at(time.Now()))
		queued := f.queuedSets[name]
		if sends {
			f.queuedSets[name] = true
		}
		f.mu.Unlock()
		if sends && !queued {
			f.set(name)
		}
	}
}

// set queues a call that sets the count of a name, if the count must still be set when the call
// is sent.
func (f *slotCounts) set(name string) {
	s := f.route(name)
	if s == nil { // a later turn sets the count
		f.mu.Lock()
		delete(f.queuedSets, name)
		f.table.Postpone(name, f.at(time.Now()))
		f.mu.Unlock()
		return
	}
	c := newSet(name)
	c.onEnd = func(c *pendingCall) {
		if to := (redirect{}); f.setMoved != nil && errors.As(c.err, &to) {
			go f.setMoved(name)
		}
	}
	s.enqueue(c, false)
}

func newSet(name string) *pendingCall {
	return &pendingCall{setName: name, slotNames: []string{name}, queued: time.Now(), work: algorithms.CounterWork}
}

// countSlots counts slots that another store has granted.
func (f *slotCounts) countSlots(requests []store.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range requests {
		if r := &requests[i]; r.Slots != nil && r.Outcome.Slots.Taken {
			f.table.Count(f.names.Name(r.Key, r.Slots.ID), f.at(time.Now()))
		}
	}
	f.scheduleLocked()
}

// scheduleLocked makes sure that counts are set in time.
func (f *slotCounts) scheduleLocked() {
	if f.timer == nil {
		f.timer = time.AfterFunc(setInterval, f.setDue)
	}
}

// setDue sets the counts that are due.
func (f *slotCounts) setDue() {
	f.mu.Lock()
	due := f.table.Due(f.at(time.Now()), DefaultBatch)
	if f.timer = nil; f.table.Next() < algorithms.Forever {
		f.scheduleLocked()
	}
	f.mu.Unlock()
	for _, name := range due {
		f.set(name)
	}
}
