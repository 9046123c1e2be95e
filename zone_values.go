package ratelimit

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/cost"
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

// keyOption returns the option key. In JSON its check also rejects the short placeholders of a Caddyfile.
func (c *Zone) keyOption() options.Option {
	o := options.List("key", "{client_ip}", &c.Key, options.Text, func(k Key) error { return keys.CheckKey(k, false) })
	o.Check = func() error { return keys.CheckKey(c.Key, true) }
	return o
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
		return options.Must("takes lower, not %.100q", keyCase)
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

// Number is a number or a text, such as a text with placeholders that becomes a number for each request. In JSON it
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
		return fmt.Errorf("must be a number or a string, not %.100s", data)
	}
	*n = Number(text)
	return nil
}

// MarshalJSON implements [json.Marshaler].
func (n Number) MarshalJSON() ([]byte, error) { return options.NumberJSON(string(n)) }

// varies reports whether the number depends on the request.
func (n Number) varies() bool { return strings.Contains(string(n), "{") }

// checkFactor checks the value of the option factor. A number that varies is only checked for matching braces.
func checkFactor(n Number) error {
	if n.varies() {
		return keys.CheckBraces("factor", string(n))
	}
	if keys.LacksBraces(string(n)) {
		return fmt.Errorf("factor %q is the name of a placeholder without its braces: write {%[1]s}", string(n))
	}
	if _, err := limiter.ParseFactor(string(n)); err != nil {
		return fmt.Errorf("factor %w: write for example 2, or a placeholder in braces", err)
	}
	return nil
}

// parseNumber parses a number, which the option checks.
func parseNumber(text string) (Number, error) { return Number(text), nil }

// costSum returns the sum of the option cost, or nil if there is none.
func costSum(n Number) (*cost.Sum, error) { return n.sum("cost") }

// settleCostSum returns the sum of cost in settle, or nil if there is none.
func settleCostSum(n Number) (*cost.Sum, error) {
	sum, err := n.sum("cost of settle")
	if sum != nil && sum.HasBounds() {
		err = fmt.Errorf("cost of settle %q has min or max: write them in cost, because settle charges what was used", n)
	}
	return sum, err
}

func checkCost(n Number) error {
	_, err := costSum(n)
	return err
}

func checkSettleCost(n Number) error {
	_, err := settleCostSum(n)
	return err
}

// sum parses a sum of numbers and placeholders. It returns nil if the number isn't set.
func (n Number) sum(option string) (*cost.Sum, error) {
	if n == "" {
		return nil, nil
	}
	sum, err := cost.Parse(string(n))
	if err != nil {
		return nil, fmt.Errorf("%s %q %w", option, string(n), err)
	}
	return sum, nil
}

// readSum reads a cost, which [costSum] or [settleCostSum] checks.
func readSum(d *caddyfile.Dispenser) (Number, error) {
	text, err := options.Words(d)
	return Number(text), err
}
