package keyhash

import "crypto/rand"

// MaxKept is the maximum number of bytes of a key that stays whole. Operators never see more of a key.
const MaxKept = 1 << 10

// shortMark begins all short keys. It is secret, so no client can send a key that Shorten returns.
var shortMark = rand.Text()

// Shorten returns a key that replaces key in this process. A long key is replaced by a short one, which
// has its first 1,024 bytes and its name. The name must identify the key. Other keys stay as they are.
//
// A client can make keys long, and a request needs its key until the response ends.
func Shorten(key string, name func(key string) string) string {
	if _, _, short := SplitShort(key); short || len(key) <= MaxKept {
		return key
	}
	return shortMark + key[:MaxKept] + name(key)
}

// SplitShort returns the parts of a key that Shorten has made short. ok is false for all other keys.
func SplitShort(key string) (beginning, name string, ok bool) {
	if n := len(shortMark); len(key) > n+MaxKept && key[:n] == shortMark {
		return key[n : n+MaxKept], key[n+MaxKept:], true
	}
	return "", "", false
}
