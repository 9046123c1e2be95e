// Package keyhash makes short stand-ins for keys, which clients choose and which can be
// as long as they like.
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

// Hasher hashes texts with a secret of its own, by SipHash-2-4 with 128 bits. Nobody who
// doesn't know the secret can make up two texts with the same hash, and by chance it
// doesn't happen: a billion texts have two alike with a probability below 10^-20.
// It is immutable and safe for concurrent use.
type Hasher struct{ k0, k1 uint64 }

// New returns a Hasher with a random secret.
func New() Hasher {
	var secret [16]byte
	_, _ = rand.Read(secret[:]) // never fails
	return Hasher{binary.LittleEndian.Uint64(secret[:]), binary.LittleEndian.Uint64(secret[8:])}
}

// Sum returns the hash of a text. It keeps nothing of the text, and allocates nothing.
func (h Hasher) Sum(text string) Hash {
	// The bytes of the string itself: a copy would be an allocation, and siphash only reads.
	b := unsafe.Slice(unsafe.StringData(text), len(text))
	high, low := siphash.Hash128(h.k0, h.k1, b)
	return Hash{high, low}
}
