// Package topk finds the most frequent keys of a stream in bounded memory. It never counts a key too low.
package topk

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"
)

// Sketch counts how often each key occurred recently. It is safe for concurrent use.
//
// It is the Space-Saving sketch of Metwally, Agrawal and El Abbadi (2005). When all counters
// are taken, a new key takes over the counter with the least count, and continues from that
// count. So a count can be too high, by at most its Excess. A key that occurs without long pauses has a counter if it makes
// up more than 1/capacity of all occurrences. A key is forgotten some time after it occurred last.
//
// A label has what else is known of a key while it has a counter.
type Sketch[Key comparable, Label any] struct {
	capacity int
	keptFor  time.Duration // since the last occurrence

	mu       sync.Mutex
	counters []Counter[Key, Label]
	indexes  map[Key]int // in counters
}

// Counter counts the occurrences of a key. The key occurred at least Count-Excess times, and at most
// Count times.
type Counter[Key comparable, Label any] struct {
	Key           Key
	Label         Label
	Count, Excess int64
	last          time.Time
}

// New returns an empty sketch with room for capacity keys, which forgets a key after the time keptFor.
func New[Key comparable, Label any](capacity int, keptFor time.Duration) *Sketch[Key, Label] {
	return &Sketch[Key, Label]{capacity: capacity, keptFor: keptFor, indexes: make(map[Key]int)}
}

// Add counts an occurrence of a key, and calls update with its label, which is zero if the key had no counter.
func (s *Sketch[Key, Label]) Add(now time.Time, key Key, update func(*Label)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, found := s.indexes[key]
	if !found {
		i = s.insertLocked(now, key)
	}
	c := &s.counters[i]
	if found && s.countOf(now, c) == 0 {
		*c = Counter[Key, Label]{Key: key}
	}
	c.Count, c.last = c.Count+1, now
	update(&c.Label)
}

// countOf returns the count of a counter, which is 0 if its key is forgotten.
func (s *Sketch[Key, Label]) countOf(now time.Time, c *Counter[Key, Label]) int64 {
	if now.Sub(c.last) > s.keptFor {
		return 0
	}
	return c.Count
}

// insertLocked gives a new key a counter, and returns its index.
func (s *Sketch[Key, Label]) insertLocked(now time.Time, key Key) int {
	i := len(s.counters)
	if i < s.capacity {
		s.counters = append(s.counters, Counter[Key, Label]{Key: key})
	} else {
		least := int64(math.MaxInt64)
		for j := range s.counters {
			if count := s.countOf(now, &s.counters[j]); count < least {
				i, least = j, count
			}
		}
		delete(s.indexes, s.counters[i].Key)
		s.counters[i] = Counter[Key, Label]{Key: key, Count: least, Excess: least}
	}
	s.indexes[key] = i
	return i
}

// List returns the counters of the keys that are not forgotten, first the keys that occurred most often for certain. Keys
// that occurred as often are in the order of their labels.
func (s *Sketch[Key, Label]) List(now time.Time, compareLabels func(a, b Label) int) []Counter[Key, Label] {
	s.mu.Lock()
	list := slices.Clone(s.counters)
	s.mu.Unlock()
	list = slices.DeleteFunc(list, func(c Counter[Key, Label]) bool { return s.countOf(now, &c) == 0 })
	slices.SortFunc(list, func(a, b Counter[Key, Label]) int {
		return cmp.Or(cmp.Compare(b.Count-b.Excess, a.Count-a.Excess), compareLabels(a.Label, b.Label))
	})
	return list
}
