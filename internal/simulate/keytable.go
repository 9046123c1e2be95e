package simulate

import (
	"math"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keyhash"
)

// keyTable numbers the keys of a zone, in the order in which they appear: 0, 1, 2 and so on. It keeps a value
// for each, and its hash, but no text and no pointer, because an access log can have millions of keys. Keys
// are never dropped, so results don't depend on the secret of the hashes.
type keyTable[T any] struct {
	records slab[keyRecord[T]]
	places  []uint32 // open addressing; a place holds the number of a key plus 1, or 0
}

type keyRecord[T any] struct {
	value T // first, because Go pads a struct that ends with an empty one
	hash  keyhash.Hash
}

func newKeyTable[T any]() keyTable[T] { return keyTable[T]{records: newSlab[keyRecord[T]](1)} }

// len returns the number of keys.
func (t *keyTable[T]) len() int64 { return int64(t.records.len) }

// at returns the value of a key.
func (t *keyTable[T]) at(number uint32) *T { return &t.records.row(number)[0].value }

// maxKeyNumbers is the largest number of keys in a keyTable.
const maxKeyNumbers = math.MaxUint32 - 1

// find returns the number of a key. If the key is new, find gives it a number if there is room.
func (t *keyTable[T]) find(hash keyhash.Hash, room bool) (number uint32, isNew, found bool) {
	if t.records.len >= len(t.places)/4*3 {
		t.grow()
	}
	place := t.placeOf(hash)
	if held := t.places[place]; held != 0 {
		return held - 1, false, true
	}
	if !room || t.len() >= maxKeyNumbers {
		return 0, false, false
	}
	number = t.records.add()
	t.records.row(number)[0].hash = hash
	t.places[place] = number + 1
	return number, true, true
}

// placeOf returns the place that holds the key, or the free place in which it belongs.
func (t *keyTable[T]) placeOf(hash keyhash.Hash) uint64 {
	mask := uint64(len(t.places) - 1)
	place := hash[0] & mask
	for held := t.places[place]; held != 0 && t.records.row(held - 1)[0].hash != hash; held = t.places[place] {
		place = (place + 1) & mask
	}
	return place
}

func (t *keyTable[T]) grow() {
	t.places = make([]uint32, max(2*len(t.places), 16))
	for number := range uint32(t.records.len) {
		t.places[t.placeOf(t.records.row(number)[0].hash)] = number + 1
	}
}

// keyRoom bounds the number of keys, as the store in memory does. A zone has room while all zones together
// have fewer keys than the bound. It also has room while it has fewer keys than its equal share.
type keyRoom struct{ used, all, share int64 }

func newKeyRoom(c Configuration) keyRoom {
	return keyRoom{all: c.MaxKeys(), share: c.MaxKeys() / max(int64(len(c.Zones())), 1)}
}

// has reports whether a zone with this number of keys has room for one more.
func (r *keyRoom) has(keys int64) bool { return r.used < r.all || keys < r.share }

// slab is a growing array of rows. It grows by chunks, because a copy of a large array would double the
// memory. Rows keep their place in memory.
type slab[T any] struct {
	width  int // of a row
	chunks [][]T
	len    int
}

func newSlab[T any](width int) slab[T] { return slab[T]{width: width} }

// chunkRows is small, because each zone has a few slabs, and most zones have few keys.
const chunkRows = 256

// add appends a row of zero values, and returns its number.
func (s *slab[T]) add() uint32 {
	if s.len%chunkRows == 0 {
		s.chunks = append(s.chunks, make([]T, chunkRows*s.width))
	}
	s.len++
	return uint32(s.len - 1)
}

// row returns the row with this number.
func (s *slab[T]) row(number uint32) []T {
	from := int(number%chunkRows) * s.width
	return s.chunks[number/chunkRows][from : from+s.width]
}
