package e2e

import (
	"cmp"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
)

// TestKeysOfAddresses has prefixes.
func TestKeys(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, caddytest.Site(`
zone one {
	match path /one
	key {header.A}
	gcra 100 1h
}
zone alternatives {
	match path /alternatives
	key "{header.A}|{header.B}" {header.A} {header.C}
	gcra 100 1h
}
zone static {
	match path /static
	gcra 100 1h
}`))
	remaining := func(path string, header ...string) int {
		t.Helper()
		r := c.Get(t, path, header...)
		_, rest, _ := strings.Cut(r.Field("RateLimit"), ";r=")
		n, err := strconv.Atoi(strings.SplitN(rest, ";", 2)[0])
		if err != nil {
			t.Fatal(r.Field("RateLimit"))
		}
		return n
	}
	tests := []struct {
		path   string
		header []string
		want   int
	}{
		{"/one", []string{"A", "x"}, 99},
		{"/one", []string{"A", "x"}, 98},
		{"/one", []string{"A", "X"}, 99},
		{"/one", nil, 99}, // an empty placeholder: one budget for all without it
		{"/one", []string{"A", ""}, 98},
		{"/alternatives", []string{"A", "x", "B", "y"}, 99},
		{"/alternatives", []string{"A", "x"}, 99},
		{"/alternatives", []string{"C", "x"}, 99}, // the same text, by another alternative
		{"/alternatives", []string{"C", "x|y"}, 99},
		{"/alternatives", []string{"A", "x", "C", "other"}, 98},
		{"/alternatives", nil, 99}, // the last alternative, empty
		{"/static", nil, 99},
		{"/static", []string{"A", "x"}, 98},
	}
	for _, test := range tests {
		if got := remaining(test.path, test.header...); got != test.want {
			t.Errorf("%s %q: %d remaining, want %d", test.path, test.header, got, test.want)
		}
	}
}

// With hash_keys no key is seen, and nothing that it is made of: in Redis, the log, events, metrics and the admin API. All have
// the same HMAC. The admin API finds a key that is asked for. The case of a key is folded before.
func TestHashKeys(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	config := addressed("key {header.X-Key} {client_ip}\nipv6_prefix 64\nkey_case lower\ncalendar 2 year\nnotify 50%\nruntime_overrides\nban 1h after 2\noverride OFFICE unlimited",
		"log_key\nredis "+server.Addr+" {\n timeout 30s\n hash_keys {env.TEST_SECRET}\n batch 0\n}")
	c := caddytest.Start(t, onEvents(config, "test_record"))
	long := strings.Repeat("long", 500)
	for _, key := range []string{"Sesame", long, ""} {
		for _, status := range []int{200, 200, 429, 429} {
			c.Get(t, "/", "X-Key", key, "X-Forwarded-For", "203.0.113.99").Want(t, status)
		}
		c.Operate(t, 204, "PUT", "zones/api/override?key="+key, unlimitedOverride)
	}
	hashed := redisstore.HashedKey(caddytest.Secret, "sesame")
	for _, name := range []string{caddytest.EventExceeded, caddytest.EventBanned} {
		waitForEvent(t, c, name, nil).wantFields(t, "remote_ip", "client_ip", "host", "path")
	}
	waitForEvent(t, c, caddytest.EventThreshold, map[string]any{"percent": 50.0, "key": hashed})
	c.WaitForLog(t, "rate limit exceeded")
	c.WaitForLog(t, `"a key has used a share of its limit"`)
	places := map[string]string{
		"Redis": strings.Join(server.Client.Keys(t.Context(), "caddy_rl:*").Val(), " "), "metrics": c.Metrics(t),
	}
	for _, path := range []string{"top", "bans", "overrides"} {
		places[path] = c.Operate(t, 200, "GET", "zones/api/"+path, "").Text
		if n := strings.Count(places[path], `"hashed_key":`); n < 3 || !strings.Contains(places[path], hashed) {
			t.Errorf("%s: %s, want 3 hashed keys with %s", path, places[path], hashed)
		}
	}
	places["zones"] = c.Operate(t, 200, "GET", "zones", "").Text
	for line := range strings.Lines(c.Logged()) {
		if strings.Contains(line, "rate_limit") && !strings.Contains(line, `"logger":"admin`) {
			places["log"] += line
		}
	}
	for place, text := range places {
		for _, secret := range []string{"sesame", "Sesame", long[:100], "office", "OFFICE", "203.0.113.99", caddytest.Secret} {
			if strings.Contains(text, secret) {
				t.Errorf("%q is in %s: %s", secret, place, text)
			}
		}
		if place != "metrics" && place != "zones" && !strings.Contains(text, hashed) {
			t.Errorf("%s lacks %s: %s", place, hashed, text)
		}
	}
	if !strings.Contains(places["zones"], redisstore.HashedKey(caddytest.Secret, "office")) {
		t.Errorf("the zone has the overrides %s", places["zones"])
	}
	if v := seenKey(t, c, "sesame"); !v.Budgets[0].Ban.Banned || v.Override == nil {
		t.Errorf("by its key: %+v", v)
	}
}

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
		{"PUT text 10.0.0.1 override", "no value of the zone's key is just an address placeholder"},
		{"PUT prefixed 10.0.0.0/24 override", "no value of the zone's key is just an address placeholder"},
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
