package wiretest

import (
	"encoding/binary"
	"fmt"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// Slots counts the requests of a key that are in flight, in a store that several instances share.
// It has one count for each instance, so its size doesn't depend on the counts. Nil Slots mean
// that no request is in flight.
//
// For example, with a limit of 10, instance a has 6 requests in flight and b has 4: the next
// request is denied. If b is killed, its count expires at most 30 seconds later, and 4 are free.
//
// Every operation below works on the [Slots.Living] counts. slots.lua mirrors it.
type Slots []InstanceSlots

// InstanceSlots is the number of requests of a key that are in flight in one instance.
type InstanceSlots struct {
	Instance algorithms.Instance
	Count    int64 // 0 is stored as no count at all
	Expires  algorithms.Micros
}

// Living drops the counts that have expired. A count that expires later than expiry from now was
// written before the clock was set back. Living gives it the expiry of a write at now.
// steppedBack reports whether there was such a count. If so, store the result, even if the request
// is denied: until then the count of a killed instance doesn't age.
func (s Slots) Living(now, expiry algorithms.Micros) (living Slots, steppedBack bool) {
	living = s[:0]
	for _, i := range s {
		if i.Expires > now+expiry {
			i.Expires, steppedBack = now+expiry, true
		}
		if i.Expires > now && i.Count > 0 {
			living = append(living, i)
		}
	}
	return living, steppedBack
}

// InFlight returns the number of requests of the key that are in flight, as in a [algorithms.SlotsCheck].
func (s Slots) InFlight() int64 {
	total := int64(0)
	for _, i := range s {
		total += i.Count
	}
	return total
}

// Of returns the count of an instance, 0 if it has none.
func (s Slots) Of(instance algorithms.Instance) int64 {
	for _, i := range s {
		if i.Instance == instance {
			return i.Count
		}
	}
	return 0
}

// Set makes count, 0 or more, the count of an instance, which expires at the given instant. The
// counts keep their order. To take a slot after a [algorithms.SlotsCheck], set a count one above Of.
func (s Slots) Set(instance algorithms.Instance, count int64, expires algorithms.Micros) Slots {
	written := InstanceSlots{Instance: instance, Count: count, Expires: expires}
	for at := range s {
		if s[at].Instance == instance {
			s[at] = written
			return s
		}
	}
	return append(s, written)
}

// Expires returns the instant at which the last count expires. Store Slots until then. It returns 0
// if there is no count, and nothing to store.
func (s Slots) Expires() algorithms.Micros {
	last := algorithms.Micros(0)
	for _, i := range s {
		if i.Count > 0 {
			last = max(last, i.Expires)
		}
	}
	return last
}

const (
	slotsSize = 32
	maxSlots  = 1<<31 - 1
)

// AppendBinary appends the form in which Slots are stored: per instance 16 bytes of identity,
// the count and the expiry as little-endian 64-bit integers. It never fails.
func (s Slots) AppendBinary(b []byte) ([]byte, error) {
	for _, i := range s {
		if i.Count == 0 {
			continue
		}
		b = append(b, i.Instance[:]...)
		b = binary.LittleEndian.AppendUint64(b, uint64(i.Count))
		b = binary.LittleEndian.AppendUint64(b, uint64(i.Expires))
	}
	return b, nil
}

// ReadSlots reads the stored form. It appends to s[:0], so its memory is used again.
func ReadSlots(s Slots, stored []byte) (Slots, error) {
	if len(stored)%slotsSize != 0 {
		return nil, fmt.Errorf("slots of %d bytes: want a multiple of %d", len(stored), slotsSize)
	}
	s = s[:0]
	for b := stored; len(b) > 0; b = b[slotsSize:] {
		i := InstanceSlots{
			Instance: algorithms.Instance(b),
			Count:    int64(binary.LittleEndian.Uint64(b[16:])),
			Expires:  int64(binary.LittleEndian.Uint64(b[24:])),
		}
		if i.Count < 0 || i.Count > maxSlots || i.Expires < 0 || i.Expires > algorithms.Forever {
			return nil, fmt.Errorf("slots of an instance: count %d until %d: want at most %d until %d",
				i.Count, i.Expires, maxSlots, algorithms.Forever)
		}
		s = append(s, i)
	}
	return s, nil
}
