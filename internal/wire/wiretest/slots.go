package wiretest

import (
	"encoding/binary"
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
// Tenants of an instance count and wait as if they were instances. A free slot goes to the tenant that holds the least for its
// weight.
//
// Every operation below works on the [Slots.Living] numbers. slots.lua mirrors it.
type Slots []InstanceSlots

// Holder is a tenant of an instance, or an instance without tenants. Its weight identifies nothing.
type Holder struct {
	Instance algorithms.Instance
	store.Tenant
}

// InstanceSlots is the part of a holder.
type InstanceSlots struct {
	Holder
	Granted algorithms.Micros // when a request last got a slot
	Count   int64             // of requests in flight
	Expires algorithms.Micros // of Count; 0 if that is 0
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
		i.Granted = min(i.Granted, now)
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

// Check returns the check of a request of a holder that has waited for so long.
func (s Slots) Check(h Holder, limit int64, now, waited algorithms.Micros) *algorithms.SlotsCheck {
	return &algorithms.SlotsCheck{Limit: limit, InFlight: s.InFlight(), Ahead: s.Ahead(h, now, waited)}
}

// Ahead returns how many requests get a slot before one of a holder that has waited for so long. These are requests of its tenant
// that count as come before, and requests of other tenants while they hold less for their weights.
func (s Slots) Ahead(h Holder, now, waited algorithms.Micros) int64 {
	came := now - waited - algorithms.LineSlack
	own, others := rival{weight: max(h.Weight, 1), since: now - waited}, make(map[uint64]*rival)
	for _, i := range s {
		of := &own
		if i.ID != h.ID {
			if of = others[i.ID]; of == nil {
				of = &rival{weight: 1, came: algorithms.Forever}
				others[i.ID] = of
			}
		}
		of.held, of.since = of.held+i.Count, max(of.since, i.Granted)
		if i.Holder.is(h) {
			continue
		}
		of.weight = max(of.weight, i.Weight)
		if i.ID == h.ID {
			of.waiting += i.ahead(came)
			continue
		}
		if i.First > 0 {
			of.waiting, of.came = of.waiting+1, min(of.came, i.First)
		} else if i.Behind > 0 {
			of.came = min(of.came, i.Marks[0])
		}
		of.waiting += i.Behind
	}
	ahead, held := own.waiting, own.held+own.waiting
	for _, r := range others {
		for ; r.waiting > 0; r.waiting-- {
			if less := r.held*own.weight - held*r.weight; less > 0 || less == 0 && max(r.since, r.came) >= own.since-algorithms.LineSlack {
				break
			}
			r.held++
			ahead++
		}
	}
	return ahead
}

// rival is a tenant in all instances.
type rival struct {
	weight, held int64
	waiting      int64             // how many of its requests wait that count
	came         algorithms.Micros // when the first of them came
	since        algorithms.Micros // when one last got a slot
}

// is reports whether two holders are the same.
func (h Holder) is(other Holder) bool { return h.Instance == other.Instance && h.ID == other.ID }

// InFlight returns the number of requests of the key that are in flight, or of reserved events.
func (s Slots) InFlight() (total int64) {
	for _, i := range s {
		total += i.Count
	}
	return total
}

// index returns the index of a holder, or -1.
func (s Slots) index(h Holder) int {
	return slices.IndexFunc(s, func(i InstanceSlots) bool { return i.is(h) })
}

// of returns the part of a holder, which it adds if there is none.
func (s *Slots) of(h Holder) *InstanceSlots {
	at := s.index(h)
	if at < 0 {
		at = len(*s)
		h.Weight = 0
		*s = append(*s, InstanceSlots{Holder: h})
	}
	return &(*s)[at]
}

// Of returns the count of a holder, 0 if it has none.
func (s Slots) Of(h Holder) int64 {
	if at := s.index(h); at >= 0 {
		return s[at].Count
	}
	return 0
}

// Set makes count, 0 or more, the count of a holder, which expires at the given instant.
func (s Slots) Set(h Holder, count int64, expires algorithms.Micros) Slots {
	if count == 0 {
		expires = 0
	}
	i := s.of(h)
	i.Count, i.Expires = count, expires
	return s
}

// EndLine makes the line of a holder an empty one.
func (s Slots) EndLine(h Holder) Slots {
	s.of(h).Line = Line{}
	return s
}

// Take changes the Slots as a decided request does that isn't a peek, and that has taken n, or 0 if it doesn't pass.
// changed reports whether they must be stored.
func (s Slots) Take(h Holder, told store.SlotLine, n int64, now, expiry algorithms.Micros) (_ Slots, changed bool) {
	taken := n > 0
	if taken {
		s, changed = s.Set(h, min(s.Of(h)+n, algorithms.Forever), now+expiry), true
		s.of(h).Granted = now
	}
	i := s.of(h)
	later := now - told.Waited - i.First // than the first one
	differs := later > algorithms.LineSlack || later < -algorithms.LineSlack || i.Behind != told.Waiting-1 || i.Weight != h.Weight
	if told.Waiting > 0 && (taken || differs || i.LineExpires < now+algorithms.LineExpiry-algorithms.LineRenewal) {
		i.Line, changed = lineOf(told, taken, now), true
	}
	if changed {
		i.Weight = h.Weight
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

const slotsSize = 81

// fields returns the numbers of a holder, which follow its identity, and the size of each.
func (i *InstanceSlots) fields() (numbers []*int64, sizes []int) {
	numbers = []*int64{
		&i.Weight, &i.Granted, &i.Count, &i.Expires, &i.LineExpires, &i.First, &i.Behind, &i.Marks[0], &i.Marks[1], &i.Marks[2], &i.Marks[3],
	}
	return numbers, []int{2, 7, 7, 7, 7, 7, 2, 7, 7, 7, 7}
}

// AppendBinary appends the form in which Slots are stored. It never fails.
func (s Slots) AppendBinary(b []byte) ([]byte, error) {
	for _, i := range s {
		if !i.lives() {
			continue
		}
		b = binary.LittleEndian.AppendUint64(append(b, i.Instance[:]...), i.ID)
		b = b[:len(b)-1]
		numbers, sizes := i.fields()
		for n, number := range numbers {
			for shift := range sizes[n] {
				b = append(b, byte(*number>>(8*shift)))
			}
		}
	}
	return b, nil
}

// readTenant reads a tenant's ID of 7 bytes.
func readTenant[T string | []byte](b T) uint64 {
	var all [8]byte
	copy(all[:7], b)
	return binary.LittleEndian.Uint64(all[:])
}

// ReadSlots reads the stored form. It appends to s[:0], so its memory is used again.
func ReadSlots(s Slots, stored []byte) (Slots, error) {
	if len(stored)%slotsSize != 0 {
		return nil, fmt.Errorf("slots of %d bytes: want a multiple of %d", len(stored), slotsSize)
	}
	s = s[:0]
	for b := stored; len(b) > 0; {
		i := InstanceSlots{Holder: Holder{Instance: algorithms.Instance(b), Tenant: store.Tenant{ID: readTenant(b[7:])}}}
		b = b[2*len(i.Instance):]
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
