package redisstore

import (
	"crypto/rand"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore/internal/slots"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// DefaultSlotExpiry is how long an instance's count of slots lives after the instance has set it.
const DefaultSlotExpiry = time.Duration(algorithms.SlotsExpiry) * time.Microsecond

// slotCounts counts the slots that requests of this process hold, whichever store admitted them,
// and keeps these counts in Redis. Package slots has the rules. The nodes of a cluster share one
// slotCounts.
type slotCounts struct {
	instance algorithms.Instance
	names    wire.Names
	expiry   algorithms.Micros
	started  time.Time
	// setMoved, if not nil, sets the count of a name that has moved away from the store that route
	// returns.
	setMoved func(name string)

	mu sync.Mutex
	// route returns the store that has a name, or nil if that store fails or is unknown.
	route      func(name string) *Store
	table      *slots.Table
	parked     map[string][]parkedCall // by name: calls that wait for a batch in flight
	lost       error                   // the failure of the last lost message with slots
	queuedSets map[string]bool         // names with a queued call that sets their count
	timer      *time.Timer             // of the next turn; nil if no name is known
}

// parkedCall is a call that waits, and the store that sends it.
type parkedCall struct {
	store *Store
	call  *pendingCall
}

// slotsOp is the operation of a message on the slots of one name.
type slotsOp struct {
	slots.Op
	name         string
	takes        int
	found, taken int64
	known        bool // found is known
	err          error
}

// turnInterval is the time between turns. Each turn sets the counts that are due.
const turnInterval = 100 * time.Millisecond

func newSlotCounts(names wire.Names, expiry time.Duration, route func(string) *Store) *slotCounts {
	counts := &slotCounts{
		names: names, expiry: expiry.Microseconds(), started: time.Now(), route: route,
		table: slots.New(expiry.Microseconds()), parked: make(map[string][]parkedCall), queuedSets: make(map[string]bool),
	}
	_, _ = rand.Read(counts.instance[:]) // never fails
	return counts
}

// at converts an instant for the table.
func (counts *slotCounts) at(t time.Time) algorithms.Micros {
	return t.Sub(counts.started).Microseconds()
}

// namesOf returns the names of the slots of requests.
func (counts *slotCounts) namesOf(requests []store.Request) (names []string) {
	for i := range requests {
		if r := &requests[i]; r.Slots != nil {
			names = append(names, counts.names.Name(r.Key, r.Slots.ID))
		}
	}
	return names
}

// parkIfBlocked parks a call if its slots must not be taken or set now. It ends a take if a lost message may
// still run. It reports whether the call is parked or has ended.
func (counts *slotCounts) parkIfBlocked(s *Store, c *pendingCall) bool {
	counts.mu.Lock()
	defer counts.mu.Unlock()
	name, wait, failure := counts.waitLocked(c)
	if failure != nil {
		c.end(false, failure)
		return true
	}
	if wait == 0 {
		return false
	}
	counts.parked[name] = append(counts.parked[name], parkedCall{s, c})
	if wait < algorithms.Forever && len(counts.parked[name]) == 1 {
		time.AfterFunc(time.Duration(wait)*time.Microsecond, func() { counts.unpark(name, nil) })
	}
	return true
}

// parkedCalls returns how many calls are parked.
func (counts *slotCounts) parkedCalls() (n int) {
	counts.mu.Lock()
	defer counts.mu.Unlock()
	for _, calls := range counts.parked {
		n += len(calls)
	}
	return n
}

// joinsSet reports whether a call is about slots of this name, and their count must be set. Such
// calls of a name share a batch: the others would have to wait for its end.
func (counts *slotCounts) joinsSet(c *pendingCall, name string) bool {
	if len(c.slotNames) == 0 || c.slotNames[0] != name {
		return false
	}
	counts.mu.Lock()
	defer counts.mu.Unlock()
	return counts.table.NeedsSet(name)
}

// wait calls waitLocked with the lock held.
func (counts *slotCounts) wait(c *pendingCall) (name string, wait algorithms.Micros, failure error) {
	counts.mu.Lock()
	defer counts.mu.Unlock()
	return counts.waitLocked(c)
}

// waitLocked returns the first name of a call whose slots must not be taken or set now, and how
// long to wait, as [slots.Table.Wait] does. It returns "" and 0 if there is no such name. A take doesn't
// wait until a lost message can no longer run. It must end with the failure of this message, because its caller
// asked a Redis that failed.
func (counts *slotCounts) waitLocked(c *pendingCall) (name string, wait algorithms.Micros, failure error) {
	now := counts.at(time.Now())
	for _, name := range c.slotNames {
		if wait := counts.table.Wait(name, now); wait > 0 {
			if c.requests != nil && wait < algorithms.Forever {
				failure = counts.lost
			}
			return name, wait, failure
		}
	}
	return "", 0, nil
}

// failTakes ends the takes of a store that are parked.
func (counts *slotCounts) failTakes(s *Store, err error) {
	counts.mu.Lock()
	defer counts.mu.Unlock()
	for name, parked := range counts.parked {
		counts.parked[name] = slices.DeleteFunc(parked, func(p parkedCall) bool {
			ends := p.store == s && p.call.requests != nil
			if ends {
				p.call.end(false, err)
			}
			return ends
		})
		if len(counts.parked[name]) == 0 {
			delete(counts.parked, name)
		}
	}
}

// unpark puts the calls that are parked at a name back into their queues. If failure is not nil, takes end
// with it instead.
func (counts *slotCounts) unpark(name string, failure error) {
	counts.mu.Lock()
	parked := counts.parked[name]
	delete(counts.parked, name)
	counts.mu.Unlock()
	for len(parked) > 0 {
		s := parked[0].store
		var same []*pendingCall
		var others []parkedCall
		for _, w := range parked {
			if failure != nil && w.call.requests != nil {
				w.call.end(false, failure)
			} else if w.store == s {
				same = append(same, w.call)
			} else {
				others = append(others, w)
			}
		}
		s.requeue(same)
		parked = others
	}
}

// addOps adds the operations on the slots of its calls to a batch.
func (counts *slotCounts) addOps(b *batch) {
	for _, c := range b.calls {
		for i, name := range c.slotNames {
			if b.slotsOpAt == nil {
				b.slotsOpAt = make(map[string]int)
			}
			n, found := b.slotsOpAt[name]
			if !found {
				n = len(b.slotsOps)
				b.slotsOpAt[name] = n
				b.slotsOps = append(b.slotsOps, slotsOp{name: name})
			}
			if c.takesSlot(i) {
				b.slotsOps[n].takes++
			}
		}
	}
	if len(b.slotsOps) == 0 {
		return
	}
	counts.mu.Lock()
	defer counts.mu.Unlock()
	now := counts.at(time.Now())
	ops := b.slotsOps[:0]
	for _, op := range b.slotsOps {
		delete(counts.queuedSets, op.name)
		if op.Op = counts.table.Prepare(op.name, op.takes, now); op.Set || op.takes > 0 {
			b.slotsOpAt[op.name] = len(ops)
			ops = append(ops, op)
		} else {
			delete(b.slotsOpAt, op.name)
		}
	}
	b.slotsOps = ops
	counts.scheduleSetLocked()
}

// recordReply records what the end of a script call means for its slots. Without a reply, the
// script call can run until the deadline.
func (counts *slotCounts) recordReply(sc *scriptCall, deadline time.Time) {
	if len(sc.slotsOps) == 0 {
		return
	}
	counts.mu.Lock()
	now := counts.at(time.Now())
	for _, op := range sc.slotsOps {
		switch {
		case sc.err == nil && op.err == nil && op.known:
			counts.table.Replied(op.Op, op.taken, op.found, now)
		case sc.err == nil: // the script reports an error of the key
			counts.table.Lost(op.Op, now, now)
		case sc.certainlyNotRun():
			counts.table.NotRun(op.Op, now)
		default:
			counts.table.Lost(op.Op, counts.at(deadline), now)
			counts.lost = sc.err
		}
	}
	counts.mu.Unlock()
	for _, op := range sc.slotsOps {
		counts.unpark(op.name, sc.lost())
	}
}

// distrust is called when Redis may have lost its counts.
func (counts *slotCounts) distrust() {
	counts.mu.Lock()
	defer counts.mu.Unlock()
	counts.table.Distrust()
}

// leaveSlots records that requests no longer hold their slots. With sends, the counts in Redis are
// set soon.
func (counts *slotCounts) leaveSlots(corrections []store.Correction, sends bool) {
	for _, c := range corrections {
		r := c.Request
		if !c.Leave || !r.Outcome.Slots.Taken {
			continue
		}
		name := counts.names.Name(r.Key, r.Slots.ID)
		counts.mu.Lock()
		counts.table.Leave(name, counts.at(time.Now()))
		queued := counts.queuedSets[name]
		if sends {
			counts.queuedSets[name] = true
		}
		counts.mu.Unlock()
		if sends && !queued {
			counts.queueSet(name)
		}
	}
}

// queueSet queues a call that sets the count of a name, if the count must still be set when the
// call is sent.
func (counts *slotCounts) queueSet(name string) {
	counts.mu.Lock()
	route := counts.route
	counts.mu.Unlock()
	s := route(name)
	if s == nil { // a later turn sets the count
		counts.mu.Lock()
		delete(counts.queuedSets, name)
		counts.table.Postpone(name, counts.at(time.Now()))
		counts.mu.Unlock()
		return
	}
	c := newSetCall(name)
	c.onEnd = func(c *pendingCall) {
		if to := (redirect{}); counts.setMoved != nil && errors.As(c.err, &to) {
			go counts.setMoved(name)
		}
	}
	s.enqueue(c, false)
}

func newSetCall(name string) *pendingCall {
	return &pendingCall{setName: name, slotNames: []string{name}, queued: time.Now(), work: algorithms.CounterWork}
}

// countSlots counts slots that another store has granted.
func (counts *slotCounts) countSlots(requests []store.Request) {
	counts.mu.Lock()
	defer counts.mu.Unlock()
	for i := range requests {
		if r := &requests[i]; r.Slots != nil && r.Outcome.Slots.Taken {
			counts.table.Count(counts.names.Name(r.Key, r.Slots.ID), counts.at(time.Now()))
		}
	}
	counts.scheduleSetLocked()
}

// scheduleSetLocked makes sure that counts are set in time.
func (counts *slotCounts) scheduleSetLocked() {
	if counts.timer == nil {
		counts.timer = time.AfterFunc(turnInterval, counts.setDue)
	}
}

// setDue sets the counts that are due.
func (counts *slotCounts) setDue() {
	counts.mu.Lock()
	due := counts.table.Due(counts.at(time.Now()), DefaultBatch)
	if counts.timer = nil; counts.table.Next() < algorithms.Forever {
		counts.scheduleSetLocked()
	}
	counts.mu.Unlock()
	for _, name := range due {
		counts.queueSet(name)
	}
}
