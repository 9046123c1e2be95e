package e2e

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// addressed is a site with a zone api, whose client_ip a request says in X-Forwarded-For.
func addressed(zone, use string) string {
	config := caddytest.Site("zone api {\n" + zone + "\n}\n" + use)
	return strings.Replace(config, "admin {$ADMIN}", "admin {$ADMIN}\n\tservers {\n\t\ttrusted_proxies static 127.0.0.1\n\t}", 1)
}

// wantOverridden asks until a request is denied, but no more often than that the limit of one
// can't have let all of them through.
func wantOverridden(t *testing.T, c *caddytest.Caddy, want bool, header ...string) {
	t.Helper()
	statuses := ""
	for range 3 {
		statuses += fmt.Sprint(c.Get(t, "/", header...).StatusCode, " ")
	}
	if overridden := statuses == "200 200 200 "; overridden != want {
		t.Errorf("%q: %s, want an override: %t", header, statuses, want)
	}
}

// An override of an address or a network is for those who have it, not for those who say so.
func TestOverrideOfAddressCannotBeClaimed(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		c := caddytest.Start(t, addressed(`key {header.Authorization} {client_ip}
			ipv6_prefix 64
			gcra 1 1h
			runtime_overrides
			ban 1h after 100
			override 203.0.113.7/32 unlimited
			override 198.51.100.0/24 unlimited
			override friend unlimited`, use))
		c.Operate(t, 204, "PUT", keyPath("192.0.2.1")+"/override", unlimitedOverride)
		c.Operate(t, 204, "PUT", keyPath("2001:db8::/64")+"/override", unlimitedOverride)
		for _, address := range []string{"203.0.113.7", "198.51.100.9", "::ffff:198.51.100.9", "192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1"} {
			wantOverridden(t, c, true, "X-Forwarded-For", address)
			wantOverridden(t, c, false, "X-Forwarded-For", "10.0.0.1", "Authorization", address)
		}
		for _, claim := range []string{"203.0.113.7/32", "198.51.100.0/24", "2001:db8::/64", "198.51.100.1"} {
			wantOverridden(t, c, false, "X-Forwarded-For", "203.0.113.7", "Authorization", claim)
		}
		wantOverridden(t, c, true, "Authorization", "friend")
		wantOverridden(t, c, false, "X-Forwarded-For", "192.0.2.2")

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
		c.Operate(t, 204, "DELETE", keyPath("203.0.113.7"), "")
		c.Get(t, "/", "Authorization", "203.0.113.7").Want(t, 200)
		c.Operate(t, 204, "PUT", keyPath("198.51.100.1")+"/ban", "")
		c.UntilAt(t, "/", 429, "Authorization", "198.51.100.1").WantWait(t, 3600)
		c.Operate(t, 204, "DELETE", keyPath("198.51.100.1")+"/ban", "")
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
	allowed := func(c *caddytest.Caddy, address string) (n int) {
		for range 5 {
			if c.Get(t, "/", "X-Forwarded-For", address).StatusCode == 200 {
				n++
			}
		}
		return n
	}
	c := caddytest.Start(t, addressed("key {client_ip}"+overrides, ""))
	for _, zone := range []string{
		"key {client_ip}" + overrides,
		"key {client_ip}\nipv4_prefix 24\nipv6_prefix 64" + overrides,
		"key {client_ip}\nipv6_prefix 128" + overrides + "\noverride 203.0.113.77 {\n gcra 4 1h\n}\nruntime_overrides",
	} {
		c.Reload(t, addressed(zone, "# "+t.Name()))
		want := map[string]int{"203.0.113.1": 2, "::ffff:203.0.1.1": 5, "198.51.100.1": 3, "2001:db8::1": 5, "2001:db9::1": 1}
		if strings.Contains(zone, "overrides") {
			want["203.0.113.77"] = 4
			c.Operate(t, 204, "PUT", keyPath("203.0.113.1")+"/override", `{"limits":[{"algorithm":"gcra","events":1,"window":"2h"}]}`)
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
		c.Reload(t, addressed("key "+key+"\nipv6_prefix 64\ngcra 1 3h\noverride "+override+" unlimited", ""))
		if got := allowed(c, ""); got != want {
			t.Errorf("%s: allowed %d requests, want %d", key, got, want)
		}
	}
}

// One client has one budget, however its address is written, with prefixes or without.
func TestOneAddressHasOneBudget(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		c := caddytest.Start(t, addressed("key {client_ip}\ngcra 2 1h", use))
		for i, prefix := range []string{"", "ipv6_prefix 64", "ipv4_prefix 24", "ipv4_prefix 32\nipv6_prefix 128"} {
			c.Reload(t, addressed(fmt.Sprintf("key {client_ip}\ngcra 3 %dh\n%s", i+1, prefix), use))
			for n, address := range []string{"198.51.100.1", "::ffff:198.51.100.1", "::ffff:c633:6401", "198.51.100.1"} {
				want := 200
				if n == 3 {
					want = 429
				}
				c.Get(t, "/", "X-Forwarded-For", address).Want(t, want)
			}
			for n, address := range []string{"2001:db8::1", "2001:0DB8:0::1", "2001:db8::1%eth0", "2001:db8::1%eth1"} {
				want := 200
				if n == 3 {
					want = 429
				}
				c.Get(t, "/", "X-Forwarded-For", address).Want(t, want)
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
	c := caddytest.Start(t, caddytest.Site(zone("text", "{query.key}")+zone("both", "{query.key} {client_ip}")+
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
			c.Get(t, request).Want(t, 200)
			want("gcra 2 1h: 1")
			c.Operate(t, 204, "DELETE", path, "")
			want("gcra 2 1h: 2")
			c.Operate(t, 204, "PUT", path+"/ban", "")
			c.Get(t, request).WantWait(t, 3600)
			c.Operate(t, 204, "DELETE", path+"/ban", "")
			c.Operate(t, 204, "DELETE", path+"/override", "")
			c.Get(t, request).Want(t, 200)
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
		if r := c.Operate(t, 400, parts[0], path, unlimitedOverride); !strings.Contains(r.Text, test.says) {
			t.Errorf("%s: %s, want %q", test.request, r.Text, test.says)
		}
	}
	for _, request := range []string{
		"both 10.0.0.1", "both 2001:db8::1", "both a text", "api 10.0.0.1", "api 2001:db8::/64", "api @", "text 1.2.3",
	} {
		zone, key, _ := strings.Cut(request, " ")
		c.Operate(t, 204, "PUT", "zones/"+zone+"/keys/"+url.PathEscape(key)+"/override", unlimitedOverride)
	}
}
