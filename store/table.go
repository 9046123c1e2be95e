package store

import (
	"math/bits"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keyhash"
)

// budget is an [algorithms.State] without its log, with its name, its expiry and its zone. It fills a cache line, and has no
// pointers, so the garbage collector doesn't scan it.
type budget struct {
	name       keyhash.Hash
	a, b, c, d int64
	expires    algorithms.Micros
	zoneNumber uint32
	inUse      bool
}

// table has budgets by their names. It is a hash table with linear probing: each budget is at the place that its name says,
// or behind it if no place between is free. Place 0 is behind the last one. So most budgets are found with one cache miss.
// The zero table is empty.
type table struct {
	places []budget
	used   int
}

const leastPlaces = 8

// find returns the place of a budget, or the free place where it belongs.
func (t *table) find(name keyhash.Hash) (place int, found bool) {
	if len(t.places) == 0 {
		return 0, false
	}
	place = t.home(name)
	for t.places[place].inUse {
		if t.places[place].name == name {
			return place, true
		}
		place = t.behind(place)
	}
	return place, false
}

// home returns the place that a name says.
func (t *table) home(name keyhash.Hash) int {
	place, _ := bits.Mul64(name[1], uint64(len(t.places)))
	return int(place)
}

func (t *table) behind(place int) int {
	if place++; place < len(t.places) {
		return place
	}
	return 0
}

// put adds or replaces a budget. All others may move.
func (t *table) put(b budget) {
	place, found := t.find(b.name)
	if !found {
		if t.used >= len(t.places)*5/6 {
			t.resize(len(t.places) * 5 / 4)
			place, _ = t.find(b.name)
		}
		t.used++
	}
	b.inUse = true
	t.places[place] = b
}

// resize moves the budgets to a number of new places.
func (t *table) resize(places int) {
	old := t.places
	t.places = make([]budget, max(places, leastPlaces))
	for i := range old {
		if old[i].inUse {
			place, _ := t.find(old[i].name)
			t.places[place] = old[i]
		}
	}
}

// remove removes the budget at a place. Budgets behind it move to the places that become free, if these are no farther from
// home.
func (t *table) remove(free int) {
	distance := func(from, to int) int { return (to - from + len(t.places)) % len(t.places) }
	for place := t.behind(free); t.places[place].inUse; place = t.behind(place) {
		if distance(t.home(t.places[place].name), place) >= distance(free, place) {
			t.places[free], free = t.places[place], place
		}
	}
	t.places[free] = budget{}
	t.used--
}

// removeAll removes all budgets for which ends returns true. It asks once about each of those, and maybe twice about others.
// It frees the memory of a table that is mostly unused, for example after a flood of keys.
func (t *table) removeAll(ends func(*budget) bool) {
	for place := 0; place < len(t.places); {
		if b := &t.places[place]; b.inUse && ends(b) {
			t.remove(place) // another one may be here now
		} else {
			place++
		}
	}
	if t.used < len(t.places)/4 && len(t.places) > leastPlaces {
		t.resize(t.used * 2)
	}
}
