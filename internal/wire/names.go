package wire

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"strings"
)

// maxKeyLength is how many bytes of a key are stored as they are. What is longer
// is stored as a hash.
const maxKeyLength = 128

// Names says how budgets are named in Redis:
//
//	<prefix>:{<key>}:<limit ID>
//
// The braces are Redis Cluster's hash tag: all limits of one key share a slot.
// See [appendEncoded] for why no key can end the tag or take another's place.
type Names struct {
	Prefix string
	Secret string // if not empty, keys are stored as [HashedKey] has them
}

// appendStart appends what the names of all budgets of a key begin with.
func (n Names) appendStart(b []byte, key string) []byte {
	b = append(b, n.Prefix...)
	b = append(b, ":{"...)
	b = n.appendTag(b, key)
	return append(b, "}:"...)
}

// appendTag appends the hash tag of a key.
func (n Names) appendTag(b []byte, key string) []byte {
	if n.Secret != "" {
		return append(b, HashedKey(n.Secret, key)...)
	}
	return appendEncoded(b, key)
}

// SlotCount is how many slots a Redis Cluster has.
const SlotCount = 1 << 14

// Slot returns the slot of a key's budgets in a Redis Cluster, which is the CRC16 (XMODEM) of its
// hash tag, modulo the number of slots.
func (n Names) Slot(key string) int {
	var room [maxKeyLength + 16]byte
	return SlotOf(n.appendTag(room[:0], key))
}

// SlotOfName returns the slot of the name of a budget.
func SlotOfName(name string) int {
	_, rest, _ := strings.Cut(name, "{")
	tag, _, _ := strings.Cut(rest, "}")
	return SlotOf([]byte(tag))
}

// SlotOf returns the slot of a hash tag.
func SlotOf(tag []byte) int {
	var crc uint16
	for _, c := range tag {
		crc ^= uint16(c) << 8
		for range 8 {
			carry := crc >> 15
			crc = crc<<1 ^ carry*0x1021
		}
	}
	return int(crc % SlotCount)
}

// Name returns the name of one budget.
func (n Names) Name(key, id string) string { return string(n.AppendName(nil, key, id)) }

// AppendName appends the name of one budget.
func (n Names) AppendName(b []byte, key, id string) []byte {
	return append(n.appendStart(b, key), id...)
}

// HashedKey is what stands for a key where keys are not to be stored or shown: its
// HMAC-SHA256 with a secret, marked so that it equals no key.
func HashedKey(secret, key string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(key))
	return "%$" + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// appendEncoded appends a key in printable ASCII without braces. Braces, percent
// signs and all other bytes are written %XX, so a percent sign is always
// followed by two digits, except in four reserved forms, which therefore equal no
// other key: "%" is the empty key (Redis ignores an empty tag), "%#" starts the hash
// of a long one, "%$" that of [HashedKey], and "%!" the keys that nodes of a cluster
// are checked with.
func appendEncoded(b []byte, key string) []byte {
	if key == "" {
		return append(b, '%')
	}
	if len(key) > maxKeyLength {
		sum := sha256.Sum256([]byte(key))
		b = append(b, "%#"...)
		return base64.RawURLEncoding.AppendEncode(b, sum[:])
	}
	const digits = "0123456789ABCDEF"
	for i := range len(key) {
		switch c := key[i]; {
		case c < ' ' || c > '~' || c == '{' || c == '}' || c == '%':
			b = append(b, '%', digits[c>>4], digits[c&15])
		default:
			b = append(b, c)
		}
	}
	return b
}
