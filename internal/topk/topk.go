// Package topk finds the most frequent keys of a stream in bounded memory. It never counts a key too low.
package topk

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// Sketch counts how often each key occurred lately. It is safe for concurrent use.
//
// It is the Space-Saving sketch of Metwally, Agrawal and El Abbadi (2005). When all counters
// are taken, a new key takes over the counter with the least count, and goes on from that
// count. So a count can be too high, by at most its Excess. A key always has a counter if it makes
// up more than 1/capacity of all occurrences. "Lately" means that all counts are halved once per
// half-life. A key without a count stays known for ten half-lives after it occurred, unless another one needs its counter.
//
// A label has what else is known of a key while it has a counter.
type Sketch[Key comparable, Label any] struct {
	capacity int
	halfLife time.Duration

	mu          sync.Mutex
	counters    []Counter[Key, Label]
	indexes     map[Key]int // in counters
	nextHalving time.Time
}

// Counter counts the occurrences of a key. The key occurred at least Count-Excess times, and at most
// Count times.
type Counter[Key comparable, Label any] struct {
	Key           Key
	Label         Label
	Count, Excess int64
	last          time.Time
}

// keptFor is how many half-lives a key stays known after it occurred.
const keptFor = 10

// New returns an empty sketch with room for capacity keys.
func New[Key comparable, Label any](capacity int, halfLife time.Duration) *Sketch[Key, Label] {
	return &Sketch[Key, Label]{capacity: capacity, halfLife: halfLife}
}

// Add counts an occurrence of a key, and calls update with its label, which is zero if the key had no counter.
func (s *Sketch[Key, Label]) Add(now time.Time, key Key, update func(*Label)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.halveLocked(now)
	i, found := s.indexes[key]
	if !found {
		i = s.insertLocked(key)
	}
	c := &s.counters[i]
	c.Count, c.last = c.Count+1, now
	update(&c.Label)
}

// insertLocked gives a new key a counter, and returns its index.
func (s *Sketch[Key, Label]) insertLocked(key Key) int {
	i := len(s.counters)
	if i < s.capacity {
		s.counters = append(s.counters, Counter[Key, Label]{Key: key})
	} else {
		i = 0
		for j := range s.counters {
			if s.counters[j].Count < s.counters[i].Count {
				i = j
			}
		}
		least := &s.counters[i]
		delete(s.indexes, least.Key)
		*least = Counter[Key, Label]{Key: key, Count: least.Count, Excess: least.Count}
	}
	if s.indexes == nil {
		s.indexes = make(map[Key]int, s.capacity)
	}
	s.indexes[key] = i
	return i
}

// halveLocked halves the counts once for each half-life that has passed, and drops counters of 0 whose key is no longer
// known.
func (s *Sketch[Key, Label]) halveLocked(now time.Time) {
	if now.Before(s.nextHalving) {
		return
	}
	if halvings := 1 + now.Sub(s.nextHalving)/s.halfLife; len(s.counters) > 0 {
		for range min(halvings, 63) { // then any count is 0
			for i := range s.counters {
				c := &s.counters[i]
				c.Count, c.Excess = c.Count/2, min((c.Excess+1)/2, c.Count/2)
			}
		}
		s.counters = slices.DeleteFunc(s.counters, func(c Counter[Key, Label]) bool {
			return c.Count == 0 && now.Sub(c.last) > keptFor*s.halfLife
		})
		clear(s.indexes)
		for i, c := range s.counters {
			s.indexes[c.Key] = i
		}
	}
	s.nextHalving = now.Add(s.halfLife)
}

// List returns the counters, the highest count first. Counters with the same count are in the
// order of their labels.
func (s *Sketch[Key, Label]) List(now time.Time, compareLabels func(a, b Label) int) []Counter[Key, Label] {
	s.mu.Lock()
	s.halveLocked(now)
	list := slices.Clone(s.counters)
	s.mu.Unlock()
	slices.SortFunc(list, func(a, b Counter[Key, Label]) int {
		if a.Count != b.Count {
			return cmp.Compare(b.Count, a.Count)
		}
		return compareLabels(a.Label, b.Label)
	})
	return list
}
