// Package slots is this process's side of the slots that instances share in Redis. It counts the
// requests that hold a slot of each key, and decides which operations make Redis' count agree.
package slots

import (
	"container/heap"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// Micros is a span, or an instant of this process's monotonic clock. Steps of Redis' clock don't
// concern a [Table].
type Micros = algorithms.Micros

const (
	// pause is how long a failed Set waits, unless a take or a give-back comes first.
	pause Micros = 1_000_000
	// mostIdle is how many keys without held slots are remembered.
	mostIdle = 10_000
)

// Op is the operation of a message on this instance's count of a key. It comes before the takes of
// the message. The zero Op does nothing.
type Op struct {
	Set   bool  // make Count this instance's count
	Count int64 // 0 or more

	key *key
}

// Table counts the requests of this process that hold a slot of each key, whichever store
// admitted them. It decides which operation a message to Redis must begin with, so that no
// request in flight goes uncounted and no slot stays taken:
//
//   - Only a take adds to Redis' count. Slots are given back by setting the count. A Set is
//     built only while nothing is in flight for the key. So no Set overtakes a take or another
//     Set, and no Set is wrong because Redis has lost its counts.
//   - All other operations on the key wait while a Set is in flight or is to be made, because
//     connections reorder messages. The message of the Set can carry takes. Takes don't wait
//     for takes.
//   - An operation that may be lost is not repeated. The key waits until the operation can no
//     longer run, and is then set before anything else.
//   - A key is set at least every 10 s, and at once if Redis had another count than expected.
//   - A key without requests is set until 30 s after its last operation. At most 10,000
//     such keys are remembered.
//
// A Table reads no clock and starts nothing. It is not safe for concurrent use.
type Table struct {
	// expiry is how long a count in Redis lives. every is the longest time between two Sets of
	// a key.
	expiry, every Micros

	keys     map[string]*key
	schedule schedule
	idle     int
	// credit and checked spread the Sets over time; see Due.
	credit, checked Micros
}

// key is the state of one key. A key that isn't in the Table is like a new one: no request holds a
// slot, and Redis has no count.
type key struct {
	name string
	// held is how many requests hold a slot: the truth. counted is Redis' count after all
	// messages in flight have run.
	held, counted int64
	// stale reports whether Redis' count may differ from counted.
	stale bool
	// flight is how many messages with operations on the key are in flight. alone reports
	// whether the only one of them was sent when there was no other. setting reports whether it
	// has a Set.
	flight         int
	alone, setting bool
	// closed is the instant until which a lost operation may still run.
	closed Micros
	used   Micros // when the last operation was made
	due    Micros // when the next Set is due
	at     Micros // at most due: the key's instant in the schedule
	place  int    // in the schedule
	idle   bool
}

// New returns an empty Table for counts that live for expiry in Redis, usually
// [algorithms.SlotsExpiry].
func New(expiry Micros) *Table {
	return &Table{expiry: expiry, every: expiry / 3, keys: map[string]*key{}}
}

// Wait returns 0 if a message with operations on the key may be built now. Otherwise it returns
// how long to wait before the next call of Wait. After [algorithms.Forever], call Wait again after
// the next Replied, NotRun or Lost of the key.
func (t *Table) Wait(name string, now Micros) Micros {
	switch k := t.keys[name]; {
	case k == nil:
		return 0
	case k.setting, k.toBeSet() && k.flight > 0:
		return algorithms.Forever
	default:
		return max(k.closed-now, 0)
	}
}

// Sets reports whether Prepare, called now, would return a Set of the key.
func (t *Table) Sets(name string) bool {
	k := t.keys[name]
	return k != nil && k.toBeSet()
}

// Prepare is called once for each key of a message that is built, when Wait has returned 0. takes
// is how many slots of the key the message takes, 0 or more; op goes before the takes. The message
// is in flight until Replied, NotRun or Lost is called with the same op. If op does nothing and
// takes is 0, none of the three may be called.
func (t *Table) Prepare(name string, takes int, now Micros) (op Op) {
	k := t.keys[name]
	if k == nil {
		if takes == 0 {
			return Op{}
		}
		k = t.add(name, now)
	}
	op.key = k
	if k.toBeSet() {
		op.Set, op.Count = true, k.held
		k.counted, k.stale, k.setting = k.held, false, true
		t.plan(k, now+t.every)
	}
	if op.Set || takes > 0 {
		k.alone = k.flight == 0
		k.flight++
	}
	if takes > 0 {
		k.used = now
	}
	t.rest(k)
	return op
}

func (k *key) toBeSet() bool { return k.stale || k.held != k.counted }

// Replied is called when Redis has run a message. taken is how many slots the message took, and
// found is this instance's count before the message. The requests that took a slot hold it now.
func (t *Table) Replied(op Op, taken, found int64, now Micros) {
	k := op.key
	if !op.Set && k.alone && found != k.counted {
		k.stale = true
	}
	k.held += taken
	k.counted += taken
	t.ended(k, now)
}

// NotRun is called when a message certainly did not run and never will: it was not sent, or Redis
// replied that it did not run. Its operations can be prepared again at once.
func (t *Table) NotRun(op Op, now Micros) {
	k := op.key
	k.stale = k.stale || op.Set
	t.ended(k, now+pause)
}

// Lost is called when a message may have run, or may still run, but not after the instant until.
// The number of slots that it took is unknown.
func (t *Table) Lost(op Op, until, now Micros) {
	k := op.key
	k.stale = true
	k.closed = max(k.closed, until)
	if op.Set {
		now += pause
	}
	t.ended(k, now)
}

// ended ends a message. If it was the last one in flight and Redis' count is wrong, the count is
// set at the instant set, or before the next operation.
func (t *Table) ended(k *key, set Micros) {
	k.flight--
	k.alone = false
	k.setting = false // a message with a Set is the only one in flight
	if k.flight == 0 && k.toBeSet() {
		t.plan(k, max(set, k.closed))
	}
	t.rest(k)
}

// Leave is called when a request no longer holds its slot. Prepare the key then.
func (t *Table) Leave(name string, now Micros) {
	k := t.keys[name]
	k.held--
	k.used = now
	t.rest(k)
}

// Count is called when a request holds a slot that was not taken in Redis: another store admitted
// it while Redis failed.
func (t *Table) Count(name string, now Micros) {
	k := t.keys[name]
	if k == nil {
		k = t.add(name, now)
	}
	k.held++
	k.used = now
	if k.flight == 0 {
		t.plan(k, min(k.due, max(now+pause, k.closed)))
	}
	t.rest(k)
}

// Due returns the names of keys that are to be set now, at most so many or, if that is more, twice
// as many as must be set in the time since it was called last: call Wait and Prepare for each,
// without takes, or Postpone. Call Due at the instant that Next returns, but at least every 100 ms
// so that the sets are spread over time; one message at a time.
//
// In a time t, Due returns the share t/10s of all keys, even if they are not due yet. So keys that
// were set together, as after an outage, don't stay together.
func (t *Table) Due(now Micros, most int) (names []string) {
	since := Micros(len(t.keys)) * min(now-t.checked, t.every)
	most = max(most, int(2*since/t.every))
	t.credit = min(t.credit+since, Micros(len(t.keys))*t.every)
	t.checked = now
	for k := t.first(); k != nil && len(names) < most; k = t.first() {
		if k.due > now && (t.credit < t.every || k.stale) {
			break
		}
		if k.held == 0 && k.flight == 0 && now >= max(k.used, k.closed)+t.expiry {
			t.drop(k) // the count has also expired in Redis
			continue
		}
		t.credit = max(t.credit-t.every, 0)
		k.stale = true
		t.plan(k, now+t.every)
		if t.rest(k); k.flight == 0 {
			names = append(names, k.name)
		}
	}
	return names
}

// Postpone is called instead of Prepare if a key can't be set now, because Redis is known to fail.
func (t *Table) Postpone(name string, now Micros) {
	if k := t.keys[name]; k != nil {
		t.plan(k, min(k.due, now+pause))
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
		if k.at == k.due {
			return k
		}
		k.at = k.due
		heap.Fix(&t.schedule, 0)
	}
	return nil
}

// rest counts the key as idle if no request holds a slot, and Redis has confirmed that. It drops
// the key if too many keys are idle.
func (t *Table) rest(k *key) {
	idle := k.held == 0 && k.counted == 0 && k.flight == 0 && !k.stale
	if idle == k.idle {
		return
	}
	if k.idle = idle; !idle {
		t.idle--
	} else if t.idle++; t.idle > mostIdle {
		t.drop(k)
	}
}

func (t *Table) add(name string, now Micros) *key {
	k := &key{name: name, used: now, due: now + t.every, at: now + t.every, idle: true}
	t.keys[name] = k
	t.idle++
	heap.Push(&t.schedule, k)
	return k
}

func (t *Table) drop(k *key) {
	if k.idle {
		t.idle--
	}
	delete(t.keys, k.name)
	heap.Remove(&t.schedule, k.place)
}

// plan makes a key due at an instant. It moves the key in the schedule only to an earlier place;
// first moves it to a later one.
func (t *Table) plan(k *key, due Micros) {
	if k.due = due; due < k.at {
		k.at = due
		heap.Fix(&t.schedule, k.place)
	}
}

// schedule is a heap of keys. The key that may be due first is at the top.
type schedule []*key

func (s schedule) Len() int           { return len(s) }
func (s schedule) Less(i, j int) bool { return s[i].at < s[j].at }
func (s schedule) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].place, s[j].place = i, j
}

func (s *schedule) Push(x any) {
	k := x.(*key)
	k.place = len(*s)
	*s = append(*s, k)
}

func (s *schedule) Pop() any {
	last := len(*s) - 1
	k := (*s)[last]
	(*s)[last] = nil
	*s = (*s)[:last]
	return k
}
