package ratelimit

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/options"
)

// checkOverrideKeys checks the keys of the zone's overrides.
func (c *Zone) checkOverrideKeys() error {
	known, knownTexts := make(map[netip.Prefix]string), make(map[string]string)
	onlyAddresses := !slices.ContainsFunc(c.templates(c.keys()...), func(t keys.Template) bool { return !t.Address })
	for _, key := range slices.Sorted(maps.Keys(c.Override)) {
		if err := checkOverrideText(key); err != nil {
			return err
		}
		network, ok := keys.ParseNetwork(key)
		if !ok && onlyAddresses && !isSocketKey(key) {
			return fmt.Errorf("override %q is not an address, but all keys of the zone are addresses, so it would never apply: "+
				"write an address or a network, such as 203.0.113.0/24", key)
		}
		if !ok {
			folded := c.foldKey(key)
			if other, there := knownTexts[folded]; there {
				return fmt.Errorf("override %q and override %q are for the same key, because key_case is lower: write one of them", other, key)
			}
			knownTexts[folded] = key
			continue
		}
		if err := c.checkOverrideNetwork(key, network); err != nil {
			return fmt.Errorf("override %w", err)
		}
		if other, there := known[network]; there {
			return fmt.Errorf("override %q and override %q are for the same address: write one of them", other, key)
		}
		known[network] = key
	}
	return nil
}

// isSocketKey reports whether a key may be that of a client of a unix socket. Such a client has no
// address, and an address placeholder gives an empty text or the path of the socket.
func isSocketKey(key string) bool { return key == "" || key[0] == '@' || key[0] == '/' }

// checkOverrideNetwork checks an override of an address or a network.
func (c *Zone) checkOverrideNetwork(key string, network netip.Prefix) error {
	if proper := network.Masked(); proper != network {
		return fmt.Errorf("%q is not a network: write %s", key, proper)
	}
	proper := network.String()
	if addr := network.Addr().String(); network.IsSingleIP() && !strings.Contains(key, "/") {
		proper = addr
	}
	if key != proper {
		return fmt.Errorf("%q is not the usual form of this address: write %s", key, proper)
	}
	longest, found := 0, false
	for _, t := range c.templates(c.keys()...) {
		if t.Address {
			longest, found = max(longest, cmp.Or(t.Prefix(network.Addr()), network.Addr().BitLen())), true
		}
	}
	if !found {
		return fmt.Errorf("%q is for addresses, but no value of key is just an address placeholder: write {client_ip} as a value of key, "+
			"or let these requests pass with exempt client_ip %s", key, key)
	}
	if network.Bits() > longest {
		around, _ := network.Addr().Prefix(longest)
		return fmt.Errorf("%q is narrower than the keys of the zone, which are networks: write %s", key, around)
	}
	return nil
}

// unmarshalOverride reads override <key> unlimited, or override <key> { <limits> }.
func (c *Zone) unmarshalOverride(d *caddyfile.Dispenser) error {
	if !d.NextArg() {
		return errors.New("override takes a key: write for example override 203.0.113.7 unlimited")
	}
	key := d.Val()
	if _, there := c.Override[key]; there {
		return fmt.Errorf("override %q is given twice: write it once", key)
	}
	set, err := unmarshalLimitSet(d, "override")
	if key == "unlimited" && errors.Is(err, errNoLimit) {
		return errors.New("override takes a key before unlimited: write for example override 203.0.113.7 unlimited, " +
			"or, if the key is an environment variable, set it")
	}
	if err != nil {
		return fmt.Errorf("override %q: %w", key, err)
	}
	if c.Override == nil {
		c.Override = make(map[string]*LimitSet)
	}
	c.Override[key] = set
	return nil
}

// checkOverrideText returns an error if the key of an override has a placeholder.
func checkOverrideText(key string) error {
	if open := strings.IndexByte(key, '{'); open >= 0 && strings.IndexByte(key[open:], '}') > 0 {
		return fmt.Errorf("override %q has a placeholder, which is not replaced here: write one key as it is, such as 203.0.113.7", key)
	}
	return nil
}

// storedOverride is an override as a store keeps it: as JSON.
type storedOverride struct {
	LimitSet
	// Until is when the override ends, by the clock of the instance that has set it. Zero means
	// never. It is only shown to people, because the store drops the override by its own clock.
	Until time.Time `json:"until,omitzero"`
}

// compileStored compiles a run-time override of the zone; see [limiter.Zone.CompileOverride].
func (z *liveZone) compileStored(text string) (set *limiter.LimitSet, until time.Time, err error) {
	var o storedOverride
	if err := options.DecodeStrictly([]byte(text), &o); err != nil {
		return nil, o.Until, fmt.Errorf("override: %w", err)
	}
	if set, err = o.LimitSet.compile(z.config, z.config.fixedFactor(), z.handler.StoreErrorPolicy); err != nil {
		return nil, o.Until, err
	}
	if err := z.checkWork(set); err != nil {
		return nil, o.Until, err
	}
	set.NameBudgets(z.Name, z.Keys)
	return set, o.Until, nil
}

// parseOverride reads the body of a request that sets a run-time override. It returns the override in the form that a
// store keeps, and how long the override lasts; 0 means without an end.
func parseOverride(body []byte) (text string, lasts time.Duration, err error) {
	var override struct {
		LimitSet
		TTL *caddy.Duration `json:"ttl"`
	}
	body, err = readLimitTexts(body)
	if err == nil {
		err = options.DecodeStrictly(body, &override)
	}
	if err != nil {
		return "", 0, fmt.Errorf(
			`the body: %w; write for example {"limits":["token_bucket 100 1m"],"ttl":"1h"} or {"unlimited":true}`, err)
	}
	o := storedOverride{LimitSet: override.LimitSet}
	if override.TTL != nil {
		if lasts = time.Duration(*override.TTL); lasts < time.Millisecond {
			return "", 0, fmt.Errorf(
				`ttl must be at least 1ms, not %v: write for example "1h" (a number is nanoseconds), or leave it out for no end`, lasts)
		}
		o.Until = adminapi.Instant(time.Now().Add(lasts))
	}
	stored, err := json.Marshal(o)
	return string(stored), lasts, err
}

// readLimitTexts returns the body of an override in which all limits are objects. Limits can be texts,
// too, such as "token_bucket 100 1m". The one text "unlimited" stands for no limits. A body that isn't
// JSON is returned as it is.
func readLimitTexts(body []byte) ([]byte, error) {
	var fields map[string]json.RawMessage
	var limits []json.RawMessage
	if json.Unmarshal(body, &fields) != nil || json.Unmarshal(fields["limits"], &limits) != nil {
		return body, nil
	}
	if len(limits) == 1 && string(bytes.TrimSpace(limits[0])) == `"unlimited"` && fields["unlimited"] == nil {
		delete(fields, "limits")
		fields["unlimited"] = []byte("true")
		return json.Marshal(fields)
	}
	for i, value := range limits {
		var text string
		if value[0] != '"' || json.Unmarshal(value, &text) != nil {
			continue
		}
		limit, err := parseLimitText(text)
		if err != nil {
			return nil, fmt.Errorf("limits[%d] %q: %w", i, text, err)
		}
		if limits[i], err = json.Marshal(limit); err != nil {
			return nil, err
		}
	}
	var err error
	if fields["limits"], err = json.Marshal(limits); err != nil {
		return nil, err
	}
	return json.Marshal(fields)
}

// parseLimitText reads a limit that is written as in a Caddyfile, or as operators see it.
func parseLimitText(text string) (l Limit, err error) {
	name, _, _ := strings.Cut(text, " ")
	if name == "unlimited" {
		return l, errors.New(`"unlimited" can't be combined with limits: write it alone`)
	}
	if algorithm, err := algorithms.Lookup(name); err == nil {
		text = algorithm.CaddyfileText(text)
	}
	tokens, err := caddyfile.Tokenize([]byte(text), "limit")
	if err != nil && !errors.Is(err, io.EOF) { // EOF is the error of an empty text
		return l, err
	}
	d := caddyfile.NewDispenser(tokens)
	if !d.Next() {
		return l, errors.New("it has no limit: write for example token_bucket 100 1m")
	}
	if l, err = unmarshalLimit(d, d.Val()); err != nil {
		return l, err
	}
	if d.Next() {
		return l, fmt.Errorf("%q follows the limit: write each limit in its own string", d.Val())
	}
	return l, nil
}

// Plan chooses limits by a value, such as the plan that a customer pays for.
type Plan struct {
	// The value that chooses the limits: text with placeholders, such as {http.auth.user.plan}.
	// It is required.
	By string `json:"by,omitempty"`

	// The limits for each value of by. At least one is required.
	Values map[string]*LimitSet `json:"values,omitempty"`

	// The limits for all other values, also for the empty one (default: the zone's limits).
	Default *LimitSet `json:"default,omitempty"`
}

// check checks the plan apart from its limits. zoneHasLimits reports whether the zone has limits
// besides.
func (p *Plan) check(zoneHasLimits bool) error {
	switch {
	case p.By == "":
		return errors.New("plan has no value: write for example plan {http.auth.user.plan}")
	case !strings.Contains(p.By, "{"):
		return fmt.Errorf("plan %q has no placeholder, so it is the same for all requests: "+
			"write for example plan {http.auth.user.plan}", p.By)
	case len(p.Values) == 0:
		return errors.New("plan has no plans: write at least one in its block, with limits in braces or as in free unlimited")
	case zoneHasLimits && p.Default != nil:
		return errors.New("both default and the limits of the zone are for values that plan doesn't list: write one of the two")
	case !zoneHasLimits && p.Default == nil:
		return errors.New("plan has no default, and the zone has no limits: " +
			"write default with limits in braces, or default unlimited, for all other values")
	}
	return keys.CheckBraces("plan", p.By)
}

// unmarshalPlan reads plan <placeholder> { <value> unlimited|{ <limits> } ... }.
func unmarshalPlan(d *caddyfile.Dispenser) (*Plan, error) {
	p := &Plan{Values: make(map[string]*LimitSet)}
	if !d.NextArg() {
		return nil, errors.New("plan takes a value: write for example plan {http.auth.user.plan}")
	}
	p.By = d.Val()
	if d.NextArg() {
		return nil, fmt.Errorf("plan takes one value, not also %q: write the plans in braces", d.Val())
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		name := d.Val()
		set, err := unmarshalLimitSet(d, "a plan")
		if err == nil && (p.Values[name] != nil || name == "default" && p.Default != nil) {
			err = errors.New("it is given twice: write it once")
		}
		if err != nil {
			return nil, options.WithPosition(d, fmt.Errorf("plan %q: %w", name, err))
		}
		if name == "default" {
			p.Default = set
		} else {
			p.Values[name] = set
		}
	}
	return p, nil
}
