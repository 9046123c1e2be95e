package ratelimit

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keyhash"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
)

// Key is a text with placeholders, or several alternative texts. In JSON it is a string or a list
// of strings.
type Key []string

// UnmarshalJSON implements [json.Unmarshaler].
func (k *Key) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		*k = Key{one}
		return nil
	}
	var several []string
	if json.Unmarshal(data, &several) != nil {
		return fmt.Errorf("must be a string or a list of strings, not %.100s", data)
	}
	*k = several
	return nil
}

// MarshalJSON implements [json.Marshaler].
func (k Key) MarshalJSON() ([]byte, error) {
	if len(k) == 1 {
		return readableJSON(k[0])
	}
	return readableJSON([]string(k))
}

// requestKey is the key of a request in a zone: the owner of the budget that it is charged to.
type requestKey struct {
	text        string
	alternative int  // the index of the zone's key that made the text
	complete    bool // no placeholder was empty
	// network is the text as a network, if the text comes from an address placeholder.
	// Otherwise network is not valid, even if the text looks like an address.
	network netip.Prefix
}

// keyOf returns the key of a request: the first alternative without an empty placeholder, or else
// the last alternative.
func (z *zone) keyOf(repl *caddy.Replacer) requestKey {
	last := len(z.keys) - 1
	for i := range z.keys {
		t := &z.keys[i]
		value, complete := t.expand(repl)
		if complete || i == last {
			text, network := t.normalize(value)
			return requestKey{text, i, complete, network}
		}
	}
	return requestKey{}
}

// keyTemplate is a text with placeholders, prepared to be expanded: an alternative of a zone's key,
// or the value of a plan.
type keyTemplate struct {
	text string
	// single is the name of the only placeholder, if the text is one placeholder and nothing else.
	// This usual case needs no building of strings.
	single string
	plain  bool // without placeholders

	// For the keys of a zone only:
	foldCase   bool // see [foldCase]
	address    bool // single is an address placeholder
	masked     bool // the address placeholder gives networks
	ipv4, ipv6 int  // the prefixes of addresses; 0 for whole addresses
}

func newKeyTemplate(text string) keyTemplate {
	t := keyTemplate{text: text, plain: !strings.ContainsAny(text, "{}")}
	if name, ok := strings.CutPrefix(text, "{"); ok {
		if name, ok = strings.CutSuffix(name, "}"); ok && !strings.ContainsAny(name, `{}\`) {
			t.single = name
		}
	}
	return t
}

// expand returns the text with its placeholders replaced, and whether none of
// them was empty.
func (t *keyTemplate) expand(repl *caddy.Replacer) (value string, complete bool) {
	switch {
	case t.plain:
		return t.text, true
	case t.single != "":
		value, _ = repl.GetString(t.single)
		return value, value != ""
	}
	complete = true
	value, err := repl.ReplaceFunc(t.text, func(_ string, v any) (any, error) {
		complete = complete && caddy.ToString(v) != ""
		return v, nil
	})
	return value, complete && err == nil
}

// shortKey returns a key as stores and requests in flight have it. A long key is made short, because clients can
// make keys long and responses slow.
func (z *zone) shortKey(key string) string {
	return wire.Names{Secret: z.handler.hashSecret}.ShortKey(key)
}

// keyHashes hashes the keys that this process remembers. Clients can make keys long, but a hash
// takes 16 bytes.
var keyHashes = keyhash.New()

// maxShownKey is how many bytes of a key operators see.
const maxShownKey = 256

// shortenKey returns up to a number of bytes of a key, and whether the rest is cut. The part is a
// copy, because the key may be part of a larger text.
func shortenKey(key string, most int) (shown string, cut bool) {
	if len(key) > most {
		return strings.Clone(key[:most]), true
	}
	return strings.Clone(key), false
}
