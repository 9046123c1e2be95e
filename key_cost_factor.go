package ratelimit

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/dustin/go-humanize"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/bodies"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/cost"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/defaults"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/options"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/placeholder"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/shorthand"
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
	o := options.List("key", "{client_ip}", &c.Key, options.Text, func(k Key) error { return placeholder.CheckKey(k, false) })
	o.Check = func() error { return placeholder.CheckKey(c.Key, true) }
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

// templates returns texts that are like keys of the zone, ready to be expanded.
func (c *Zone) templates(texts ...string) (templates []keys.Template) {
	for _, text := range texts {
		templates = append(templates, keys.NewKey(text, keys.Form{IPv4Prefix: c.IPv4Prefix, IPv6Prefix: c.IPv6Prefix, FoldCase: c.foldsKeys()}))
	}
	return templates
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
	if shorthand.LacksBraces(string(n)) {
		return fmt.Errorf("factor %q is the name of a placeholder without its braces: write {%[1]s}", string(n))
	}
	if _, err := limiter.ParseFactor(string(n)); err != nil {
		return fmt.Errorf("factor %w: write for example 2, or a placeholder in braces", err)
	}
	return nil
}

// parseNumber parses a number, which the option checks.
func parseNumber(text string) (Number, error) { return Number(text), nil }

// settleCostSum returns the sum of cost in settle, or nil if there is none.
func settleCostSum(n Number) (*cost.Sum, error) {
	sum, err := n.sum("cost of settle")
	if err != nil || sum == nil {
		return nil, err
	}
	if _, fixed := sum.Fixed(); !fixed && sum.Most() == 0 {
		err = fmt.Errorf("cost of settle %q has a max of 0, so each response would cost nothing: write a max from 1 to %d, or cost 0",
			string(n), int64(cost.Max))
	}
	return sum, err
}

// checkSettleMax returns an error if max in settle is below what each request reserves. Then each response would give events
// back, and no true cost would ever count.
func (c *Zone) checkSettleMax() error {
	if c.Settle == nil || c.Cost == "" { // a request without cost reserves 1, and no max is below 1
		return nil
	}
	reserved, err := c.Cost.sum("cost")
	if err != nil {
		return err
	}
	settled, err := settleCostSum(c.Settle.Cost)
	if err != nil || settled == nil {
		return err
	}
	most, least := settled.Most(), reserved.Least()
	if _, fixed := settled.Fixed(); fixed || most >= least {
		return nil
	}
	return fmt.Errorf("cost of settle %q has a max of %d, but each request reserves at least %d with the zone's cost %q: "+
		"write a max from %d, or a lower cost", string(c.Settle.Cost), most, least, string(c.Cost), least)
}

// checkSum returns a check of the sum of an option.
func checkSum(option string) func(Number) error {
	return func(n Number) error { _, err := n.sum(option); return err }
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
	sum, err := cost.Parse(string(n), shorthand.LacksBraces)
	if err != nil {
		return nil, fmt.Errorf("%s %q %w", option, string(n), err)
	}
	return sum, nil
}

// readSum reads a cost, which [checkSum] or [checkSettleCost] checks.
func readSum(d *caddyfile.Dispenser) (Number, error) {
	text, err := options.Words(d)
	return Number(text), err
}

// MaxBody bounds the bodies that a zone reads.
type MaxBody struct {
	// The size of the largest body that the zone reads, 1 to 10485760 bytes. A request with a larger
	// body is denied with status 413 (default 65536).
	Bytes int64 `json:"bytes,omitempty" zero:"65536"`

	// Pass requests whose bodies can't be read, instead of denying them. All values from the body
	// are then empty. This applies to bodies that are too large, late, malformed or compressed, and
	// to bodies without room in memory (default false).
	Pass bool `json:"pass,omitempty"`
}

const (
	defaultMaxBody = 64 << 10
	largestMaxBody = 10 << 20
)

func checkMaxBody(m *MaxBody) error {
	if m.Bytes < 0 || m.Bytes > largestMaxBody {
		return options.Must("must be from 1 byte to 10MiB (%d), not %d", largestMaxBody, m.Bytes)
	}
	return nil
}

// unmarshalMaxBody reads max_body <bytes> [pass].
func unmarshalMaxBody(d *caddyfile.Dispenser) (*MaxBody, error) {
	args := d.RemainingArgs()
	if len(args) == 0 || len(args) > 2 || len(args) == 2 && args[1] != "pass" {
		return nil, options.Must("takes a number of bytes and optionally pass, not %q", strings.Join(args, " "))
	}
	n, err := humanize.ParseBytes(args[0])
	if err != nil || n == 0 || n > largestMaxBody {
		return nil, options.Must("must be from 1 byte to 10MiB (%d), not %q", largestMaxBody, args[0])
	}
	return &MaxBody{Bytes: int64(n), Pass: len(args) == 2}, nil
}

// compileBodyPolicy returns how the zone reads bodies. It has a timeout only if the zone denies each request whose body is
// late, because such a body can't be passed on.
func (c *Zone) compileBodyPolicy(enforce float64) bodies.Policy {
	p := bodies.Policy{Limit: defaultMaxBody, Timeout: cmp.Or(time.Duration(c.BodyTimeout), defaults.BodyTimeout)}
	if c.MaxBody != nil {
		p.Limit, p.Pass = cmp.Or(int(c.MaxBody.Bytes), defaultMaxBody), c.MaxBody.Pass
	}
	if p.Pass || enforce < 100 {
		p.Timeout = 0
	}
	return p
}

func (c *Zone) bodyNeeds() limiter.BodyNeeds {
	needs := limiter.BodyNeeds{Factor: limiter.BodyKindsOf(string(c.Factor)), Cost: limiter.BodyKindsOf(string(c.Cost))}
	if c.Plan != nil {
		needs.Plan = limiter.BodyKindsOf(c.Plan.By)
	}
	if c.Share != nil {
		needs.Share = limiter.BodyKindsOf(c.Share.By + string(c.Share.Weight))
	}
	for _, key := range c.keys() {
		needs.Keys = append(needs.Keys, limiter.BodyKindsOf(key))
	}
	return needs
}
