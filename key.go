package ratelimit

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"github.com/caddyserver/caddy/v2"
)

// Key is one value or several alternatives; in JSON a string or a list of them.
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

// keyOf returns whose budget a request is charged to, and by which alternative.
func (z *zone) keyOf(repl *caddy.Replacer) (key string, alternative int) {
	last := len(z.keys) - 1
	for i := range z.keys {
		value, complete := z.keys[i].expand(repl)
		if complete || i == last {
			return z.network(value), i
		}
	}
	return "", 0
}

// network shortens a key that is an address to the zone's prefix.
func (z *zone) network(key string) string {
	if z.ipv4 == 0 && z.ipv6 == 0 {
		return key
	}
	addr, err := netip.ParseAddr(key)
	if err != nil {
		return key
	}
	addr = addr.Unmap()
	bits := z.ipv6
	if addr.Is4() {
		bits = z.ipv4
	}
	if bits == 0 {
		return key
	}
	network, err := addr.Prefix(bits)
	if err != nil {
		return key
	}
	return network.String()
}

// keyTemplate is text with placeholders.
type keyTemplate struct {
	text string
	// single is the name of the placeholder that is the whole text, if it is
	// just one: the usual case, which needs no building of strings.
	single string
	plain  bool // without placeholders
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
