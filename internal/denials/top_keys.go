package denials

import (
	"strings"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keyhash"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/topk"
)

const (
	// maxTopKeys is how many keys of a zone are counted, and how many of those in shadow mode.
	maxTopKeys = 100
	// topKeysKeptFor is how long a key stays known after its last denial.
	topKeysKeptFor = 10 * time.Minute
)

// keyHashes hashes the keys that this package remembers. Clients can make keys long, but a hash takes 16 bytes.
var keyHashes = keyhash.New()

// TopKeys counts the recent denials of a zone by key. It is safe for concurrent use.
type TopKeys struct {
	denied, shadowDenied *topk.Sketch[keyID, evidence]
}

// NewTopKeys returns TopKeys without denials.
func NewTopKeys() *TopKeys {
	newSketch := func() *topk.Sketch[keyID, evidence] { return topk.New[keyID, evidence](maxTopKeys, topKeysKeptFor) }
	return &TopKeys{newSketch(), newSketch()}
}

// Destruct implements [caddy.Destructor]. There is nothing to close.
func (*TopKeys) Destruct() error { return nil }

// keyID identifies a key in constant space, however long the key is.
type keyID struct {
	hash   keyhash.Hash
	hashed bool // operators see the key as its HMAC
}

// evidence has the recent denials of a key, as far as they are known.
type evidence struct {
	key         keys.Shown
	first, last time.Time
	cause       Cause // of the last one
}

// Add counts a denial of a key, or what would be one without shadow mode. With a secret, operators see the key as its HMAC.
func (t *TopKeys) Add(now time.Time, secret, key string, shadow bool, c Cause) {
	sketch := t.denied
	if shadow {
		sketch = t.shadowDenied
	}
	sketch.Add(now, keyID{keyHashes.Sum(key), secret != ""}, func(e *evidence) {
		if e.first.IsZero() {
			e.key, e.first = keys.NewShown(secret, key), now
		}
		e.last, e.cause = now, c
	})
}

// List returns the keys that were denied, the most often denied first. Then come those that shadow mode did not deny.
func (t *TopKeys) List(now time.Time) []adminapi.DeniedKey {
	return t.list(now, func(keyID) bool { return true })
}

// Of returns what List says of one key.
func (t *TopKeys) Of(now time.Time, secret, key string) []adminapi.DeniedKey {
	wanted := keyID{keyHashes.Sum(key), secret != ""}
	return t.list(now, func(id keyID) bool { return id == wanted })
}

func (t *TopKeys) list(now time.Time, keep func(keyID) bool) []adminapi.DeniedKey {
	list := []adminapi.DeniedKey{}
	for _, sketch := range []*topk.Sketch[keyID, evidence]{t.denied, t.shadowDenied} {
		for _, c := range sketch.List(now, func(a, b evidence) int { return strings.Compare(a.key.Text, b.key.Text) }) {
			if e := c.Label; keep(c.Key) {
				list = append(list, adminapi.DeniedKey{
					ShownKey: e.key.View(), Shadow: sketch == t.shadowDenied, Denied: c.Count - c.Excess, AtMost: c.Count,
					First: adminapi.Instant(e.first), Last: adminapi.Instant(e.last), Limit: e.cause.String(),
				})
			}
		}
	}
	return list
}
