package limiter

import (
	"net/netip"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keyhash"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
)

// Key is the key of a request in a zone: the owner of the budget that it is charged to.
type Key struct {
	Text        string
	Alternative int  // the index of the zone's key that made the text
	Complete    bool // no placeholder was empty
	// Network is the text as a network, if the text comes from an address placeholder.
	// Otherwise Network is not valid, even if the text looks like an address.
	Network netip.Prefix
}

// KeyOf returns the key of a request: the first alternative without an empty placeholder, or else
// the last alternative.
func (z *Zone) KeyOf(repl *caddy.Replacer, body *bodyReader) Key {
	last := len(z.Keys) - 1
	for i := range z.Keys {
		value, complete := z.expandKey(i, repl, body)
		if complete || i == last {
			text, network := z.Keys[i].Normalize(value)
			return Key{text, i, complete, network}
		}
	}
	return Key{}
}

// expandKey returns the text of an alternative of the key, and whether no placeholder was empty.
func (z *Zone) expandKey(alternative int, repl *caddy.Replacer, body *bodyReader) (value string, complete bool) {
	if body != nil {
		body.read(z.BodyNeeds.Keys[alternative])
	}
	return z.Keys[alternative].Expand(repl)
}

// ShortKey returns a key as stores and requests in flight have it. A long key is made short, because clients can
// make keys long and responses slow.
func (z *Zone) ShortKey(key string) string {
	return wire.Names{Secret: z.HashSecret}.ShortKey(key)
}

// keyHashes hashes the keys that this process remembers. Clients can make keys long, but a hash
// takes 16 bytes.
var keyHashes = keyhash.New()

// AlternativeText returns an alternative of the zone's key as configured. It is empty if there is only one.
func (z *Zone) AlternativeText(i int) string {
	if len(z.Keys) == 1 {
		return ""
	}
	return z.Keys[i].Text
}

// KeyTexts returns the zone's keys as configured.
func (z *Zone) KeyTexts() (texts []string) {
	for i := range z.Keys {
		texts = append(texts, z.Keys[i].Text)
	}
	return texts
}
