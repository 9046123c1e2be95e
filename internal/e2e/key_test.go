package e2e

import (
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
)

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
zone prefixes {
	match path /prefixes
	key {header.A}
	ipv4_prefix 24
	ipv6_prefix 64
	gcra 100 1h
}
zone four {
	match path /four
	key {header.A}
	ipv4_prefix 16
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
		{"/prefixes", []string{"A", "192.0.2.1"}, 99},
		{"/prefixes", []string{"A", "192.0.2.200"}, 98},
		{"/prefixes", []string{"A", "::ffff:192.0.2.7"}, 97},
		{"/prefixes", []string{"A", "192.0.3.1"}, 99},
		{"/prefixes", []string{"A", "2001:db8::1"}, 99},
		{"/prefixes", []string{"A", "2001:db8::ffff:1"}, 98},
		{"/prefixes", []string{"A", "2001:db8:0:1::1"}, 99},
		{"/prefixes", []string{"A", "192.0.2.1 x"}, 99}, // not an address as a whole
		{"/four", []string{"A", "2001:db8::1"}, 99},
		{"/four", []string{"A", "2001:db8::2"}, 99},
		{"/four", []string{"A", "10.1.2.3"}, 99},
		{"/four", []string{"A", "10.1.9.9"}, 98},
		{"/static", nil, 99},
		{"/static", []string{"A", "x"}, 98},
	}
	for _, test := range tests {
		if got := remaining(test.path, test.header...); got != test.want {
			t.Errorf("%s %q: %d remaining, want %d", test.path, test.header, got, test.want)
		}
	}
}

// With hash_keys a key is neither in Redis nor in the log.
func TestHashKeys(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := caddytest.Start(t, caddytest.Site("zone api {\n key {header.X-Api-Key}\n gcra 1 1h 1\n}\nlog_key\nredis "+server.Addr+" {\n timeout 30s\n hash_keys {env.TEST_SECRET}\n batch 0\n}"))
	for _, status := range []int{200, 429} {
		c.Get(t, "/", "X-Api-Key", "sesame").Want(t, status)
	}
	c.WaitForLog(t, "rate limit exceeded")
	hashed := redisstore.HashedKey(caddytest.Secret, "sesame")
	if log := c.Logged(); !strings.Contains(log, hashed) || strings.Contains(log, "sesame") || strings.Contains(log, caddytest.Secret) {
		t.Errorf("the log lacks %s, or has the key or the secret", hashed)
	}
	for line := range strings.Lines(c.Logged()) { // keys can be made of them
		if strings.Contains(line, "rate limit exceeded") && (strings.Contains(line, `"path"`) || strings.Contains(line, `"host"`)) {
			t.Errorf("the log says host or path: %s", line)
		}
	}
	if names := server.Client.Keys(t.Context(), "caddy_rl:{*}:api:*").Val(); len(names) != 1 || !strings.Contains(names[0], hashed) {
		t.Errorf("budgets in Redis: %q", names)
	}
}

// With hash_keys neither a log line nor an event has an address in clear.
func TestHashKeysHidesAddresses(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := caddytest.Start(t, strings.Replace(addressed("key {client_ip}\ngcra 1 1h\nipv6_prefix 64", "log_key\nredis "+server.Addr+" {\n timeout 30s\n hash_keys {env.TEST_SECRET}\n}"),
		"servers {", "events {\n on rate_limit_exceeded test_record\n }\n servers {", 1))
	for _, status := range []int{200, 429} {
		c.Get(t, "/", "X-Forwarded-For", "203.0.113.99").Want(t, status)
	}
	c.WaitForLog(t, `"name":"rate_limit_exceeded"`)
	c.WaitForLog(t, "rate limit exceeded")
	for line := range strings.Lines(c.Logged()) {
		if strings.Contains(line, "203.0.113.99") || strings.Contains(line, "rate limit exceeded") && strings.Contains(line, "_ip") {
			t.Error(line)
		}
	}
}
