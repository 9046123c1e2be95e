package wire

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"net/url"
	"strings"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keyhash"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// maxKeyLength is the maximum number of bytes of a key that is stored as it is. A longer key is
// stored as a hash.
const maxKeyLength = 128

// Names makes the names of keys in Redis:
//
//	<prefix>:{<key>}:<limit ID>
//
// The braces are Redis Cluster's hash tag: all limits of one key share a hash slot. No key can end the
// tag or equal another; see [appendEncoded].
type Names struct {
	Prefix string
	Secret string // if not empty, keys are stored in the form of [HashedKey]
}

// appendStart appends the common beginning of the names of a key.
func (n Names) appendStart(b []byte, key string) []byte {
	b = append(b, n.Prefix...)
	b = append(b, ":{"...)
	b = n.appendTag(b, key)
	return append(b, "}:"...)
}

// ShortKey returns a key that has the same names as key, and at most about 1,100 bytes; see [keyhash.Shorten].
func (n Names) ShortKey(key string) string {
	return keyhash.Shorten(key, func(key string) string { return string(n.appendTag(nil, key)) })
}

// appendTag appends the hash tag of a key.
func (n Names) appendTag(b []byte, key string) []byte {
	if _, tag, ok := keyhash.SplitShort(key); ok {
		return append(b, tag...)
	}
	if n.Secret != "" {
		return append(b, HashedKey(n.Secret, key)...)
	}
	return appendEncoded(b, key)
}

// HashSlotCount is the number of hash slots of a Redis Cluster.
const HashSlotCount = 1 << 14

// HashSlot returns the Redis Cluster hash slot of a key: the CRC16 (XMODEM) of its hash tag, modulo
// HashSlotCount.
func (n Names) HashSlot(key string) int {
	var buffer [maxKeyLength + 16]byte
	return HashSlotOf(n.appendTag(buffer[:0], key))
}

// HashSlotOfName returns the hash slot of the name of a budget, or of a count.
func HashSlotOfName(name string) int {
	_, rest, _ := strings.Cut(name, "{")
	tag, _, _ := strings.Cut(rest, "}")
	return HashSlotOf([]byte(tag))
}

// HashSlotOf returns the hash slot of a hash tag.
func HashSlotOf(tag []byte) int {
	var crc uint16
	for _, c := range tag {
		crc ^= uint16(c) << 8
		for range 8 {
			carry := crc >> 15
			crc = crc<<1 ^ carry*0x1021
		}
	}
	return int(crc % HashSlotCount)
}

// Name returns the name of one budget.
func (n Names) Name(key, id string) string { return string(n.AppendName(nil, key, id)) }

// tenantSize is the number of bytes of a tenant in messages.
const tenantSize = 7

// NewTenant returns the tenant of that name. The secret, which may be empty, is that of the names of keys. A store gets only the
// hash. A weight that is too small or too large becomes the smallest or the largest.
func NewTenant(secret, name string, weight int64) store.Tenant {
	id := binary.BigEndian.Uint64(hash(secret, name)) >> (8 * (8 - tenantSize))
	return store.Tenant{ID: max(id, store.OtherTenants+1), Weight: min(max(weight, 1), store.MaxWeight)}
}

// CountName returns the name of an instance's count of slots: the name of the slots, and a tenant.
func (n Names) CountName(key, id string, tenant uint64) string {
	var buffer [maxKeyLength + 64]byte
	return string(appendTenant(n.AppendName(buffer[:0], key, id), tenant))
}

// OfCount returns the name of the slots of a count, which is the key in Redis.
func OfCount(countName string) string { return countName[:len(countName)-tenantSize] }

// appendTenant appends the ID of a tenant.
func appendTenant(b []byte, tenant uint64) []byte {
	return binary.LittleEndian.AppendUint64(b, tenant)[:len(b)+tenantSize]
}

// AppendName appends the name of one budget.
func (n Names) AppendName(b []byte, key, id string) []byte {
	return append(n.appendStart(b, key), id...)
}

// Pattern returns the glob-style pattern of the names whose ID begins with a text. The pattern can also
// match other names: see [Names.Parse].
func (n Names) Pattern(idStart string) string {
	return escapeGlob(n.Prefix) + ":{*}:" + escapeGlob(idStart) + "*"
}

// escapeGlob returns the pattern that matches exactly a text.
func escapeGlob(text string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(text)
}

// Parse is the reverse of Name. If the name has only a hash of the key, Parse returns the hash, and
// the key is empty. ok is false for a name that Name never returns.
func (n Names) Parse(name string) (key, hash, id string, ok bool) {
	rest, ok := strings.CutPrefix(name, n.Prefix+":{")
	tag, id, closed := strings.Cut(rest, "}:") // a tag has no brace
	if !ok || !closed {
		return "", "", "", false
	}
	const hmacMark, longMark = "%$", "%#"
	switch {
	case strings.HasPrefix(tag, hmacMark):
		return "", tag, id, n.Secret != ""
	case strings.HasPrefix(tag, longMark):
		return "", tag, id, n.Secret == ""
	case tag == "%":
		return "", "", id, n.Secret == ""
	}
	key, err := url.PathUnescape(tag)
	return key, "", id, err == nil && n.Secret == "" && string(n.appendTag(nil, key)) == tag
}

// HashedKey returns the form of a key that must not be stored or shown: its hash with a secret. A mark distinguishes this
// form from every key.
func HashedKey(secret, key string) string {
	return "%$" + base64.RawURLEncoding.EncodeToString(hash(secret, key))
}

// hash returns the HMAC-SHA256 of a text.
func hash(secret, text string) []byte {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(text))
	return mac.Sum(nil)
}

// appendEncoded appends a key in printable ASCII without braces. Braces, percent signs and all
// bytes outside printable ASCII are written %XX. So two digits follow every percent sign, except in
// four reserved forms, which therefore equal no key:
//
// - "%" is the empty key, because Redis ignores an empty tag.
// - "%#" begins the hash of a long key.
// - "%$" begins the hash of a key by [HashedKey].
// - "%!" begins the keys that nodes of a cluster are checked with.
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
