// Package keytable numbers the keys of a log in little memory. It never keeps the text of a key, and never drops a
// key.
package keytable

import (
	"math"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keyhash"
)

// Table numbers the keys of a zone, in the order in which they appear: 0, 1, 2 and so on. It keeps a value
// for each, and its hash, but not its text, because an access log can have millions of keys. Keys are never
// dropped, so results don't depend on the secret of the hashes. A Table must be made by [New].
type Table[T any] struct {
	hasher  keyhash.Hasher
	records Slab[record[T]]
	places  []uint32 // open addressing; a place holds the number of a key plus 1, or 0
}

type record[T any] struct {
	value T // first, because Go pads a struct that ends with an empty one
	hash  keyhash.Hash
}

// New returns a table without keys.
func New[T any]() Table[T] { return Table[T]{hasher: keyhash.New(), records: NewSlab[record[T]](1)} }

// Len returns the number of keys.
func (t *Table[T]) Len() int64 { return int64(t.records.len) }

// At returns the value of a key.
func (t *Table[T]) At(number uint32) *T { return &t.records.Row(number)[0].value }

// maxNumbers is the largest number of keys in a Table.
const maxNumbers = math.MaxUint32 - 1

// Result is the result of [Table.Find].
type Result uint8

// The results.
const (
	Known Result = iota // the key had a number
	Added               // the key got a number
	Full                // the key gets no number, because there are too many keys
)

// Find returns the number of a key. A new key gets a number if the bound allows that.
func (t *Table[T]) Find(key string, bound *Bound) (number uint32, result Result) {
	hash := t.hasher.Sum(key)
	if t.records.len >= len(t.places)/4*3 {
		t.grow()
	}
	place := t.placeOf(hash)
	if held := t.places[place]; held != 0 {
		return held - 1, Known
	}
	if !bound.allows(t.Len()) || t.Len() >= maxNumbers {
		return 0, Full
	}
	bound.used++
	number = t.records.Add()
	t.records.Row(number)[0].hash = hash
	t.places[place] = number + 1
	return number, Added
}

// placeOf returns the place that holds the key, or the free place in which it belongs.
func (t *Table[T]) placeOf(hash keyhash.Hash) uint64 {
	mask := uint64(len(t.places) - 1)
	place := hash[0] & mask
	for held := t.places[place]; held != 0 && t.records.Row(held - 1)[0].hash != hash; held = t.places[place] {
		place = (place + 1) & mask
	}
	return place
}

func (t *Table[T]) grow() {
	t.places = make([]uint32, max(2*len(t.places), 16))
	for number := range uint32(t.records.len) {
		t.places[t.placeOf(t.records.Row(number)[0].hash)] = number + 1
	}
}

// Bound bounds the number of keys in the tables of several zones, as the store in memory does. A zone may add a key
// while all zones together have fewer keys than the bound, or while it has fewer keys than its equal share.
type Bound struct{ used, all, share int64 }

// NewBound returns the bound for a number of zones, none of which has a key.
func NewBound(maxKeys int64, zones int) Bound {
	return Bound{all: maxKeys, share: maxKeys / max(int64(zones), 1)}
}

// allows reports whether a zone with this number of keys may add one.
func (b *Bound) allows(keys int64) bool { return b.used < b.all || keys < b.share }

// Slab is a growing array of rows. It grows by chunks, because a copy of a large array would double the
// memory. Rows keep their place in memory. A Slab must be
// made by [NewSlab].
type Slab[T any] struct {
	width  int // of a row
	chunks [][]T
	len    int
}

// NewSlab returns an array without rows.
func NewSlab[T any](width int) Slab[T] { return Slab[T]{width: width} }

// Len returns the number of rows.
func (s *Slab[T]) Len() int { return s.len }

// chunkRows is small, because each zone has a few slabs, and most zones have few keys.
const chunkRows = 256

// Add appends a row of zero values, and returns its number.
func (s *Slab[T]) Add() uint32 {
	if s.len%chunkRows == 0 {
		s.chunks = append(s.chunks, make([]T, chunkRows*s.width))
	}
	s.len++
	return uint32(s.len - 1)
}

// Row returns the row with this number.
func (s *Slab[T]) Row(number uint32) []T {
	from := int(number%chunkRows) * s.width
	return s.chunks[number/chunkRows][from : from+s.width]
}
