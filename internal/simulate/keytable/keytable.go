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
	numbers map[keyhash.Hash]uint32
	values  []T
}

// New returns a table without keys.
func New[T any]() Table[T] {
	return Table[T]{hasher: keyhash.New(), numbers: make(map[keyhash.Hash]uint32)}
}

// Len returns the number of keys.
func (t *Table[T]) Len() int64 { return int64(len(t.values)) }

// At returns the value of a key, which is valid until the next key is added.
func (t *Table[T]) At(number uint32) *T { return &t.values[number] }

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
	if number, known := t.numbers[hash]; known {
		return number, Known
	}
	if !bound.allows(t.Len()) || t.Len() == math.MaxUint32 {
		return 0, Full
	}
	bound.used++
	number = uint32(len(t.values))
	t.numbers[hash], t.values = number, append(t.values, *new(T))
	return number, Added
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
