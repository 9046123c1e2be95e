package e2e

import (
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
