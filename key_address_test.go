package ratelimit

import (
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/admin"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
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
		templates := test.zone.templates(test.zone.keys()...)
		text, network := templates[0].Normalize(test.value)
		got := ""
		if network.IsValid() {
			got = network.String()
		}
		if text != test.want || got != test.network {
			t.Errorf("%q of %q (ipv4_prefix %d, ipv6_prefix %d): %q and network %q, want %q and %q",
				test.value, test.zone.Key, test.zone.IPv4Prefix, test.zone.IPv6Prefix, text, got, test.want, test.network)
		}
		if again, _ := templates[0].Normalize(text); again != text {
			t.Errorf("%q becomes %q, and that %q", test.value, text, again)
		}
		errtest.Report(t, (&admin.Zone{Zone: &limiter.Zone{Keys: templates}}).CheckKey(text, admin.ForRequests), "the admin API denies", text)
	}
}
