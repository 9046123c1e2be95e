// Package slots counts, for each key, the requests of this process that hold a slot. Instances share
// slots in Redis; the package decides which operations keep this instance's count there correct. It
// never sends an operation.
package slots

import (
	"container/heap"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// Micros is a duration, or an instant of this process's monotonic clock. A [Table] is independent
// of Redis' clock and its steps.
type Micros = algorithms.Micros

const (
	// setRetryDelay is how long a failed Set waits, unless another operation on the key comes
	// first.
	setRetryDelay Micros = 1_000_000
	// maxIdle is the maximum number of remembered idle keys.
	maxIdle = 10_000
)

// Op is the operation of a message on this instance's count of a key. It runs before the takes of
// the message. The zero Op does nothing.
type Op struct {
	Set      bool  // make Count this instance's count
	Count    int64 // 0 or more
	EndsLine bool  // with Set: no request of the tenant waits for a slot any more in this instance

	key *key
}

// Table counts the requests of this process that hold a slot of each key, whichever store
// allowed them. It decides which operation a message to Redis must begin with, so that no
// request in flight goes uncounted and no slot stays taken:
//
//   - Only a take adds to Redis' count. Slots are given back by setting the count, and reserved events
//     by subtracting them. A Set is built only while nothing is in flight for the key. So no Set
//     overtakes a take or another Set, and no Set is wrong because Redis has lost its counts.
//   - All other operations on the key wait while a Set is in flight or is to be made, because
//     connections reorder messages. The message of the Set can carry takes. Takes don't wait
//     for takes.
//   - An operation that may be lost is not repeated. The key waits until the operation can no
//     longer run, and is then set before anything else.
//   - A key is set at least every 10 s, and at once if Redis had another count than expected. If it was
//     too low, Redis may have lost the counts of other keys, too. Each key with held slots is set before
//     its next take.
//   - A key without requests is set until 30 s after its last operation. At most 10,000
//     such keys are remembered, besides those with an operation that may still run. Keys whose
//     count Redis has confirmed are forgotten first. If another key is forgotten, its slots in Redis
//     stay taken until the next take of the key, or until the count expires.
//
// A Table reads no clock and starts nothing. It is not safe for concurrent use.
type Table struct {
	// expiry is how long a count lives in Redis. setEvery is the maximum time between two Sets of a
	// key.
	expiry, setEvery Micros

	keys     map[string]*key
	schedule schedule
	// A key is idle while no request holds a slot, and no message is in flight. confirmed has the
	// idle keys whose count in Redis is right, and unconfirmed is the number of the others.
	confirmed   []*key
	unconfirmed int
	maxIdle     int
	distrusts   int // how often Distrust was called
	// credit and lastDue, the instant of the last call of Due, spread the Sets over time; see addCredit.
	credit, lastDue Micros
}

// key is the state of one key. An unknown key is like a new one: no request holds a slot, and Redis
// has no count.
type key struct {
	name string
	// held is how many requests hold a slot. counted is Redis' count after all messages in flight
	// have run.
	held, counted int64
	// stale reports whether Redis' count may differ from counted.
	stale bool
	// endsLine reports whether the next Set says that no request waits.
	endsLine bool
	// distrusts is that of the Table when the count in Redis was last right.
	distrusts int
	// inFlight is how many messages with operations on the key are in flight. alone reports whether
	// there is only one, sent while there was no other. setInFlight reports whether it has a Set.
	inFlight           int
	alone, setInFlight bool
	// blockedUntil is the instant until which a lost operation may still run.
	blockedUntil Micros
	lastUsed     Micros // when Redis' count was last changed by a request, or found wrong
	due          Micros // when the next Set is due
	scheduledAt  Micros // at most due: the position in the schedule
	heapIndex    int    // in the schedule
	idle         idleness
	idleIndex    int // in confirmed
}

// idleness reports whether a key is idle, and whether Redis has confirmed its count.
type idleness uint8

const (
	inUse idleness = iota
	unconfirmed
	confirmed
)

// New returns an empty Table for counts that live for expiry in Redis, usually
// [algorithms.SlotsExpiry].
func New(expiry Micros) *Table {
	return &Table{expiry: expiry, setEvery: expiry / 3, keys: map[string]*key{}, maxIdle: maxIdle}
}

// Wait returns 0 if a message with operations on the key may be built now. Otherwise it returns how
// long to wait before the next call of Wait. If that is [algorithms.Forever], call Wait again after
// the next Replied, NotRun or Lost of the key.
func (t *Table) Wait(name string, now Micros) Micros {
	switch k := t.keys[name]; {
	case k == nil:
		return 0
	case k.setInFlight, t.needsSet(k) && k.inFlight > 0:
		return algorithms.Forever
	default:
		return max(k.blockedUntil-now, 0)
	}
}

// Prepare returns the operation of a message on a key. Call it once per key of the message,
// when Wait has returned 0. takes reports whether the first call of the message takes a slot of the key. Further calls
// may take slots, too. Beside takes in flight, Prepare returns no Set: the key becomes due when they end.
//
// The message is in flight until Replied, NotRun or Lost is called with the same op. If op does
// nothing and takes is false, none of the three may be called.
func (t *Table) Prepare(name string, takes bool, now Micros) (op Op) {
	k := t.keys[name]
	if k == nil {
		if !takes {
			return Op{}
		}
		k = t.add(name, now)
	}
	op.key = k
	if t.needsSet(k) && k.inFlight == 0 {
		op.Set, op.Count = true, k.held
		k.counted, k.stale, k.setInFlight = k.held, false, true
		op.EndsLine, k.endsLine = k.endsLine, false
		t.makeDue(k, now+t.setEvery)
	}
	if k.inFlight == 0 {
		k.distrusts = t.distrusts
	}
	if op.Set || takes {
		k.alone = k.inFlight == 0
		k.inFlight++
	}
	t.updateIdle(k, now)
	return op
}

func (t *Table) needsSet(k *key) bool {
	return k.stale || k.held != k.counted || k.held > 0 && k.distrusts != t.distrusts
}

// Distrust is called when Redis may have lost its counts.
func (t *Table) Distrust() { t.distrusts++ }

// Replied is called when Redis has run a message. taken is how many slots the message took, minus the number that it
// gave back. found is this instance's count before the message. The requests that took a slot hold it now.
func (t *Table) Replied(op Op, taken, found int64, now Micros) {
	k := op.key
	if !op.Set && k.alone && found != k.counted {
		k.lastUsed = now // the wrong count has just been renewed
		if k.stale = true; found < k.counted {
			t.Distrust()
		}
	}
	k.held += taken
	k.counted += taken
	t.endMessage(k, now, now)
}

// NotRun is called when a message certainly did not run and never will: it was not sent, or Redis
// replied that it did not run. Its operations can be prepared again at once.
func (t *Table) NotRun(op Op, now Micros) {
	k := op.key
	k.stale, k.endsLine = k.stale || op.Set, k.endsLine || op.EndsLine
	t.endMessage(k, now+setRetryDelay, now)
}

// Lost is called when a message may have run, or may still run, but not after the instant until.
// The number of slots that it took is unknown.
func (t *Table) Lost(op Op, until, now Micros) {
	k := op.key
	k.stale = true
	k.blockedUntil = max(k.blockedUntil, until)
	due := now
	if op.Set {
		due += setRetryDelay
	}
	t.endMessage(k, due, now)
}

// endMessage ends a message. If it was the last one in flight and Redis' count is wrong, the count
// becomes due at the instant due. The next operation on the key sets it earlier.
func (t *Table) endMessage(k *key, due, now Micros) {
	k.inFlight--
	k.alone = false
	k.setInFlight = false // a message with a Set is the only one in flight
	if k.inFlight == 0 && t.needsSet(k) {
		t.makeDue(k, max(due, k.blockedUntil))
	}
	t.updateIdle(k, now)
}

// Leave is called when requests no longer hold n slots, and no message says so. Prepare a message for the key after that.
func (t *Table) Leave(name string, n int64, now Micros) {
	k := t.keys[name]
	k.held -= n
	k.lastUsed = now
	if k.inFlight == 0 {
		t.makeDue(k, min(k.due, now+setRetryDelay))
	}
	t.updateIdle(k, now)
}

// Count is called when a request holds a slot that was not taken in Redis, because another store
// allowed the request while Redis failed.
func (t *Table) Count(name string, now Micros) {
	k := t.keyOf(name, now)
	k.held++
	k.lastUsed = now
	if k.inFlight == 0 {
		t.makeDue(k, min(k.due, now+setRetryDelay))
	}
	t.updateIdle(k, now)
}

// EndLine is called when the last request that waits for a slot has left, so that a Set must say it. A lost Set
// isn't repeated for that, because lines expire soon.
func (t *Table) EndLine(name string, now Micros) {
	k := t.keyOf(name, now)
	k.stale, k.endsLine, k.lastUsed = true, true, now
	if k.inFlight == 0 {
		t.makeDue(k, max(now, k.blockedUntil))
	}
	t.updateIdle(k, now)
}

// Due returns the names of keys to set now. For each, call Wait and Prepare without takes, or
// Postpone. Call Due at the instant that Next returns, and at least every 100 ms, so that the Sets
// are spread over time.
//
// Due returns at most limit names. This can be too few to set every key in time. Then the maximum
// is twice the average number of due names since the last call.
//
// In a time t, Due returns the share t/10s of all keys, even if they are not due yet. So keys that
// were set together, as after an outage, don't stay together.
func (t *Table) Due(now Micros, limit int) (names []string) {
	limit = max(limit, int(2*t.addCredit(now)/t.setEvery))
	for len(names) < limit {
		k := t.first()
		if k == nil || k.due > now && !t.maySetEarly(k) {
			break
		}
		if t.mayForget(k, now) {
			t.drop(k)
			continue
		}
		t.credit = max(t.credit-t.setEvery, 0)
		k.stale = true // so that Prepare sets the count, even if it seems to be right
		t.makeDue(k, now+t.setEvery)
		if t.updateIdle(k, now); k.inFlight == 0 {
			names = append(names, k.name)
		}
	}
	return names
}

// addCredit adds and returns the credit for the time since the last call. One Set costs a credit of setEvery, which each
// key earns in this time.
func (t *Table) addCredit(now Micros) (earned Micros) {
	keys := Micros(len(t.keys))
	earned = keys * min(now-t.lastDue, t.setEvery)
	t.credit = min(t.credit+earned, keys*t.setEvery)
	t.lastDue = now
	return earned
}

// maySetEarly reports whether a key may be set before it is due.
func (t *Table) maySetEarly(k *key) bool { return t.credit >= t.setEvery && !k.stale }

// mayForget reports whether a key can be dropped: its count has also expired in Redis, or too many keys are idle.
func (t *Table) mayForget(k *key, now Micros) bool {
	if k.held == 0 && k.inFlight == 0 && now >= max(k.lastUsed, k.blockedUntil)+t.expiry {
		return true
	}
	return k.idle != inUse && t.hasTooManyIdle() && now >= k.blockedUntil
}

// Postpone is called instead of Prepare if a key can't be set now, because Redis is known to fail.
func (t *Table) Postpone(name string, now Micros) {
	if k := t.keys[name]; k != nil {
		t.makeDue(k, min(k.due, now+setRetryDelay))
	}
}

// Next returns the instant when the next key is due, or Forever if there is no key.
func (t *Table) Next() Micros {
	if k := t.first(); k != nil {
		return k.due
	}
	return algorithms.Forever
}

// first returns the key that is due first, or nil if there is no key.
func (t *Table) first() *key {
	for len(t.schedule) > 0 {
		k := t.schedule[0]
		if k.scheduledAt == k.due {
			return k
		}
		k.scheduledAt = k.due
		heap.Fix(&t.schedule, 0)
	}
	return nil
}

// updateIdle records whether the key is idle. If too many keys are idle, it drops one. It can't drop
// a key with an operation that may still run: Due does this later.
func (t *Table) updateIdle(k *key, now Micros) {
	t.setIdle(k, t.idleness(k))
	if !t.hasTooManyIdle() {
		return
	}
	if n := len(t.confirmed); n > 0 {
		t.drop(t.confirmed[n-1])
	} else if k.idle != inUse && now >= k.blockedUntil {
		t.drop(k)
	} else if k.idle != inUse {
		t.makeDue(k, min(k.due, k.blockedUntil))
	}
}

func (t *Table) idleness(k *key) idleness {
	switch {
	case k.held > 0 || k.inFlight > 0:
		return inUse
	case t.needsSet(k):
		return unconfirmed
	default:
		return confirmed
	}
}

func (t *Table) hasTooManyIdle() bool { return len(t.confirmed)+t.unconfirmed > t.maxIdle }

func (t *Table) setIdle(k *key, idle idleness) {
	if idle == k.idle {
		return
	}
	switch k.idle {
	case confirmed:
		last := t.confirmed[len(t.confirmed)-1]
		t.confirmed[k.idleIndex], last.idleIndex = last, k.idleIndex
		t.confirmed[len(t.confirmed)-1] = nil
		t.confirmed = t.confirmed[:len(t.confirmed)-1]
	case unconfirmed:
		t.unconfirmed--
	}
	switch k.idle = idle; idle {
	case confirmed:
		k.idleIndex = len(t.confirmed)
		t.confirmed = append(t.confirmed, k)
	case unconfirmed:
		t.unconfirmed++
	}
}

// keyOf returns the state of a key, which it adds if it is new.
func (t *Table) keyOf(name string, now Micros) *key {
	if k := t.keys[name]; k != nil {
		return k
	}
	return t.add(name, now)
}

func (t *Table) add(name string, now Micros) *key {
	k := &key{name: name, lastUsed: now, due: now + t.setEvery, scheduledAt: now + t.setEvery}
	t.keys[name] = k
	heap.Push(&t.schedule, k)
	return k
}

func (t *Table) drop(k *key) {
	t.setIdle(k, inUse)
	delete(t.keys, k.name)
	heap.Remove(&t.schedule, k.heapIndex)
}

// makeDue makes a key due at an instant. In the schedule it moves the key only to an earlier
// position. first moves a key to a later one.
func (t *Table) makeDue(k *key, due Micros) {
	if k.due = due; due < k.scheduledAt {
		k.scheduledAt = due
		heap.Fix(&t.schedule, k.heapIndex)
	}
}

// schedule is a heap of keys. The key that may be due first is at the top.
type schedule []*key

func (s schedule) Len() int           { return len(s) }
func (s schedule) Less(i, j int) bool { return s[i].scheduledAt < s[j].scheduledAt }
func (s schedule) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].heapIndex, s[j].heapIndex = i, j
}

func (s *schedule) Push(x any) {
	k := x.(*key)
	k.heapIndex = len(*s)
	*s = append(*s, k)
}

func (s *schedule) Pop() any {
	last := len(*s) - 1
	k := (*s)[last]
	(*s)[last] = nil
	*s = (*s)[:last]
	return k
}
