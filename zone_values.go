package ratelimit

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/options"
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
		return options.ReadableJSON(k[0])
	}
	return options.ReadableJSON([]string(k))
}

// checkKeyText checks an alternative of a key.
func checkKeyText(text string) error {
	if strings.ContainsAny(text, "{}") {
		return keys.CheckBraces("key", text)
	}
	if keys.LacksBraces(text) {
		return fmt.Errorf("key %q is the name of a placeholder, and without braces the same for all requests: write {%s}", text, text)
	}
	return nil
}

func (k Key) check() error {
	var errs []error
	for i, text := range k {
		errs = append(errs, checkKeyText(text))
		if i < len(k)-1 && strings.HasSuffix(text, ",") {
			errs = append(errs, fmt.Errorf("key %q ends in a comma: "+
				"write a space alone between alternatives, or one text that combines values, as in \"{client_ip}|{path}\"", text))
		}
	}
	return errors.Join(errs...)
}

// keys returns the alternatives of the zone's key. Without the option key, there is one: the empty
// text.
func (c *Zone) keys() Key {
	if len(c.Key) == 0 {
		return Key{""}
	}
	return c.Key
}

// keyTemplates returns the alternatives of the zone's key, ready to be expanded.
func (c *Zone) keyTemplates() (templates []keys.Template) {
	for _, key := range c.keys() {
		templates = append(templates, keys.NewKey(key, keys.Form{IPv4Prefix: c.IPv4Prefix, IPv6Prefix: c.IPv6Prefix, FoldCase: c.foldsKeys()}))
	}
	return templates
}

// checkKeyCase checks the value of the option key_case.
func checkKeyCase(keyCase string) error {
	if keyCase != "lower" {
		return fmt.Errorf("key_case takes lower, not %.100q: write key_case lower, or leave it out if the case of keys counts", keyCase)
	}
	return nil
}

// foldsKeys reports whether texts that differ only in their case are the same key.
func (c *Zone) foldsKeys() bool { return c.KeyCase == "lower" }

// foldKey returns a key from an operator as the zone writes it.
func (c *Zone) foldKey(key string) string {
	if c.foldsKeys() {
		return keys.FoldCase(key)
	}
	return key
}

// overrides returns the zone's overrides by the keys that requests have.
func (c *Zone) overrides() map[string]*LimitSet {
	if !c.foldsKeys() {
		return c.Override
	}
	folded := make(map[string]*LimitSet, len(c.Override))
	for key, set := range c.Override {
		folded[keys.FoldCase(key)] = set
	}
	return folded
}

// ignoresKeyCase reports whether key_case lower changes no key.
func (z *liveZone) ignoresKeyCase() bool {
	return z.config.foldsKeys() && !slices.ContainsFunc(z.Keys, func(t keys.Template) bool { return !t.Plain && !t.Address })
}

// Number is a number, or a text with placeholders that becomes a number for each request. In JSON it
// is a number or a string.
type Number string

// UnmarshalJSON implements [json.Unmarshaler].
func (n *Number) UnmarshalJSON(data []byte) error {
	var number json.Number
	if len(data) > 0 && data[0] != '"' && json.Unmarshal(data, &number) == nil {
		*n = Number(number)
		return nil
	}
	var text string
	if json.Unmarshal(data, &text) != nil {
		return fmt.Errorf("must be a number or a string with placeholders, not %.100s", data)
	}
	*n = Number(text)
	return nil
}

// MarshalJSON implements [json.Marshaler].
func (n Number) MarshalJSON() ([]byte, error) {
	if _, err := strconv.ParseFloat(string(n), 64); err == nil && json.Valid([]byte(n)) {
		return []byte(n), nil
	}
	return json.Marshal(string(n))
}

// varies reports whether the number depends on the request.
func (n Number) varies() bool { return strings.Contains(string(n), "{") }

// check checks the value of an option. A number that varies is only checked for matching braces.
func (n Number) check(option string, parse func(string) (int64, error)) error {
	if n == "" || n.varies() {
		return keys.CheckBraces(option, string(n))
	}
	if keys.LacksBraces(string(n)) {
		return fmt.Errorf("%s %q is the name of a placeholder without its braces: write {%[2]s}", option, string(n))
	}
	_, err := parse(string(n))
	if f, _ := strconv.ParseFloat(string(n), 64); err == nil && math.IsInf(f, 0) {
		err = fmt.Errorf("%w, not %q", limiter.ErrNumber, n)
	}
	if err != nil {
		return fmt.Errorf("%s %w: write for example 2, or a placeholder in braces", option, err)
	}
	return nil
}

// number reads a number, or text with placeholders that give one.
func number(d *caddyfile.Dispenser, parse func(string) (int64, error)) (Number, error) {
	option := d.Val()
	text, err := options.Value(d, "2")
	if err == nil && text == "" {
		err = fmt.Errorf("%s %w, not nothing", option, limiter.ErrNumber)
	}
	if err != nil {
		return "", err
	}
	return Number(text), Number(text).check(option, parse)
}
