// Package keyhash hashes keys, because clients choose keys and can make them long.
package keyhash

import (
	"crypto/rand"
	"encoding/binary"
	"unsafe"

	"github.com/dchest/siphash"
)

// Hash stands for a text of any length. It takes 16 bytes and holds no pointer, so the
// garbage collector has nothing to do with it.
type Hash [2]uint64

// Xor combines the hashes of two texts. They must come from two Hashers.
func (h Hash) Xor(other Hash) Hash { return Hash{h[0] ^ other[0], h[1] ^ other[1]} }

// Hasher hashes texts by SipHash-2-4 with 128 bits and a secret of its own. Without the
// secret nobody can make up two texts with the same hash. By chance it doesn't happen either:
// among a billion texts, two hashes are equal with a probability below 10^-20.
// A Hasher is immutable and safe for concurrent use.
type Hasher struct{ k0, k1 uint64 }

// New returns a Hasher with a random secret.
func New() Hasher {
	var secret [16]byte
	_, _ = rand.Read(secret[:]) // never fails
	return Hasher{binary.LittleEndian.Uint64(secret[:]), binary.LittleEndian.Uint64(secret[8:])}
}

// Sum returns the hash of a text, without an allocation. The hash keeps nothing of the text.
func (h Hasher) Sum(text string) Hash {
	// The bytes of the string itself: a copy would be an allocation, and siphash only reads.
	b := unsafe.Slice(unsafe.StringData(text), len(text))
	high, low := siphash.Hash128(h.k0, h.k1, b)
	return Hash{high, low}
}
