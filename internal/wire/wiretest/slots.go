package wiretest

import (
	"fmt"
	"slices"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Slots counts the requests of a key that are in flight, in a store that several instances share. Reserved events are
// counted in the same way.
// It has one count for each instance, so its size doesn't depend on the counts. Nil Slots mean
// that no request is in flight.
//
// For example, with a limit of 10, instance a has 6 requests in flight and b has 4: the next
// request is denied. If b is killed, its count expires at most 30 seconds later, and 4 are free.
//
// Each instance also says how many of its requests wait for a slot. A request is granted a slot only if more are free
// than requests wait in other instances that came before it. Requests that came within [algorithms.LineSlack] came together.
//
// Every operation below works on the [Slots.Living] numbers. slots.lua mirrors it.
type Slots []InstanceSlots

// InstanceSlots is the part of an instance.
type InstanceSlots struct {
	Instance algorithms.Instance
	Count    int64             // of requests in flight
	Expires  algorithms.Micros // of Count; 0 if that is 0
	Line
}

// Line is the line of an instance. The zero Line has no requests.
type Line struct {
	LineExpires algorithms.Micros    // when others no longer wait behind it
	First       algorithms.Micros    // when the first request came; 0 if it has left
	Behind      int64                // number of the requests behind the first one
	Marks       [4]algorithms.Micros // when some of these came: see [store.SlotLine]
}

// lineOf returns the line of which a request tells that is the first of it. It has left if it got a slot.
func lineOf(told store.SlotLine, taken bool, now algorithms.Micros) (l Line) {
	l.First, l.Behind, l.LineExpires = now-told.Waited, told.Waiting-1, now+algorithms.LineExpiry
	if taken {
		l.First = 0
	}
	if taken && l.Behind == 0 {
		return Line{}
	}
	for n, waited := range told.Marks {
		l.Marks[n] = now - waited
	}
	return l
}

// ahead returns how many requests of the line count as come before an instant.
func (l *Line) ahead(came algorithms.Micros) (n int64) {
	if l.First > 0 && l.First < came {
		n++
	}
	for mark, at := range l.Marks {
		if came <= at {
			return n + store.MarkedAt(mark, l.Behind)
		}
	}
	return n + l.Behind
}

// lives reports whether anything of the instance must be stored.
func (i *InstanceSlots) lives() bool { return i.Expires > 0 || i.LineExpires > 0 }

// Living drops the numbers that have expired. A number that expires later than it would if it was written at now
// was written before the clock was set back. Living gives it the expiry of a write at now.
// steppedBack reports whether there was such a number. If so, store the result, even if the request
// is denied: until then the numbers of a killed instance don't age.
func (s Slots) Living(now, expiry algorithms.Micros) (living Slots, steppedBack bool) {
	living = s[:0]
	for _, i := range s {
		steppedBack = steppedBack || i.Expires > now+expiry || i.LineExpires > now+algorithms.LineExpiry
		i.Expires, i.LineExpires = min(i.Expires, now+expiry), min(i.LineExpires, now+algorithms.LineExpiry)
		if i.Expires <= now {
			i.Count, i.Expires = 0, 0
		}
		if i.LineExpires <= now {
			i.Line = Line{}
		}
		if i.lives() {
			living = append(living, i)
		}
	}
	return living, steppedBack
}

// Check returns the check of a request of an instance that has waited for so long.
func (s Slots) Check(instance algorithms.Instance, limit int64, now, waited algorithms.Micros) *algorithms.SlotsCheck {
	return &algorithms.SlotsCheck{Limit: limit, InFlight: s.InFlight(), Ahead: s.Ahead(instance, now, waited)}
}

// Ahead returns how many requests of other instances count as come before one of an instance that has waited for so long.
func (s Slots) Ahead(instance algorithms.Instance, now, waited algorithms.Micros) (n int64) {
	for _, i := range s {
		if i.Instance != instance {
			n += i.ahead(now - waited - algorithms.LineSlack)
		}
	}
	return n
}

// InFlight returns the number of requests of the key that are in flight, or of reserved events.
func (s Slots) InFlight() (total int64) {
	for _, i := range s {
		total += i.Count
	}
	return total
}

// index returns the index of an instance, or -1.
func (s Slots) index(instance algorithms.Instance) int {
	return slices.IndexFunc(s, func(i InstanceSlots) bool { return i.Instance == instance })
}

// of returns the part of an instance, which it adds if there is none.
func (s *Slots) of(instance algorithms.Instance) *InstanceSlots {
	at := s.index(instance)
	if at < 0 {
		at = len(*s)
		*s = append(*s, InstanceSlots{Instance: instance})
	}
	return &(*s)[at]
}

// Of returns the count of an instance, 0 if it has none.
func (s Slots) Of(instance algorithms.Instance) int64 {
	if at := s.index(instance); at >= 0 {
		return s[at].Count
	}
	return 0
}

// Set makes count, 0 or more, the count of an instance, which expires at the given instant.
func (s Slots) Set(instance algorithms.Instance, count int64, expires algorithms.Micros) Slots {
	if count == 0 {
		expires = 0
	}
	i := s.of(instance)
	i.Count, i.Expires = count, expires
	return s
}

// EndLine makes the line of an instance an empty one.
func (s Slots) EndLine(instance algorithms.Instance) Slots {
	s.of(instance).Line = Line{}
	return s
}

// Take changes the Slots as a decided request does that isn't a peek, and that has taken n, or 0 if it doesn't pass.
// changed reports whether they must be stored.
func (s Slots) Take(instance algorithms.Instance, told store.SlotLine, n int64, now, expiry algorithms.Micros) (_ Slots, changed bool) {
	taken := n > 0
	if taken {
		s, changed = s.Set(instance, min(s.Of(instance)+n, algorithms.Forever), now+expiry), true
	}
	i := s.of(instance)
	later := now - told.Waited - i.First // than the first one
	differs := later > algorithms.LineSlack || later < -algorithms.LineSlack || i.Behind != told.Waiting-1
	if told.Waiting > 0 && (taken || differs || i.LineExpires < now+algorithms.LineExpiry-algorithms.LineRenewal) {
		i.Line, changed = lineOf(told, taken, now), true
	}
	return s, changed
}

// Expires returns the instant at which the last number expires. Store Slots until then. It returns 0
// if there is none, and nothing to store.
func (s Slots) Expires() algorithms.Micros {
	last := algorithms.Micros(0)
	for _, i := range s {
		last = max(last, i.Expires, i.LineExpires)
	}
	return last
}

const slotsSize = 74

// fields returns the numbers of an instance, which follow its identity, and the size of each.
func (i *InstanceSlots) fields() (numbers []*int64, sizes []int) {
	numbers = []*int64{&i.Count, &i.Expires, &i.LineExpires, &i.First, &i.Behind, &i.Marks[0], &i.Marks[1], &i.Marks[2], &i.Marks[3]}
	return numbers, []int{7, 7, 7, 7, 2, 7, 7, 7, 7}
}

// AppendBinary appends the form in which Slots are stored. It never fails.
func (s Slots) AppendBinary(b []byte) ([]byte, error) {
	for _, i := range s {
		if !i.lives() {
			continue
		}
		b = append(b, i.Instance[:]...)
		numbers, sizes := i.fields()
		for n, number := range numbers {
			for shift := range sizes[n] {
				b = append(b, byte(*number>>(8*shift)))
			}
		}
	}
	return b, nil
}

// ReadSlots reads the stored form. It appends to s[:0], so its memory is used again.
func ReadSlots(s Slots, stored []byte) (Slots, error) {
	if len(stored)%slotsSize != 0 {
		return nil, fmt.Errorf("slots of %d bytes: want a multiple of %d", len(stored), slotsSize)
	}
	s = s[:0]
	for b := stored; len(b) > 0; {
		i := InstanceSlots{Instance: algorithms.Instance(b)}
		b = b[len(i.Instance):]
		numbers, sizes := i.fields()
		for n, number := range numbers {
			for at, part := range b[:sizes[n]] {
				*number |= int64(part) << (8 * at)
			}
			b = b[sizes[n]:]
		}
		if max(i.Count, i.Expires, i.LineExpires) > algorithms.Forever {
			return nil, fmt.Errorf("slots of an instance: %+v: want a count and instants of at most %d", i, algorithms.Forever)
		}
		s = append(s, i)
	}
	return s, nil
}
