package ratelimit

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
)

// A value of an address placeholder has one form, as an address or as its network. Other values are
// addresses only where the zone has a prefix.
func TestKeysOfAddresses(t *testing.T) {
	for _, test := range []struct {
		zone        Zone
		value, want string
		network     string // "" for none
	}{
		{Zone{Key: Key{"{http.vars.client_ip}"}}, "198.51.100.1", "198.51.100.1", "198.51.100.1/32"},
		{Zone{Key: Key{"{http.vars.client_ip}"}}, "::ffff:198.51.100.1", "198.51.100.1", "198.51.100.1/32"},
		{Zone{Key: Key{"{http.vars.client_ip}"}}, "::FFFF:c633:6401", "198.51.100.1", "198.51.100.1/32"},
		{Zone{Key: Key{"{http.vars.client_ip}"}}, "2001:0DB8:0::1", "2001:db8::1", "2001:db8::1/128"},
		{Zone{Key: Key{"{http.vars.client_ip}"}}, "2001:db8::1", "2001:db8::1", "2001:db8::1/128"},
		{Zone{Key: Key{"{http.request.remote.host}"}}, "fe80::1%eth0", "fe80::1", "fe80::1/128"},
		{Zone{Key: Key{"{http.request.remote.host}"}}, "@", "@", ""},
		{Zone{Key: Key{"{http.request.remote.host}"}}, "", "", ""},
		{Zone{Key: Key{"{http.request.remote.host}"}}, "1.2.3", "1.2.3", ""},
		{Zone{Key: Key{"{http.vars.client_ip}"}, IPv4Prefix: 24}, "::ffff:198.51.100.1", "198.51.100.0/24", "198.51.100.0/24"},
		{Zone{Key: Key{"{http.vars.client_ip}"}, IPv6Prefix: 64}, "::ffff:198.51.100.1", "198.51.100.1", "198.51.100.1/32"},
		{Zone{Key: Key{"{http.vars.client_ip}"}, IPv6Prefix: 64}, "2001:db8::1%eth0", "2001:db8::/64", "2001:db8::/64"},
		{Zone{Key: Key{"{http.vars.client_ip}"}, IPv4Prefix: 32}, "198.51.100.1", "198.51.100.1/32", "198.51.100.1/32"},
		{Zone{Key: Key{"{http.request.remote.host/24,64}"}, IPv4Prefix: 16}, "198.51.100.0/24", "198.51.100.0/24", "198.51.100.0/24"},
		{Zone{Key: Key{"{http.request.remote.host/24}"}}, "", "", ""},

		{Zone{Key: Key{"{http.request.header.K}"}}, "198.51.100.1", "198.51.100.1", ""},
		{Zone{Key: Key{"{http.request.header.K}"}}, "::ffff:198.51.100.1", "::ffff:198.51.100.1", ""},
		{Zone{Key: Key{"{http.request.header.K}"}, IPv4Prefix: 24}, "198.51.100.1", "198.51.100.0/24", ""},
		{Zone{Key: Key{"{http.request.header.K}"}, IPv4Prefix: 24}, "2001:DB8::1%x", "2001:db8::1", ""},
		{Zone{Key: Key{"{http.request.header.K}"}, IPv6Prefix: 64}, "::ffff:198.51.100.1", "198.51.100.1", ""},
		{Zone{Key: Key{"{http.request.header.K}"}, IPv6Prefix: 64}, "2001:DB8::1%x", "2001:db8::/64", ""},
		{Zone{Key: Key{"{http.request.header.K}"}, IPv4Prefix: 24}, "198.51.100.1/24", "198.51.100.1/24", ""},
		{Zone{Key: Key{"{http.vars.client_ip}|a"}, IPv4Prefix: 24}, "198.51.100.1|a", "198.51.100.1|a", ""},
	} {
		templates := test.zone.keyTemplates()
		text, network := templates[0].normalize(test.value)
		got := ""
		if network.IsValid() {
			got = network.String()
		}
		if text != test.want || got != test.network {
			t.Errorf("%q of %q (ipv4_prefix %d, ipv6_prefix %d): %q and network %q, want %q and %q",
				test.value, test.zone.Key, test.zone.IPv4Prefix, test.zone.IPv6Prefix, text, got, test.want, test.network)
		}
		if again, _ := templates[0].normalize(text); again != text {
			t.Errorf("%q becomes %q, and that %q", test.value, text, again)
		}
		if err := (&zone{keys: templates}).checkKey(text, false); err != nil {
			t.Errorf("the admin API denies a key that a request has: %v", err)
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
		all := map[string]*limitSet{"text": new(limitSet)}
		for range r.IntN(12) {
			// An address may be written in two ways, but not in both.
			if p := network(); !p.IsSingleIP() || all[p.Addr().String()] == nil {
				all[p.String()] = new(limitSet)
			}
			if a := address(); r.IntN(3) == 0 && all[netip.PrefixFrom(a, a.BitLen()).String()] == nil {
				all[a.String()] = new(limitSet)
			}
		}
		o := newOverrides(all)
		for range 20 {
			key := network()
			if r.IntN(2) == 0 {
				a := address()
				key = netip.PrefixFrom(a, a.BitLen())
			}
			var want *limitSet
			longest := -1
			for text, terms := range all {
				p, ok := parseNetwork(text)
				if ok && p.Bits() <= key.Bits() && p.Contains(key.Addr()) && p.Bits() > longest {
					want, longest = terms, p.Bits()
				}
			}
			if want != nil {
				found++
			}
			if got := o.lookup(key.String(), key); got != want {
				t.Fatalf("seed %d: %v of %v: %p, want %p", seed, key, all, got, want)
			}
			if o.lookup(key.String(), netip.Prefix{}) != nil || o.lookup("text", netip.Prefix{}) != all["text"] {
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
	zone := Zone{Key: Key{"{http.vars.client_ip}"}}
	template := zone.keyTemplates()[0]
	o := newOverrides(map[string]*limitSet{"10.0.0.0/8": {}, "2001:db8::/32": {}, "10.1.2.0/24": {}, "text": {}})
	for _, value := range []string{"10.1.2.3", "203.0.113.255", "2001:db8:1:2:3:4:5:6", "fe80::1", "a-text", "sk_1234567890"} {
		if n := testing.AllocsPerRun(100, func() { o.lookup(template.normalize(value)) }); n > 0 {
			t.Errorf("%s: %v allocations", value, n)
		}
	}
	for _, text := range []string{"deadbeef-0123", "bob@example.com", "10.0.0.1", "2001:db8::/32"} {
		if n := testing.AllocsPerRun(100, func() { isNetwork(text) }); n > 0 {
			t.Errorf("%s: %v allocations to see what it looks like", text, n)
		}
	}
}

// addressed is a site with a zone api, whose client_ip a request says in X-Forwarded-For.
func addressed(zone, use string) string {
	config := site("zone api {\n" + zone + "\n}\n" + use)
	return strings.Replace(config, "admin {$ADMIN}", "admin {$ADMIN}\n\tservers {\n\t\ttrusted_proxies static 127.0.0.1\n\t}", 1)
}

// wantOverridden asks until a request is denied, but no more often than that the limit of one
// can't have let all of them through.
func (c *caddyProcess) wantOverridden(t *testing.T, want bool, header ...string) {
	t.Helper()
	statuses := ""
	for range 3 {
		statuses += fmt.Sprint(c.get(t, "/", header...).StatusCode, " ")
	}
	if overridden := statuses == "200 200 200 "; overridden != want {
		t.Errorf("%q: %s, want an override: %t", header, statuses, want)
	}
}

// An override of an address or a network is for those who have it, not for those who say so.
func TestOverrideOfAddressCannotBeClaimed(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, use string) {
		c := startCaddy(t, addressed(`key {header.Authorization} {client_ip}
			ipv6_prefix 64
			gcra 1 1h
			runtime_overrides
			ban 1h after 100
			override 203.0.113.7/32 unlimited
			override 198.51.100.0/24 unlimited
			override friend unlimited`, use))
		c.operate(t, 204, "PUT", keyPath("192.0.2.1")+"/override", unlimitedOverride)
		c.operate(t, 204, "PUT", keyPath("2001:db8::/64")+"/override", unlimitedOverride)
		for _, address := range []string{"203.0.113.7", "198.51.100.9", "::ffff:198.51.100.9", "192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1"} {
			c.wantOverridden(t, true, "X-Forwarded-For", address)
			c.wantOverridden(t, false, "X-Forwarded-For", "10.0.0.1", "Authorization", address)
		}
		for _, claim := range []string{"203.0.113.7/32", "198.51.100.0/24", "2001:db8::/64", "198.51.100.1"} {
			c.wantOverridden(t, false, "X-Forwarded-For", "203.0.113.7", "Authorization", claim)
		}
		c.wantOverridden(t, true, "Authorization", "friend")
		c.wantOverridden(t, false, "X-Forwarded-For", "192.0.2.2")

		// The operator sees it so, too: the first key is the header's.
		v := seenKey(t, c, "203.0.113.7")
		wantRemaining(t, v, "1 gcra 1 1h: 0")
		if v.Override == nil || v.Override.From != "config" {
			t.Errorf("%+v", v.Override)
		}
		v = seenKey(t, c, "192.0.2.1")
		wantRemaining(t, v, "1 gcra 1 1h: 0")
		if v.Override == nil || v.Override.From != "runtime" {
			t.Errorf("%+v", v.Override)
		}
		// A key that only looks like an address is reset and banned like any key.
		c.operate(t, 204, "DELETE", keyPath("203.0.113.7"), "")
		c.get(t, "/", "Authorization", "203.0.113.7").want(t, 200)
		c.operate(t, 204, "PUT", keyPath("198.51.100.1")+"/ban", "")
		c.untilAt(t, "/", 429, "Authorization", "198.51.100.1").wantWait(t, 3600)
		c.operate(t, 204, "DELETE", keyPath("198.51.100.1")+"/ban", "")
	})
}

// The smallest network wins, in a zone whose keys are addresses and in one whose keys are
// networks.
func TestOverrideOfNetwork(t *testing.T) {
	t.Parallel()
	const overrides = `
		gcra 1 1h
		override 203.0.0.0/16 unlimited
		override 203.0.113.0/24 {
			gcra 2 1h
		}
		override 0.0.0.0/0 {
			gcra 3 1h
		}
		override 2001:db8::/32 unlimited`
	allowed := func(c *caddyProcess, address string) (n int) {
		for range 5 {
			if c.get(t, "/", "X-Forwarded-For", address).StatusCode == 200 {
				n++
			}
		}
		return n
	}
	c := startCaddy(t, addressed("key {client_ip}"+overrides, ""))
	for _, zone := range []string{
		"key {client_ip}" + overrides,
		"key {client_ip}\nipv4_prefix 24\nipv6_prefix 64" + overrides,
		"key {client_ip}\nipv6_prefix 128" + overrides + "\noverride 203.0.113.77 {\n gcra 4 1h\n}\nruntime_overrides",
	} {
		c.reload(t, addressed(zone, "# "+t.Name()))
		want := map[string]int{"203.0.113.1": 2, "::ffff:203.0.1.1": 5, "198.51.100.1": 3, "2001:db8::1": 5, "2001:db9::1": 1}
		if strings.Contains(zone, "overrides") {
			want["203.0.113.77"] = 4
			c.operate(t, 204, "PUT", keyPath("203.0.113.1")+"/override", `{"limits":[{"algorithm":"gcra","events":1,"window":"2h"}]}`)
			want["203.0.113.1"] = 1
		}
		for address, n := range want {
			if got := allowed(c, address); got != n {
				t.Errorf("%s\n%s is allowed %d requests, want %d", zone, address, got, n)
			}
		}
	}
	// Of the form that Caddy shortens, too: requests come from 127.0.0.1.
	for key, want := range map[string]int{
		"{http.request.remote.host/24}": 5, "{http.request.remote.host/24,64}": 5, "{remote_host}": 5, "{http.request.remote.host/8}": 1,
	} {
		override := "127.0.0.0/24"
		if want == 1 {
			override = "10.0.0.0/8"
		}
		c.reload(t, addressed("key "+key+"\nipv6_prefix 64\ngcra 1 3h\noverride "+override+" unlimited", ""))
		if got := allowed(c, ""); got != want {
			t.Errorf("%s: allowed %d requests, want %d", key, got, want)
		}
	}
}

// One client has one budget, however its address is written, with prefixes or without.
func TestOneAddressHasOneBudget(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, use string) {
		c := startCaddy(t, addressed("key {client_ip}\ngcra 2 1h", use))
		for i, prefix := range []string{"", "ipv6_prefix 64", "ipv4_prefix 24", "ipv4_prefix 32\nipv6_prefix 128"} {
			c.reload(t, addressed(fmt.Sprintf("key {client_ip}\ngcra 3 %dh\n%s", i+1, prefix), use))
			for n, address := range []string{"198.51.100.1", "::ffff:198.51.100.1", "::ffff:c633:6401", "198.51.100.1"} {
				want := 200
				if n == 3 {
					want = 429
				}
				c.get(t, "/", "X-Forwarded-For", address).want(t, want)
			}
			for n, address := range []string{"2001:db8::1", "2001:0DB8:0::1", "2001:db8::1%eth0", "2001:db8::1%eth1"} {
				want := 200
				if n == 3 {
					want = 429
				}
				c.get(t, "/", "X-Forwarded-For", address).want(t, want)
			}
		}
	})
}

// The admin API takes every key that a request can have, and says how the zone writes others.
func TestAdminKeysOfAddresses(t *testing.T) {
	t.Parallel()
	zone := func(name, key string) string {
		return fmt.Sprintf("zone %s {\n match path /%s\n key %s\n gcra 2 1h\n runtime_overrides\n ban 1h\n}\n", name, name, key)
	}
	c := startCaddy(t, site(zone("text", "{query.key}")+zone("both", "{query.key} {client_ip}")+
		zone("prefixed", "{query.key}\nipv4_prefix 24")+zone("api", "{client_ip}\nipv6_prefix 64")))
	for _, key := range []string{"10.0.0.1/8", "10.0.0.0/8", "10.0.0.1", "::ffff:10.0.0.1", "2001:DB8::1", "fe80::1%eth0", "1.2.3"} {
		for _, zone := range []string{"text", "both"} {
			path, request := "zones/"+zone+"/keys/"+url.PathEscape(key), "/"+zone+"?key="+url.QueryEscape(key)
			want := func(remaining string) {
				t.Helper()
				if got := limitsLeft(seen[adminapi.Key](t, c, path))[0]; !strings.HasSuffix(got, remaining) {
					t.Errorf("%s: %s, want %s", path, got, remaining)
				}
			}
			c.get(t, request).want(t, 200)
			want("gcra 2 1h: 1")
			c.operate(t, 204, "DELETE", path, "")
			want("gcra 2 1h: 2")
			c.operate(t, 204, "PUT", path+"/ban", "")
			c.get(t, request).wantWait(t, 3600)
			c.operate(t, 204, "DELETE", path+"/ban", "")
			c.operate(t, 204, "DELETE", path+"/override", "")
			c.get(t, request).want(t, 200)
		}
	}
	for _, test := range []struct{ request, says string }{
		{"GET api ::ffff:10.0.0.1", "write 10.0.0.1 "},
		{"DELETE api 10.0.0.1/32", "write 10.0.0.1 "},
		{"GET api 10.0.0.1/8", "wider than the keys of the zone: write one of them, such as 10.0.0.1;"},
		{"GET api 2001:db8::1", "write 2001:db8::/64 "},
		{"GET api 2001:DB8::/64", "write 2001:db8::/64 "},
		{"GET api 2001:db8::/80", "write 2001:db8::/64 "},
		{"GET api fe80::1%eth0", "write fe80::/64 "},
		{"PUT api 2001:db8::/48 override", "wider than the keys of the zone: write one of them, such as 2001:db8::/64; overrides in the conf"},
		{"PUT api ::ffff:10.0.0.1 override", "write 10.0.0.1 "},
		{"PUT api ::ffff:10.0.0.1 ban", "write 10.0.0.1 "},
		{"PUT both 10.0.0.0/8 override", "wider than the keys of the zone: write one of them, such as 10.0.0.0;"},
		{"PUT both ::ffff:10.0.0.1 override", "write 10.0.0.1 "},
		{"PUT text 10.0.0.1 override", "no value of the zone's key is an address placeholder alone"},
		{"PUT prefixed 10.0.0.0/24 override", "no value of the zone's key is an address placeholder alone"},
		{"GET prefixed 10.0.0.1", "write 10.0.0.0/24 "},
		{"GET prefixed ::ffff:10.0.0.1", "write 10.0.0.0/24 "},
		{"GET prefixed 2001:DB8::1", "write 2001:db8::1 "},
	} {
		parts := append(strings.Fields(test.request), "")
		path := "zones/" + parts[1] + "/keys/" + url.PathEscape(parts[2])
		if parts[3] != "" {
			path += "/" + parts[3]
		}
		if r := c.operate(t, 400, parts[0], path, unlimitedOverride); !strings.Contains(r.body, test.says) {
			t.Errorf("%s: %s, want %q", test.request, r.body, test.says)
		}
	}
	for _, request := range []string{
		"both 10.0.0.1", "both 2001:db8::1", "both a text", "api 10.0.0.1", "api 2001:db8::/64", "api @", "text 1.2.3",
	} {
		zone, key, _ := strings.Cut(request, " ")
		c.operate(t, 204, "PUT", "zones/"+zone+"/keys/"+url.PathEscape(key)+"/override", unlimitedOverride)
	}
}

// An override that no key of the zone can have is an error. Clients of a unix socket have no
// address.
func TestOverrideThatNeverApplies(t *testing.T) {
	for _, test := range []struct {
		key, override string
		ok            bool
	}{
		{"{http.vars.client_ip}", "private_ranges", false},
		{"{http.vars.client_ip}", "192.0.2.0/33", false},
		{"{http.vars.client_ip}", "192.0.2.1-192.0.2.9", false},
		{"{http.request.remote.host/24,64}", "fe80::1%eth0/64", false},
		{"{http.vars.client_ip}", "", true},
		{"{http.request.remote.host}", "@", true},
		{"{http.request.remote.host}", "/run/caddy.sock", true},
		{"{http.request.header.Api-Key}", "private_ranges", true},
		{"{http.vars.client_ip}|{http.request.uri.path}", "192.0.2.1|/", true},
	} {
		err := validate(handlerConfig(fmt.Sprintf(`{"handler":"rate_limit","rate_limits":{"a":{"key":%q,"max_events":1,"window":"1s","override":{%q:{"unlimited":true}}}}}`,
			test.key, test.override)))
		if test.ok != (err == nil) || err != nil && !strings.Contains(err.Error(), "so it would never apply") {
			t.Errorf("%s, override %q: %v", test.key, test.override, err)
		}
	}
}
