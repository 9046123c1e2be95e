package ratelimit

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// overrides are the overrides of the configuration.
type overrides struct {
	all       map[string]*limitSet // as configured
	byText    map[string]*limitSet
	byNetwork map[netip.Prefix]*limitSet
	// The lengths of the prefixes in byNetwork, the longest first.
	ipv4, ipv6 []int
}

func newOverrides(all map[string]*limitSet) overrides {
	o := overrides{all: all, byText: make(map[string]*limitSet), byNetwork: make(map[netip.Prefix]*limitSet)}
	for key, t := range all {
		network, ok := parseNetwork(key)
		if !ok {
			o.byText[key] = t
			continue
		}
		o.byNetwork[network] = t
		lengths := o.lengths(network)
		if !slices.Contains(*lengths, network.Bits()) {
			*lengths = append(*lengths, network.Bits())
		}
	}
	for _, lengths := range [][]int{o.ipv4, o.ipv6} {
		slices.SortFunc(lengths, func(a, b int) int { return cmp.Compare(b, a) })
	}
	return o
}

func (o *overrides) lengths(network netip.Prefix) *[]int {
	if network.Addr().Is4() {
		return &o.ipv4
	}
	return &o.ipv6
}

// lookup returns the limits of a key, or nil if there is no override. For an address or a network,
// they are those of the smallest network around it.
func (o *overrides) lookup(text string, network netip.Prefix) *limitSet {
	if !network.IsValid() {
		return o.byText[text]
	}
	for _, bits := range *o.lengths(network) {
		if bits > network.Bits() {
			continue
		}
		around, _ := network.Addr().Prefix(bits)
		if t := o.byNetwork[around]; t != nil {
			return t
		}
	}
	return nil
}

// overridable reports whether an override applies to the keys of this template; address is
// set if the override is for an address.
func (t *keyTemplate) overridable(address bool) bool { return t.address || !address }

// looksUp reports whether an override set at run time may apply to a key.
func (z *zone) looksUp(key requestKey) bool {
	return z.overridable && (key.network.IsValid() || !looksLikeAddress(key.text))
}

func looksLikeAddress(text string) bool {
	_, ok := parseNetwork(text)
	return ok
}

// checkOverrideKeys checks the keys of the zone's overrides.
func (c *Zone) checkOverrideKeys() error {
	known := make(map[netip.Prefix]string)
	all := !slices.ContainsFunc(c.keyTemplates(), func(t keyTemplate) bool { return !t.address })
	for _, key := range slices.Sorted(maps.Keys(c.Override)) {
		if err := checkLiteral(key); err != nil {
			return err
		}
		network, ok := parseNetwork(key)
		if !ok && all && !isSocket(key) {
			return fmt.Errorf("override %q is no address, and the keys of the zone are addresses alone, so it would never apply: "+
				"write an address or a network, such as 203.0.113.0/24", key)
		}
		if !ok {
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

// isSocket reports whether a key may be what address placeholders give for the clients of a
// unix socket, which have no address.
func isSocket(key string) bool { return key == "" || key[0] == '@' || key[0] == '/' }

// checkOverrideNetwork checks an override of an address or a network.
func (c *Zone) checkOverrideNetwork(key string, network netip.Prefix) error {
	if proper := network.Masked(); proper != network {
		return fmt.Errorf("%q is no network: write %s", key, proper)
	}
	proper := network.String()
	if addr := network.Addr().String(); network.IsSingleIP() && !strings.Contains(key, "/") {
		proper = addr
	}
	if key != proper {
		return fmt.Errorf("%q is not the usual form of this address: write %s", key, proper)
	}
	longest, found := 0, false
	for _, t := range c.keyTemplates() {
		if t.address {
			longest, found = max(longest, cmp.Or(t.prefix(network.Addr()), network.Addr().BitLen())), true
		}
	}
	if !found {
		return fmt.Errorf("%q is for addresses, and no value of key is an address placeholder alone: write {client_ip} as a value of key, "+
			"or leave these requests out of the zone with match not client_ip %s", key, key)
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
		return fmt.Errorf("override %q is there twice: write it once", key)
	}
	t, err := unmarshalLimitSet(d, "override")
	if err != nil {
		return fmt.Errorf("override %q: %w", key, err)
	}
	if c.Override == nil {
		c.Override = make(map[string]*LimitSet)
	}
	c.Override[key] = t
	return nil
}
