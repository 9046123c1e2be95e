package ratelimit

import (
	"net/url"
	"strings"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keyhash"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/topk"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
)

const (
	// maxDeniedKeys is how many keys of a zone are counted.
	maxDeniedKeys = 100
	// deniedKeysHalfLife is how long it takes until a denial counts half as much.
	deniedKeysHalfLife = time.Minute
)

// deniedKeys counts the recent denials of a zone by key.
type deniedKeys struct {
	sketch *topk.Sketch[deniedKeyID, shownKey]
}

func newDeniedKeys() *deniedKeys {
	return &deniedKeys{topk.New[deniedKeyID, shownKey](maxDeniedKeys, deniedKeysHalfLife)}
}

// deniedKeyID identifies a key in constant space, however long the key is.
type deniedKeyID struct {
	hash   keyhash.Hash
	hashed bool // operators see the key as its HMAC
}

// shownKey is a key as operators may see it.
type shownKey struct {
	text   string
	hashed bool // the text is the HMAC of the key
	cut    bool // the text is the beginning of the key
}

// newShownKey returns the key as its HMAC with the secret. If the secret is empty, it returns
// up to a number of bytes of the key itself. The key can be the key of a zone's [store.Request].
func newShownKey(secret, key string, most int) shownKey {
	beginning, name, short := keyhash.SplitShort(key)
	switch {
	case secret != "" && short:
		return shownKey{text: name, hashed: true}
	case secret != "":
		return shownKey{text: redisstore.HashedKey(secret, key), hashed: true}
	case short:
		key = beginning
	}
	text, cut := shortenKey(key, most)
	return shownKey{text: text, cut: cut || short}
}

// view returns the key for an answer of the admin API.
func (k shownKey) view() adminapi.ShownKey {
	if k.hashed {
		return adminapi.ShownKey{HashedKey: k.text}
	}
	text := url.PathEscape(k.text)
	return adminapi.ShownKey{Key: &text, Cut: k.cut}
}

// countDeniedKeys counts a denied request for the keys that were denied.
func (state *requestState) countDeniedKeys() {
	now := time.Now()
	for i := range state.entries {
		if e := &state.entries[i]; !e.Shadow && e.denies() {
			e.zone.deniedKeys.add(now, state.handler.hashSecret, e.Key)
		}
	}
}

// add counts a denial of a key. Operators see up to maxShownKey bytes of it, as [newShownKey] returns it.
func (d *deniedKeys) add(now time.Time, secret, key string) {
	id := deniedKeyID{keyHashes.Sum(key), secret != ""}
	d.sketch.Add(now, id, func() shownKey { return newShownKey(secret, key, maxShownKey) })
}

// list returns the keys that were denied most, the highest count first.
func (d *deniedKeys) list(now time.Time) []topk.Counter[deniedKeyID, shownKey] {
	return d.sketch.List(now, func(a, b shownKey) int { return strings.Compare(a.text, b.text) })
}
