package keys

import (
	"net/url"
	"strings"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keyhash"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
)

// MaxShown is how many bytes of a key operators see.
const MaxShown = 256

// Shown is a key as operators may see it.
type Shown struct {
	Text   string
	Hashed bool // Text is the HMAC of the key
	Cut    bool // Text is the beginning of the key
}

// NewShown returns the key as its HMAC with the secret. If the secret is empty, it returns
// up to [MaxShown] bytes of the key itself. The key can be a short key of [keyhash.Shorten].
func NewShown(secret, key string) Shown {
	beginning, name, short := keyhash.SplitShort(key)
	switch {
	case secret != "" && short:
		return Shown{Text: name, Hashed: true}
	case secret != "":
		return Shown{Text: wire.HashedKey(secret, key), Hashed: true}
	case short:
		key = beginning
	}
	text, cut := Beginning(key, MaxShown)
	return Shown{Text: text, Cut: cut || short}
}

// View returns the key for an answer of the admin API.
func (k Shown) View() adminapi.ShownKey {
	if k.Hashed {
		return adminapi.ShownKey{HashedKey: k.Text}
	}
	text := Encoded("", k.Text)
	return adminapi.ShownKey{Key: &text, Cut: k.Cut}
}

// Marked returns the text of the key. A cut key ends with a mark. If it has [MaxShown] bytes, the mark makes it
// longer than any key that is shown whole, so the two can't be confused.
func (k Shown) Marked() string {
	if k.Cut {
		return k.Text + "…"
	}
	return k.Text
}

// Beginning returns up to maxBytes of a text, and whether the rest is cut. The part is a copy, because the text
// may be part of a larger one.
func Beginning(text string, maxBytes int) (beginning string, cut bool) {
	return strings.Clone(text[:min(len(text), maxBytes)]), len(text) > maxBytes
}

// Encoded returns the whole key as its HMAC with the secret. If the secret is empty, it returns the
// key percent-encoded, as it can stand behind ?key= in a URL.
func Encoded(secret, key string) string {
	if secret != "" {
		return wire.HashedKey(secret, key)
	}
	return strings.NewReplacer("&", "%26", "+", "%2B").Replace(url.PathEscape(key))
}
