package redisstore

import (
	"crypto/sha256"
	"encoding/base64"
)

// longestKey is how many bytes of a key are stored as they are. What is longer
// is stored as a hash.
const longestKey = 128

// appendKey appends the name of a budget in Redis:
//
//	<prefix>:{<key>}:<limit ID>
//
// The braces are Redis Cluster's hash tag: all limits of one key share a slot.
// See [appendEncoded] for why no key can end the tag or take another's place.
func appendKey(b []byte, prefix, key, limitID string) []byte {
	b = append(b, prefix...)
	b = append(b, ":{"...)
	b = appendEncoded(b, key)
	b = append(b, "}:"...)
	return append(b, limitID...)
}

// appendEncoded appends a key in printable ASCII without braces. Braces, percent
// signs and all other bytes are written %XX, so a percent sign is always
// followed by two digits, except in two reserved forms, which therefore equal no
// other key: "%" is the empty key (Redis ignores an empty tag), and "%#" starts
// the hash of a long one.
func appendEncoded(b []byte, key string) []byte {
	if key == "" {
		return append(b, '%')
	}
	if len(key) > longestKey {
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
