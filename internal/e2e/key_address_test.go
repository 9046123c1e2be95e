package e2e

import (
	"cmp"
	"fmt"
	"net/url"
	"strings"
	"testing"

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
	c := caddytest.Start(t, addressed(`key {header.Authorization} {client_ip}
			ipv6_prefix 64
			gcra 1 1h
			runtime_overrides
			ban 1h after 100
			override 203.0.113.7/32 unlimited
			override 198.51.100.0/24 unlimited
			override friend unlimited`, ""))
	c.Operate(t, 204, "PUT", overridePath("192.0.2.1"), unlimitedOverride)
	c.Operate(t, 204, "PUT", overridePath("2001:db8::/64"), unlimitedOverride)
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
	c.Operate(t, 204, "PUT", banPath("198.51.100.1"), "")
	c.UntilAt(t, "/", 429, "Authorization", "198.51.100.1").WantWait(t, 3600)
	c.Operate(t, 204, "DELETE", banPath("198.51.100.1"), "")
}

// The admin API says how a zone writes a key. TestAdminStrangeKeys and TestKeysOfAddresses show that it takes each key of a request.
func TestAdminKeysOfAddresses(t *testing.T) {
	t.Parallel()
	zone := func(name, key string) string {
		return fmt.Sprintf("zone %s {\n match path /%s\n key %s\n gcra 2 1h\n runtime_overrides\n ban 1h\n}\n", name, name, key)
	}
	c := caddytest.Start(t, caddytest.Site(zone("text", "{query.key}")+zone("both", "{query.key} {client_ip}")+
		zone("prefixed", "{query.key}\nipv4_prefix 24")+zone("api", "{client_ip}\nipv6_prefix 64")))
	for _, test := range []struct{ request, says string }{
		{"GET api ::ffff:10.0.0.1", `write 10.0.0.1"`},
		{"DELETE api 10.0.0.1/32", `write 10.0.0.1"`},
		{"GET api 10.0.0.1/8", "wider than the keys of the zone: write one of them, such as 10.0.0.1;"},
		{"GET api 2001:db8::1", `write 2001:db8::/64"`},
		{"GET api 2001:DB8::/64", `write 2001:db8::/64"`},
		{"GET api 2001:db8::/80", `write 2001:db8::/64"`},
		{"GET api fe80::1%eth0", `write fe80::/64"`},
		{"PUT api 2001:db8::/48 override", "wider than the keys of the zone: write one of them, such as 2001:db8::/64; overrides in the conf"},
		{"PUT api ::ffff:10.0.0.1 override", `write 10.0.0.1"`},
		{"PUT api ::ffff:10.0.0.1 ban", `write 10.0.0.1"`},
		{"PUT both 10.0.0.0/8 override", "wider than the keys of the zone: write one of them, such as 10.0.0.0;"},
		{"PUT both ::ffff:10.0.0.1 override", `write 10.0.0.1"`},
		{"PUT text 10.0.0.1 override", "no value of the zone's key is an address placeholder alone"},
		{"PUT prefixed 10.0.0.0/24 override", "no value of the zone's key is an address placeholder alone"},
		{"GET prefixed 10.0.0.1", `write 10.0.0.0/24"`},
		{"GET prefixed ::ffff:10.0.0.1", `write 10.0.0.0/24"`},
		{"GET prefixed 2001:DB8::1", `write 2001:db8::1"`},
	} {
		parts := append(strings.Fields(test.request), "")
		path := "zones/" + parts[1] + "/" + cmp.Or(parts[3], "keys") + "?key=" + url.QueryEscape(parts[2])
		if r := c.Operate(t, 400, parts[0], path, unlimitedOverride); !strings.Contains(r.Text, test.says) {
			t.Errorf("%s: %s, want %q", test.request, r.Text, test.says)
		}
	}
	for _, request := range []string{
		"both 10.0.0.1", "both 2001:db8::1", "both a text", "api 10.0.0.1", "api 2001:db8::/64", "api @", "text 1.2.3",
	} {
		zone, key, _ := strings.Cut(request, " ")
		c.Operate(t, 204, "PUT", "zones/"+zone+"/override?key="+url.QueryEscape(key), unlimitedOverride)
	}
}
