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
	// The prefix lengths of the networks in byNetwork, in descending order.
	ipv4, ipv6 []int
}

func newOverrides(all map[string]*limitSet) overrides {
	o := overrides{all: all, byText: make(map[string]*limitSet), byNetwork: make(map[netip.Prefix]*limitSet)}
	for key, set := range all {
		network, ok := parseNetwork(key)
		if !ok {
			o.byText[key] = set
			continue
		}
		o.byNetwork[network] = set
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

// lengths returns ipv4 or ipv6, by the family of the network.
func (o *overrides) lengths(network netip.Prefix) *[]int {
	if network.Addr().Is4() {
		return &o.ipv4
	}
	return &o.ipv6
}

// lookup returns the limits of a key, or nil if it has no override. network is the key as a
// network, if the key comes from an address placeholder. Then the override of the smallest network
// that contains it applies.
func (o *overrides) lookup(text string, network netip.Prefix) *limitSet {
	if !network.IsValid() {
		return o.byText[text]
	}
	for _, bits := range *o.lengths(network) {
		if bits > network.Bits() {
			continue
		}
		around, _ := network.Addr().Prefix(bits)
		if set := o.byNetwork[around]; set != nil {
			return set
		}
	}
	return nil
}

// acceptsOverride reports whether an override can apply to the keys of this template. isAddress
// reports whether the override is for an address or a network.
func (t *keyTemplate) acceptsOverride(isAddress bool) bool { return t.address || !isAddress }

// mayHaveRuntimeOverride reports whether an override set at run time may apply to a key.
func (z *zone) mayHaveRuntimeOverride(key requestKey) bool {
	return z.runtimeOverrides && (key.network.IsValid() || !isNetwork(key.text))
}

// isNetwork reports whether a text is an address or a network.
func isNetwork(text string) bool {
	_, ok := parseNetwork(text)
	return ok
}

// checkOverrideKeys checks the keys of the zone's overrides.
func (c *Zone) checkOverrideKeys() error {
	known, knownTexts := make(map[netip.Prefix]string), make(map[string]string)
	onlyAddresses := !slices.ContainsFunc(c.keyTemplates(), func(t keyTemplate) bool { return !t.address })
	for _, key := range slices.Sorted(maps.Keys(c.Override)) {
		if err := checkOverrideText(key); err != nil {
			return err
		}
		network, ok := parseNetwork(key)
		if !ok && onlyAddresses && !isSocketKey(key) {
			return fmt.Errorf("override %q is no address, and the keys of the zone are addresses alone, so it would never apply: "+
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
