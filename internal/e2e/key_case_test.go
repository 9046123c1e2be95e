package e2e

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// With key_case lower, the case of a key doesn't count for requests, overrides and operators.
func TestKeyCase(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		c := caddytest.Start(t, caddytest.Site("zone api {\n key {query.user} {query.key}\n key_case lower\n gcra 3 1h\n override ÉMILE unlimited\n runtime_overrides\n ban 1h after 9\n}\n"+use))
		get := func(key string, status int) {
			t.Helper()
			c.Get(t, "/?user="+url.QueryEscape(key)).Want(t, status)
		}
		wantKey := func(key string, budgets ...string) {
			t.Helper()
			v := seen[adminapi.Key](t, c, keyPath(key))
			if v.Key != "alice" {
				t.Errorf("the key is %q, want alice", v.Key)
			}
			wantRemaining(t, v, budgets...)
		}
		get("Alice", 200)
		get("aLICE", 200)
		wantKey("ALICE", "1 gcra 3 1h: 1", "2 gcra 3 1h: 3")
		get("alice", 200)
		get("ALICE", 429)
		get("alicia", 200)
		c.Get(t, "/?key=Alice").Want(t, 200) // of the second value, which has budgets of its own
		wantKey("Alice", "1 gcra 3 1h: 0", "2 gcra 3 1h: 2")
		for range 4 {
			get("Émile", 200)
			get("émile", 200)
		}

		c.Operate(t, 204, "DELETE", keyPath("ALICE"), "")
		wantKey("alice", "1 gcra 3 1h: 3", "2 gcra 3 1h: 3")
		get("Alice", 200)
		c.Operate(t, 204, "PUT", keyPath("Alice")+"/ban", "")
		get("aLICE", 429)
		c.Operate(t, 204, "DELETE", keyPath("aLice")+"/ban", "")
		get("aLICE", 200)
		c.Operate(t, 204, "PUT", keyPath("ALICE")+"/override", unlimitedOverride)
		for range 4 {
			get("Alice", 200)
		}
		c.Operate(t, 204, "DELETE", keyPath("AliCe")+"/override", "")
		get("Alice", 200)
		get("Alice", 429)
		for path, want := range map[string]string{"zones/api/top": `"key":"alice"`, "zones": `"key_case":"lower"`} {
			if got := c.Operate(t, 200, "GET", path, "").Text; !strings.Contains(got, want) {
				t.Errorf("%s: %s, want %s", path, got, want)
			}
		}
		if zones := c.Operate(t, 200, "GET", "zones", "").Text; !strings.Contains(zones, fmt.Sprintf("%q:[\"unlimited\"]", url.PathEscape("émile"))) {
			t.Error(zones)
		}
	})
}

func TestWarningsOfKeyCase(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, caddytest.Site(`
		zone addresses {
			key {client_ip} {remote_host}
			ipv6_prefix 64
			key_case lower
			gcra 10 1h
		}
		zone no_key {
			key_case lower
			gcra 10 1h
		}
		zone text {
			key {header.X-User} {client_ip}
			ipv6_prefix 64
			key_case lower
			gcra 10 1h
		}
		zone combined {
			key "{client_ip} {header.X-User}"
			key_case lower
			gcra 10 1h
		}
	`))
	got := ""
	for _, m := range regexp.MustCompile(`key_case changes no key.*"zone":"(\w+)"`).FindAllStringSubmatch(c.Logged(), -1) {
		got += m[1] + " "
	}
	if got != "addresses no_key " {
		t.Errorf("zones %q", got)
	}
}
