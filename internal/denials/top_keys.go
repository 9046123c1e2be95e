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
	// maxTopKeys is how many keys of a zone are counted.
	maxTopKeys = 100
	// topKeysHalfLife is how long it takes until a denial counts half as much.
	topKeysHalfLife = time.Minute
)

// keyHashes hashes the keys that this package remembers. Clients can make keys long, but a hash takes 16 bytes.
var keyHashes = keyhash.New()

// TopKeys counts the recent denials of a zone by key. It is safe for concurrent use.
type TopKeys struct {
	sketch *topk.Sketch[keyID, keys.Shown]
}

// NewTopKeys returns TopKeys without denials.
func NewTopKeys() *TopKeys {
	return &TopKeys{topk.New[keyID, keys.Shown](maxTopKeys, topKeysHalfLife)}
}

// Destruct implements [caddy.Destructor]. There is nothing to close.
func (*TopKeys) Destruct() error { return nil }

// keyID identifies a key in constant space, however long the key is.
type keyID struct {
	hash   keyhash.Hash
	hashed bool // operators see the key as its HMAC
}

// Add counts a denial of a key. With a secret, operators see the key as its HMAC.
func (t *TopKeys) Add(now time.Time, secret, key string) {
	id := keyID{keyHashes.Sum(key), secret != ""}
	t.sketch.Add(now, id, func() keys.Shown { return keys.NewShown(secret, key) })
}

// List returns the keys that were denied most, the highest count first.
func (t *TopKeys) List(now time.Time) []adminapi.DeniedKey {
	list := []adminapi.DeniedKey{}
	for _, c := range t.sketch.List(now, func(a, b keys.Shown) int { return strings.Compare(a.Text, b.Text) }) {
		list = append(list, adminapi.DeniedKey{ShownKey: c.Label.View(), Denied: c.Count, AtLeast: c.Count - c.Excess})
	}
	return list
}
