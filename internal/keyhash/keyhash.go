// Package keyhash hashes keys, because clients choose keys, and can make them long or colliding.
// It never knows where a key comes from.
package keyhash

import (
	"crypto/rand"
	"encoding/binary"
	"unsafe"

	"github.com/dchest/siphash"
)

// Hash is the hash of a text. It has 16 bytes and no pointer, so the garbage collector doesn't scan it.
type Hash [2]uint64

// Xor combines the hashes of two texts. The hashes must come from two Hashers. From one Hasher, two
// equal texts would give the zero Hash.
func (h Hash) Xor(other Hash) Hash { return Hash{h[0] ^ other[0], h[1] ^ other[1]} }

// Hasher hashes texts by SipHash-2-4 with 128 bits and a secret. It must be made by [New] or [FromSecret].
// A Hasher is immutable and safe for concurrent use.
//
// Without the secret nobody can construct two texts with the same hash. By chance, two of a billion texts
// have the same hash with a probability below 10^-20.
type Hasher struct{ k0, k1 uint64 }

// New returns a Hasher with a random secret.
func New() Hasher {
	var secret [16]byte
	_, _ = rand.Read(secret[:]) // never fails
	return FromSecret(secret)
}

// FromSecret returns a Hasher with a secret of the caller's choice. Nobody who chooses texts may know it.
func FromSecret(secret [16]byte) Hasher {
	return Hasher{binary.LittleEndian.Uint64(secret[:]), binary.LittleEndian.Uint64(secret[8:])}
}

// Sum returns the hash of a text. It allocates nothing and keeps no reference to the text.
func (h Hasher) Sum(text string) Hash {
	// The bytes of the string itself, because a copy would be an allocation. siphash only reads them.
	b := unsafe.Slice(unsafe.StringData(text), len(text))
	high, low := siphash.Hash128(h.k0, h.k1, b)
	return Hash{high, low}
}
