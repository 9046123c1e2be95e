package limiter

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
	"unsafe"
	"weak"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Nothing of a key is kept with its override, however long the key is and whatever it is part of.
func TestNothingOfAnOverriddenKeyIsKept(t *testing.T) {
	var known KnownOverrides
	header := func() weak.Pointer[[12_000]byte] {
		header := new([12_000]byte)
		for _, key := range []string{unsafe.String(&header[5], 7_000), unsafe.String(&header[5], 20)} {
			known.remember(key, KnownOverride{Override: &store.Override{Text: "{}"}})
		}
		return weak.Make(header)
	}()
	runtime.GC()
	if header.Value() != nil {
		t.Error("a key is kept")
	}
	for n := range 2 * maxKnownOverrides { // a flood of keys keeps out no new one
		text := fmt.Sprint(n)
		if known.remember(text, KnownOverride{Override: &store.Override{Text: text}}); known.Lookup(text).Text != text || len(known.byKey) > maxKnownOverrides {
			t.Fatalf("%d overrides are known, the last is %q, want %q", len(known.byKey), known.Lookup(text).Text, text)
		}
	}
}

// The smallest network around an address counts, as one finds it by trying them all.
func TestSmallestNetwork(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	address := func() netip.Addr { // few, so that networks hold them
		if r.IntN(2) == 0 {
			return netip.AddrFrom4([4]byte{byte(r.IntN(2)), byte(r.IntN(2)), byte(r.IntN(4)), byte(r.IntN(256))})
		}
		return netip.AddrFrom16([16]byte{0: 0x20, 7: byte(r.IntN(2)), 8: byte(r.IntN(4)), 15: byte(r.IntN(4))})
	}
	network := func() netip.Prefix {
		addr := address()
		p, _ := addr.Prefix(r.IntN(addr.BitLen() + 1))
		return p
	}
	found := 0
	for range 2000 {
		all := map[string]*LimitSet{"text": new(LimitSet)}
		for range r.IntN(12) {
			// An address may be written in two ways, but not in both.
			if p := network(); !p.IsSingleIP() || all[p.Addr().String()] == nil {
				all[p.String()] = new(LimitSet)
			}
			if a := address(); r.IntN(3) == 0 && all[netip.PrefixFrom(a, a.BitLen()).String()] == nil {
				all[a.String()] = new(LimitSet)
			}
		}
		o := NewOverrides(all)
		for range 20 {
			key := network()
			if r.IntN(2) == 0 {
				a := address()
				key = netip.PrefixFrom(a, a.BitLen())
			}
			var want *LimitSet
			longest := -1
			for text, terms := range all {
				p, ok := keys.ParseNetwork(text)
				if ok && p.Bits() <= key.Bits() && p.Contains(key.Addr()) && p.Bits() > longest {
					want, longest = terms, p.Bits()
				}
			}
			if want != nil {
				found++
			}
			if got := o.Lookup(key.String(), key); got != want {
				t.Fatalf("seed %d: %v of %v: %p, want %p", seed, key, all, got, want)
			}
			if o.Lookup(key.String(), netip.Prefix{}) != nil || o.Lookup("text", netip.Prefix{}) != all["text"] {
				t.Fatalf("seed %d: text counts as what it looks like", seed)
			}
		}
	}
	if found < 1000 {
		t.Errorf("only %d had an override", found)
	}
}

// The form of the key and the search for its override take no memory, unless the key has another
// form.
func TestKeysOfAddressesAllocateNothing(t *testing.T) {
	template := keys.NewKey("{http.vars.client_ip}", keys.Form{})
	o := NewOverrides(map[string]*LimitSet{"10.0.0.0/8": {}, "2001:db8::/32": {}, "10.1.2.0/24": {}, "text": {}})
	for _, value := range []string{"10.1.2.3", "203.0.113.255", "2001:db8:1:2:3:4:5:6", "fe80::1", "a-text", "sk_1234567890"} {
		if n := testing.AllocsPerRun(100, func() { o.Lookup(template.Normalize(value)) }); n > 0 {
			t.Errorf("%s: %v allocations", value, n)
		}
	}
	for _, text := range []string{"deadbeef-0123", "bob@example.com", "10.0.0.1", "2001:db8::/32"} {
		if n := testing.AllocsPerRun(100, func() { keys.IsNetwork(text) }); n > 0 {
			t.Errorf("%s: %v allocations to see what it looks like", text, n)
		}
	}
}
