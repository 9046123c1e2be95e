package redisstore

import (
	"crypto/rand"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore/internal/nodes"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore/internal/slots"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// DefaultSlotExpiry is how long an instance's count of slots lives after the instance has set it.
const DefaultSlotExpiry = time.Duration(algorithms.SlotsExpiry) * time.Microsecond

// keyStates has the states of keys that decide when a call may be sent: see order.go. It counts the slots that requests
// of this process hold, whichever store allowed them, and keeps these counts in Redis. Package slots has the rules.
// The nodes of a cluster share one keyStates. Its mutex guards their queues, too, so a call that returns to a queue
// can't be overtaken on its way.
type keyStates struct {
	instance algorithms.Instance
	names    wire.Names
	expiry   algorithms.Micros
	started  time.Time
	// setMoved, if not nil, sets the count of a name that has moved away from the store that route returns.
	setMoved func(name string)

	mu sync.Mutex
	// route returns the store that has a name, or nil if that store fails or is unknown.
	route      func(name string) *Store
	table      *slots.Table
	lastLoss   error                     // the failure of the last lost message with slots
	sets       map[string][]*pendingCall // calls of queueSetLocked that have not ended, by the name of the slots
	timer      *time.Timer               // of the next turn; nil if no name is known
	correcting map[string]*batch         // in flight, with corrections of a key
	waiting    map[awaited][]*pendingCall
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

func newKeyStates(names wire.Names, expiry time.Duration, route func(string) *Store) *keyStates {
	k := &keyStates{
		names: names, expiry: expiry.Microseconds(), started: time.Now(), route: route,
		table: slots.New(expiry.Microseconds()), sets: make(map[string][]*pendingCall),
		correcting: make(map[string]*batch), waiting: make(map[awaited][]*pendingCall),
	}
	_, _ = rand.Read(k.instance[:]) // never fails
	return k
}

// at converts an instant for the table.
func (k *keyStates) at(t time.Time) algorithms.Micros { return t.Sub(k.started).Microseconds() }

// slotsUse is that a call takes, looks at or sets the count of slots of a name. Reserved events are counted as slots are.
type slotsUse struct {
	name     string
	request  *store.ZoneRequest // nil: the call sets the count
	reserved bool               // of events
}

// takes reports whether the call takes a slot, or reserves events.
func (u slotsUse) takes() bool { return u.request != nil && !u.request.Peek }

// taken returns how many the call has taken.
func (u slotsUse) taken() int64 {
	switch o := &u.request.Outcome; {
	case u.reserved:
		return o.Reserved.Added
	case o.Slots.Taken:
		return 1
	}
	return 0
}

// slotsOf returns which slots and reserved events requests use, in the order of the replies.
func (k *keyStates) slotsOf(requests []store.ZoneRequest) (uses []slotsUse) {
	for i := range requests {
		r := &requests[i]
		if r.Slots != nil {
			uses = append(uses, slotsUse{name: k.names.CountName(r.Key, r.Slots.ID, r.Tenant.ID), request: r})
		}
		if r.ReservedID != "" {
			uses = append(uses, slotsUse{name: k.names.CountName(r.Key, r.ReservedID, 0), request: r, reserved: true})
		}
	}
	return uses
}

// release is the end of a reservation. A correction tells Redis of it: a Set would make all other calls of the key wait.
type release struct {
	name    string
	events  int64
	sent    bool // the message of the correction has it
	replied bool // Redis has made it
	ended   bool // the table knows
}

// isSent reports whether there is a release in the message. r may be nil.
func (r *release) isSent() bool { return r != nil && r.sent }

// releaseOf returns the release of a correction, or nil if there is none.
func (k *keyStates) releaseOf(c *store.Correction) *release {
	if !c.Releases() {
		return nil
	}
	return &release{name: k.names.CountName(c.Request.Key, c.Request.ReservedID, 0), events: c.Request.Outcome.Reserved.Added}
}

// addReleasesLocked adds the releases of a call to a batch. While their count is being set, or must be, they end without
// Redis, and a later Set makes the count right. So a correction never waits.
func (k *keyStates) addReleasesLocked(b *batch, c *pendingCall, now algorithms.Micros) {
	for _, r := range c.releases {
		if r == nil {
			continue
		}
		if r.sent, r.replied = false, false; r.ended {
			continue
		}
		if r.sent = b.slotsOp(r.name) != nil || k.table.Wait(r.name, now) == 0; r.sent {
			k.addOpLocked(b, r.name, true, now)
		} else {
			k.endReleaseLocked(r)
		}
	}
}

func (k *keyStates) endReleaseLocked(r *release) {
	r.ended = true
	k.table.Leave(r.name, r.events, k.at(time.Now()))
	k.scheduleSetLocked()
}

// endReleases ends the releases of a call that has ended, unless Redis made them.
func (k *keyStates) endReleases(releases []*release) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, r := range releases {
		if r != nil && !r.ended {
			k.endReleaseLocked(r)
		}
	}
}

// addOpLocked adds to a batch the operation on slots that their first use in the batch needs, if it needs one. changes
// reports whether the use changes their count.
func (k *keyStates) addOpLocked(b *batch, name string, changes bool, now algorithms.Micros) {
	k.scheduleSetLocked()
	if b.slotsOp(name) != nil {
		return
	}
	if op := k.table.Prepare(name, changes, now); op.Set || changes {
		b.slotsOpAt[name] = len(b.slotsOps)
		b.slotsOps = append(b.slotsOps, slotsOp{Op: op, name: name})
	}
}

// recordSlotsLocked records what the end of a message means for its slots. Without a reply, the
// message can run until the deadline.
func (k *keyStates) recordSlotsLocked(m *message, deadline time.Time) {
	now := k.at(time.Now())
	for _, op := range m.slotsOps {
		switch {
		case m.err == nil && op.err == nil && op.known:
			k.table.Replied(op.Op, op.taken, op.found, now)
		case m.err == nil && errors.Is(op.err, wire.ErrElsewhere):
			k.table.NotRun(op.Op, now)
		case m.err == nil: // the script reports an error of the key
			k.table.Lost(op.Op, now, now)
		case m.certainlyNotRun():
			k.table.NotRun(op.Op, now)
		default:
			k.table.Lost(op.Op, k.at(deadline), now)
			k.lastLoss = m.err
		}
	}
	if m.err == nil {
		markReleased(m.calls)
		markReleased(m.retries)
	}
}

// markReleased marks the releases of calls that Redis has made, because the table knows of them now.
func markReleased(calls []*pendingCall) {
	for _, c := range calls {
		for _, r := range c.releases {
			if r.isSent() && r.replied {
				r.ended = true
			}
		}
	}
}

// leaveSlots records that requests no longer hold their slots. With set it queues calls that set the counts.
func (k *keyStates) leaveSlots(corrections []store.Correction, set bool) {
	for i := range corrections {
		c, r := &corrections[i], corrections[i].Request
		if !c.Leave || !r.Outcome.Slots.Taken {
			continue
		}
		name := k.names.CountName(r.Key, r.Slots.ID, r.Tenant.ID)
		k.mu.Lock()
		k.table.Leave(name, 1, k.at(time.Now()))
		if set {
			k.queueSetLocked(name)
		}
		k.mu.Unlock()
	}
}

// EndLine implements [Redis].
func (c corrector) EndLine(slotsID, key string, tenant uint64) {
	k := c.keys
	name := k.names.CountName(key, slotsID, tenant)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.table.EndLine(name, k.at(time.Now()))
	k.queueSetLocked(name)
}

// queueSetLocked queues a call that sets the count of a name, if the count must still be set when the call is sent. One such
// call is enough.
func (k *keyStates) queueSetLocked(name string) {
	of := wire.OfCount(name)
	if slices.ContainsFunc(k.sets[of], func(c *pendingCall) bool { return c.setName == name && !c.sent }) {
		return
	}
	s := k.route(name)
	if s == nil { // a later turn sets the count
		k.table.Postpone(name, k.at(time.Now()))
		return
	}
	c := newSetCall(name)
	c.onEnd = func(c *pendingCall) {
		if to := (nodes.Redirect{}); k.setMoved != nil && errors.As(c.err, &to) {
			go k.setMoved(name)
		}
	}
	k.sets[of] = append(k.sets[of], c)
	s.enqueueLocked(c)
}

// endSetLocked forgets a call of queueSetLocked, which ends. It does nothing for other calls.
func (k *keyStates) endSetLocked(c *pendingCall) {
	if c.setName == "" {
		return
	}
	of := wire.OfCount(c.setName)
	if k.sets[of] = slices.DeleteFunc(k.sets[of], func(other *pendingCall) bool { return other == c }); len(k.sets[of]) == 0 {
		delete(k.sets, of)
	}
}

func newSetCall(name string) *pendingCall {
	return &pendingCall{
		setName: name, slots: []slotsUse{{name: name}}, queued: time.Now(), work: algorithms.CounterWork, done: make(chan struct{}, 1),
	}
}

// countSlots counts slots that another store has granted.
func (k *keyStates) countSlots(requests []store.ZoneRequest) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range requests {
		if r := &requests[i]; r.Slots != nil && r.Outcome.Slots.Taken {
			k.table.Count(k.names.CountName(r.Key, r.Slots.ID, r.Tenant.ID), k.at(time.Now()))
		}
	}
	k.scheduleSetLocked()
}

// scheduleSetLocked makes sure that counts are set in time.
func (k *keyStates) scheduleSetLocked() {
	if k.timer == nil {
		k.timer = time.AfterFunc(turnInterval, k.setDue)
	}
}

// setDue sets the counts that are due.
func (k *keyStates) setDue() {
	k.mu.Lock()
	defer k.mu.Unlock()
	due := k.table.Due(k.at(time.Now()), DefaultBatch)
	if k.timer = nil; k.table.Next() < algorithms.Forever {
		k.scheduleSetLocked()
	}
	for _, name := range due {
		k.queueSetLocked(name)
	}
}
