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
	parked     map[string][]*pendingCall // by name: see [Store.admitOrParkLocked]
	lost       error                     // the failure of the last lost message with slots
	queuedSets map[string]bool           // names with a queued call that sets their count
	timer      *time.Timer               // of the next turn; nil if no name is known
}

// slotsOp is the operation of a message on the slots of one name.
type slotsOp struct {
	slots.Op
	name         string
	found, taken int64
	known        bool // found is known
	err          error
}

// turnInterval is the time between turns. Each turn sets the counts that are due.
const turnInterval = 100 * time.Millisecond

func newSlotCounts(names wire.Names, expiry time.Duration, route func(string) *Store) *slotCounts {
	counts := &slotCounts{
		names: names, expiry: expiry.Microseconds(), started: time.Now(), route: route,
		table: slots.New(expiry.Microseconds()), parked: make(map[string][]*pendingCall), queuedSets: make(map[string]bool),
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

// parkedCalls returns how many calls are parked.
func (counts *slotCounts) parkedCalls() (n int) {
	counts.mu.Lock()
	defer counts.mu.Unlock()
	for _, calls := range counts.parked {
		n += len(calls)
	}
	return n
}

// admitLocked adds the operations of a call on slots to a batch. If slots must not be taken or set now, it adds
// nothing, and returns the first name of such slots, and how long to wait, as [slots.Table.Wait] does. A take
// doesn't wait until a lost message can no longer run. It must end with the failure of this message, because its
// caller asked a Redis that failed.
func (counts *slotCounts) admitLocked(b *batch, c *pendingCall) (name string, wait algorithms.Micros, failure error) {
	now := counts.at(time.Now())
	for _, name := range c.slotNames {
		if b.slotsOp(name) != nil { // its operation comes before all takes of the batch
			continue
		}
		if wait := counts.table.Wait(name, now); wait > 0 {
			if c.requests != nil && wait < algorithms.Forever {
				failure = counts.lost
			}
			return name, wait, failure
		}
	}
	counts.addOps(b, c, now)
	return "", 0, nil
}

// addOps adds the operations of a call on slots to a batch.
func (counts *slotCounts) addOps(b *batch, c *pendingCall, now algorithms.Micros) {
	for i, name := range c.slotNames {
		delete(counts.queuedSets, name)
		takes := c.slotsTaken(i)
		if op := b.slotsOp(name); op != nil {
			counts.table.Join(op.Op, takes, now)
		} else if prepared := counts.table.Prepare(name, takes, now); prepared.Set || takes > 0 {
			b.addSlotsOp(slotsOp{Op: prepared, name: name})
		}
	}
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

// leaveSlots records that requests no longer hold their slots. It calls then, if not nil, with the name of each
// slot.
func (counts *slotCounts) leaveSlots(corrections []store.Correction, then func(name string)) {
	for _, c := range corrections {
		r := c.Request
		if !c.Leave || !r.Outcome.Slots.Taken {
			continue
		}
		name := counts.names.Name(r.Key, r.Slots.ID)
		counts.mu.Lock()
		counts.table.Leave(name, counts.at(time.Now()))
		counts.mu.Unlock()
		if then != nil {
			then(name)
		}
	}
}

// setSoon queues a call that sets the count of a name, unless one is queued.
func (counts *slotCounts) setSoon(name string) {
	counts.mu.Lock()
	queued := counts.queuedSets[name]
	counts.queuedSets[name] = true
	counts.mu.Unlock()
	if !queued {
		counts.queueSet(name)
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
	s.enqueue(c)
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
