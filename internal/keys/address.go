package keys

import (
	"errors"
	"net/netip"
	"strconv"
	"strings"
)

// This file handles keys that are addresses. Clients can't choose the value of an address
// placeholder, so overrides of addresses apply only to its values. Other text that looks
// like an address is a key like any other.

// maskOf returns the bits of IPv4 and IPv6 addresses that count in a placeholder such as
// http.request.remote.host/24,64, and whether it is such a placeholder. More bits than an address
// has are an error: Caddy then gives an empty text, so all addresses of that family share one key.
func maskOf(placeholder string) (ipv4, ipv6 int, masked bool, err error) {
	bits, masked := strings.CutPrefix(placeholder, RemoteHost+"/")
	if !masked {
		return 0, 0, false, nil
	}
	four, six, two := strings.Cut(bits, ",")
	if !two {
		six = four
	}
	ipv4, err4 := strconv.Atoi(four)
	ipv6, err6 := strconv.Atoi(six)
	if err4 != nil || err6 != nil || ipv4 < 0 || ipv4 > 32 || ipv6 < 0 || ipv6 > 128 {
		err = errMask
	}
	return ipv4, ipv6, true, err
}

var errMask = errors.New("is empty for some addresses: write how many bits count of IPv4, up to 32, and of IPv6, up to 128, " +
	"such as {http.request.remote.host/24,64}")

// CheckMask returns an error if a placeholder masks addresses by more bits than they have.
func CheckMask(placeholder string) error {
	_, _, _, err := maskOf(placeholder)
	return err
}

// Normalize returns the key for an expanded text. Its case is folded if the zone has key_case. Each
// address is written in one way, and as a network if the zone has a prefix for its family. network
// is valid if the text comes from an address placeholder.
func (t *Template) Normalize(value string) (text string, network netip.Prefix) {
	if t.form.FoldCase {
		value = FoldCase(value)
	}
	if !t.Address && t.form.IPv4Prefix == 0 && t.form.IPv6Prefix == 0 || !maybeAddress(value) {
		return value, netip.Prefix{}
	}
	if t.masked {
		network, _ = netip.ParsePrefix(value)
		return value, network
	}
	addr, err := netip.ParseAddr(value)
	if err != nil {
		return value, netip.Prefix{}
	}
	if addr.Is4() && t.form.IPv4Prefix == 0 { // the usual case: an IPv4 address is written in one way only
		text, network = value, netip.PrefixFrom(addr, addr.BitLen())
	} else {
		text, network = t.FormatAddress(addr, value)
	}
	if !t.Address {
		return text, netip.Prefix{}
	}
	return text, network
}

// FormatAddress returns the key of an address: the address itself, or its network. If the key
// equals like, FormatAddress returns like and allocates no memory.
func (t *Template) FormatAddress(addr netip.Addr, like string) (text string, network netip.Prefix) {
	var buffer [64]byte
	b := buffer[:0]
	addr = addr.Unmap().WithZone("")
	if bits := t.Prefix(addr); bits == 0 {
		network = netip.PrefixFrom(addr, addr.BitLen())
		b = addr.AppendTo(b)
	} else {
		network, _ = addr.Prefix(bits)
		b = network.AppendTo(b)
	}
	if string(b) == like {
		return like, network
	}
	return string(b), network
}

// Prefix returns the prefix length of keys for addresses of this family; 0 for whole addresses.
func (t *Template) Prefix(addr netip.Addr) int {
	if addr.Is4() {
		return t.form.IPv4Prefix
	}
	return t.form.IPv6Prefix
}

// maybeAddress reports whether a text may be an address or a network. It is cheaper than the
// error of a failed parse.
func maybeAddress(text string) bool {
	for i := range min(len(text), 5) {
		switch c := text[i]; {
		case c == '.' || c == ':':
			return true
		case '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F':
		default:
			return false
		}
	}
	return false
}

// ParseNetwork reads an address or a network, however it is written. It returns an address
// as a network of one address.
func ParseNetwork(text string) (network netip.Prefix, ok bool) {
	if !maybeAddress(text) {
		return netip.Prefix{}, false
	}
	if !strings.Contains(text, "/") {
		addr, err := netip.ParseAddr(text)
		addr = addr.Unmap().WithZone("")
		return netip.PrefixFrom(addr, addr.BitLen()), err == nil
	}
	network, err := netip.ParsePrefix(text)
	if addr := network.Addr(); addr.Is4In6() && network.Bits() >= 96 {
		network = netip.PrefixFrom(addr.Unmap(), network.Bits()-96)
	}
	return network, err == nil
}

// IsNetwork reports whether a text is an address or a network.
func IsNetwork(text string) bool {
	_, ok := ParseNetwork(text)
	return ok
}
