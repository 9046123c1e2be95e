// Package agenda orders things by the instants at which they are due. It never reads a clock, and never changes the
// order of things that are due at the same instant.
package agenda

import "github.com/caddy-rate-limit/caddy-rate-limit/algorithms"

// Agenda is a binary heap of things that become due. Things of one instant leave it in the order in which they came.
// The zero value is an empty Agenda. It is not safe for concurrent use.
//
// It takes about half the time of container/heap, which calls methods of an interface.
type Agenda[T any] struct {
	entries []entry[T]
	added   uint64
}

type entry[T any] struct {
	thing  T // first, because Go pads a struct that ends with an empty one
	at     algorithms.Micros
	number uint64 // orders the things of one instant
}

func (e *entry[T]) isBefore(other *entry[T]) bool {
	return e.at < other.at || e.at == other.at && e.number < other.number
}

// Len returns the number of things.
func (a *Agenda[T]) Len() int { return len(a.entries) }

// First returns the instant of the first thing. There must be one.
func (a *Agenda[T]) First() algorithms.Micros { return a.entries[0].at }

// Clear removes all things, and keeps the memory.
func (a *Agenda[T]) Clear() {
	clear(a.entries)
	a.entries = a.entries[:0]
}

// Add adds a thing that is due at an instant.
func (a *Agenda[T]) Add(at algorithms.Micros, thing T) {
	a.added++
	e := entry[T]{thing, at, a.added}
	a.entries = append(a.entries, e)
	h, place := a.entries, len(a.entries)-1
	for place > 0 {
		parent := (place - 1) / 2
		if h[parent].isBefore(&e) {
			break
		}
		h[place] = h[parent]
		place = parent
	}
	h[place] = e
}

// Pop removes and returns the first thing. There must be one.
func (a *Agenda[T]) Pop() (at algorithms.Micros, thing T) {
	first, last := a.entries[0], len(a.entries)-1
	moved := a.entries[last]
	a.entries[last] = entry[T]{} // refers to nothing
	a.entries = a.entries[:last]
	h, place := a.entries, 0
	for child := 1; child < last; child = 2*place + 1 {
		if child+1 < last && h[child+1].isBefore(&h[child]) {
			child++
		}
		if moved.isBefore(&h[child]) {
			break
		}
		h[place] = h[child]
		place = child
	}
	if last > 0 {
		h[place] = moved
	}
	return first.at, first.thing
}
