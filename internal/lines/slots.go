package lines

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// SlotLines holds the lines of the requests that wait for a slot of one store, or for reserved events, one line per key,
// tenant and [Need]. Requests stand in the order in which they came. Only the first one asks the store. It asks at once when
// this process has given a slot of the key back, or ended a reservation. Otherwise it asks after pauses, because another
// process may have given one back. It tells the store for how long it has waited, so that a shared store
// serves the lines of all processes in order: see [store.SlotLine]. Lines of one key ask one after the other, first that of
// the tenant that holds the least for its weight: see [store.Tenant].
//
// The lines outlive configurations, because waiting requests do. Each waiting request has a
// place in its zone. This bounds the memory.
//
// SlotLines must be made by [NewSlotLines], and is safe for concurrent use. A [Request] is not.
type SlotLines struct {
	pause      Micros // between two questions of a line
	maxTenants int
	endLine    func(slotsID, key string, tenant uint64) // called under mu

	waiting atomic.Int64 // the number of requests in all lines; written under mu
	mu      sync.Mutex
	lines   int // with requests
	byKey   map[slotKey]*pool
}

// The pauses between two questions of a line that need no reason.
const (
	SharedPause Micros = 10_000  // of a store that other processes use, too
	LocalPause  Micros = 250_000 // of a store in this process, in which a slot is only free without a reason if its limit has changed
	// perQuestion is the shortest time per question of all lines together: with many lines, each of them asks less often.
	perQuestion Micros = 2_500
	// longestSleep is the longest time until the first request of a line looks again, because other lines may have ended. A
	// request that waits for the end of a ban looks as often, because an operator may have ended it.
	longestSleep Micros = 1_000_000
)

// NewSlotLines returns SlotLines without lines, for a store of which a line asks after each pause. endLine, if not nil, is
// called when a line has ended, unless the store knows that. It must not call the SlotLines.
func NewSlotLines(pause Micros, endLine func(slotsID, key string, tenant uint64)) *SlotLines {
	s := &SlotLines{pause: pause, maxTenants: localTenants, endLine: endLine, byKey: make(map[slotKey]*pool)}
	if endLine != nil {
		s.maxTenants = sharedTenants
	}
	return s
}

// Waiting returns how many requests wait, and in how many lines.
func (s *SlotLines) Waiting() (requests int64, lines int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting.Load(), s.lines
}

// Begin begins with a request that has reserved its places. It returns Ask, Wait with a Need for Join, or
// Decided: the request is denied.
func (s *SlotLines) Begin(r *Request, now Micros) (next Step, need Need) {
	s.enter(r)
	need = s.occupiedLine(r)
	switch {
	case need == nothing:
		return Ask, need
	case r.canWait(need, now): // a newcomer doesn't overtake the requests that wait
		return Wait, need
	default:
		s.exit(r, now)
		r.denyFor(need)
		return Decided, need
	}
}

// occupiedLine returns a need of the request for which others of its key wait already, or nothing. A request that costs less
// than the first one that waits for reserved events, or has other limits, may fit where that one doesn't.
func (s *SlotLines) occupiedLine(r *Request) Need {
	if s.waiting.Load() == 0 || r.chargesDenials() {
		return nothing
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range r.Requests {
		q := &r.Requests[i]
		if q.Shadow || r.Zones[i].Delay == nil {
			continue
		}
		if q.Slots != nil && r.Zones[i].Delay.MaxDelay > 0 && s.byKey[r.slotKey(Need{Zone: i})].waits() {
			return Need{Zone: i}
		}
		if n := (Need{Zone: i, Reserved: true}); r.mayWaitForReserved(i) {
			if l := s.lineOf(r, n); l.waits() && !mayFitBefore(q, &l.first().Requests[l.first().need.Zone]) {
				return n
			}
		}
	}
	return nothing
}

// mayFitBefore reports whether a zone may have room for q although it has none for first, whose key is the same.
func mayFitBefore(q, first *store.ZoneRequest) bool {
	return q.Cost < first.Cost || !slices.EqualFunc(q.Limits, first.Limits, store.Limit.Equal)
}

// Answered is called when the store has decided. It returns Wait with a Need for Join if the request lacks
// nothing but slots and reserved events for which it can wait, otherwise Decided.
func (s *SlotLines) Answered(r *Request, allowed bool, now Micros) (next Step, need Need) {
	r.asked, r.allowed = true, allowed
	if !allowed {
		if need := r.missing(now); need != nothing {
			return Wait, need
		}
	}
	if r.line != nil {
		slots := slotsMayRemain
		if allowed {
			slots = r.remain(slotsMayRemain)
		}
		s.leave(r, slots, now)
	}
	s.exit(r, now)
	return Decided, nothing
}

// remain returns noSlotRemains if the last decision left no slot, and otherwise another value.
func (r *Request) remain(otherwise remaining) remaining {
	if q := &r.Requests[r.need.Zone]; !r.need.Reserved && q.Outcome.Slots.InFlight >= q.GrantedSlots() {
		return noSlotRemains
	}
	return otherwise
}

// Join puts a request into the line of a Need. If it stands in another line, it leaves
// that line. If it has just asked as the first of this line, the next question comes after a
// pause. There is no line for the end of a ban. Join returns how long to wait at most before Look.
func (s *SlotLines) Join(r *Request, need Need, now Micros) (wait Micros) {
	r.beginWait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if need.Ban {
		s.remove(r, slotsMayRemain, now)
		r.need, r.banEnds = need, now+min(r.Requests[need.Zone].Outcome.Ban.EndsAfter, longestSleep)
		r.countWaiting(1)
		return r.banEnds - now
	}
	if r.line == nil || r.need != need {
		s.remove(r, slotsMayRemain, now)
		s.insert(r, need, now)
	} else {
		r.line.endQuestion(r.remain(slotsForOthers), now)
		s.wakeLine(r.line, now)
	}
	return s.wait(r, now)
}

// Leave ends the wait of a request, if it waits, because it won't be decided.
func (s *SlotLines) Leave(r *Request, now Micros) {
	r.allowed = false
	s.exit(r, now)
	s.leave(r, slotsMayRemain, now)
	r.endWait(now)
}

// leave removes a request from its line. If the request was asking, slots says whether others may still be free.
func (s *SlotLines) leave(r *Request, slots remaining, now Micros) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(r, slots, now)
}

// Look returns Ask if a request that waits is to ask the store now. It returns Decided if the time
// of the request is over: it is denied, and stands in no line. Otherwise it returns Wait, and how long to
// wait at most before the next Look.
func (s *SlotLines) Look(r *Request, now Micros) (next Step, wait Micros) {
	next, wait = s.look(r, now)
	if next != Wait {
		r.endWait(now)
	}
	if next == Decided {
		s.exit(r, now)
	}
	if next == Decided && !r.asked {
		r.denyFor(r.need)
	}
	return next, wait
}

func (s *SlotLines) look(r *Request, now Micros) (next Step, wait Micros) {
	if r.need.Ban {
		if wait = r.banEnds - now; wait > 0 {
			return Wait, wait
		}
		for i := range r.Requests { // it stands in no line any more
			r.Requests[i].Line, r.Requests[i].WaitsForReserved = store.SlotLine{}, false
		}
		return Ask, 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if now >= r.waitsUntil(r.need) {
		s.remove(r, noSlotRemains, now)
		return Decided, 0
	}
	if wait = s.wait(r, now); wait > 0 {
		s.wakeNext(r.line.pool, now) // with time it may have become the turn of another line
		return Wait, wait
	}
	if need := s.earlierLine(r, now); need != nothing {
		s.remove(r, noSlotRemains, now)
		if s.insert(r, need, now); r.line.lastAsk == never {
			r.line.lastAsk = now // otherwise it would ask before the one for which it has moved
		}
		return Wait, s.wait(r, now)
	}
	r.line.asker, r.line.freed, r.line.mayBeFree = r, false, false
	r.tellStore(now)
	return Ask, 0
}

// tellStore says to the store where the request stands, which is the first in its line.
func (r *Request) tellStore(now Micros) {
	for i := range r.Requests {
		r.Requests[i].Line = store.SlotLine{Waited: now - r.Came}
	}
	q := &r.Requests[r.need.Zone]
	behind := min(int64(r.line.requests.Len()-1), store.MaxWaiting-1)
	if q.WaitsForReserved = r.need.Reserved; !r.need.Reserved {
		behind = min(behind, q.Slots.Limit) // others get no slot before these
	}
	q.Line.Waiting = 1 + behind
	at, e := int64(0), r.element.Next()
	for mark := 0; mark < len(q.Line.Marks) && behind > 0; mark++ {
		for ; at < store.MarkedAt(mark, behind); at++ {
			e = e.Next()
		}
		q.Line.Marks[mark] = now - e.Value.(*Request).Came
	}
}

// pauseOf returns the pause between two questions of a line. A request of several keys asks rarely, because in a cluster
// each question takes the slots that are free for a moment.
func (s *SlotLines) pauseOf(l *line) Micros {
	pause := s.pause
	for i := range l.first().Requests {
		if l.first().Requests[i].Key != l.key {
			pause = LocalPause
		}
	}
	return max(pause, perQuestion*Micros(s.lines))
}

// wait returns how long a request in a line waits at most before the next Look.
func (s *SlotLines) wait(r *Request, now Micros) Micros {
	wait := max(r.waitsUntil(r.need)-now, 0)
	if r.line.first() != r || r.line.asker == r { // the store may be writing the outcome of the one that asks
		return wait
	}
	if s.next(r.line.pool, now) == r.line {
		return 0
	}
	pause := s.pauseOf(r.line)
	rest := r.line.lastAsk + pause - now
	if rest <= 0 { // another line of the pool asks before
		rest = pause
	}
	return min(rest, wait, longestSleep)
}

// earlierLine returns a need for whose slot another request waits that comes before, or nothing.
func (s *SlotLines) earlierLine(r *Request, now Micros) Need {
	for i := range r.Requests {
		n := Need{Zone: i}
		if n == r.need || r.Requests[i].Slots == nil || !r.Zones[i].hasPlace || r.Zones[i].Delay.MaxDelay == 0 {
			continue
		}
		own := s.lineOf(r, n)
		if own.waits() && own.first().Came < r.Came {
			return n
		}
		next := s.next(s.byKey[r.slotKey(n)], now)
		if next != nil && next.comesBefore(own, r, max(r.Requests[i].Tenant.Weight, 1)) {
			return n
		}
	}
	return nothing
}

// insert puts a request into a line. A new line asks at once, because a slot may have been
// given back after the request asked, and before it joined.
func (s *SlotLines) insert(r *Request, need Need, now Micros) {
	r.need = need
	if r.line = s.addLine(r, need); !r.line.waits() {
		r.line.mayBeFree, r.line.lastAsk = true, never
		s.lines++
	}
	before := r.line.requests.Back()
	for before != nil && before.Value.(*Request).Came > r.Came {
		before = before.Prev()
	}
	if before == nil {
		r.element = r.line.requests.PushFront(r)
	} else {
		r.element = r.line.requests.InsertAfter(r, before)
	}
	s.waiting.Add(1)
	r.countWaiting(1)
}

// remove removes a request from its line, if it stands in one. If the request was asking, slots says whether others may
// still be free.
func (s *SlotLines) remove(r *Request, slots remaining, now Micros) {
	line := r.line
	if line == nil {
		return
	}
	if line.first() == r && !r.allowed && s.endLine != nil {
		line.mayBeFree = true // others may wait behind this request until the next one asks
	}
	line.requests.Remove(r.element)
	r.line, r.element = nil, nil
	s.waiting.Add(-1)
	r.countWaiting(-1)
	if line.asker == r {
		line.endQuestion(slots, now)
	}
	if !line.waits() {
		s.lines--
		told := r.Requests[r.need.Zone].Line.Waiting
		if s.endLine != nil && (!r.allowed || told > 1) { // the store knows that the only one has got a slot
			s.endLine(line.id, line.key, line.tenant)
		}
		s.dropUnused(line)
	}
	s.wakeLine(line, now)
}

// countWaiting counts n more requests that wait for what the request waits for.
func (r *Request) countWaiting(n int64) {
	if count := r.Zones[r.need.Zone].Delay.CountWaiting; count != nil {
		count(r.need, n)
	}
}

// first returns the first request of the line.
func (l *line) first() *Request { return l.requests.Front().Value.(*Request) }
