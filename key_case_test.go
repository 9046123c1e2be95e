package ratelimit

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
)

func TestFoldCase(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "", "alice": "alice", "aLICE-1": "alice-1", "ÉMILE": "émile", "STRASSE": "strasse", "Straße": "strasse", "ΣΊΣΥΦΟΣ": "σίσυφοσ", "σίσυφος": "σίσυφοσ",
		"\u212aELVIN": "kelvin", "I\u0307": "i\u0307", "\u0130": "i\u0307", "ＡＬＩＣＥ": "ａｌｉｃｅ",
		"Ꭰ": "ꭰ", "ꭰ": "ꭰ", "A\xffB": "a\ufffdb", "É\xff": "é\ufffd",
	} {
		if got := foldCase(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
	for c := range unicode.MaxRune + 1 {
		other := unicode.SimpleFold(c)
		if other == c {
			continue
		}
		folded := foldCase(string(c))
		if twice := foldCase(folded); twice != folded {
			t.Errorf("%q becomes %q, and that %q", c, folded, twice)
		}
		if got := foldCase(string(other)); got != folded {
			t.Errorf("%q becomes %q, but %q becomes %q", c, folded, other, got)
		}
	}
}

// Keys in lower-case ASCII are the usual ones.
func TestFoldCaseAllocatesNothing(t *testing.T) {
	zone := Zone{Key: Key{"{http.request.header.X-User}"}, KeyCase: "lower"}
	template := zone.keyTemplates()[0]
	if n := testing.AllocsPerRun(100, func() { template.normalize("alice@example.com") }); n > 0 {
		t.Errorf("%v allocations", n)
	}
	if text, _ := template.normalize("Alice@Example.com"); text != "alice@example.com" {
		t.Errorf("the key is %q", text)
	}
}

// With key_case lower, the case of a key doesn't count for requests, overrides and operators.
func TestKeyCase(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, use string) {
		c := startCaddy(t, site("zone api {\n key {query.user} {query.key}\n key_case lower\n gcra 3 1h\n override ÉMILE unlimited\n runtime_overrides\n ban 1h after 9\n}\n"+use))
		get := func(key string, status int) {
			t.Helper()
			c.get(t, "/?user="+url.QueryEscape(key)).want(t, status)
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
		c.get(t, "/?key=Alice").want(t, 200) // of the second value, which has budgets of its own
		wantKey("Alice", "1 gcra 3 1h: 0", "2 gcra 3 1h: 2")
		for range 4 {
			get("Émile", 200)
			get("émile", 200)
		}

		c.operate(t, 204, "DELETE", keyPath("ALICE"), "")
		wantKey("alice", "1 gcra 3 1h: 3", "2 gcra 3 1h: 3")
		get("Alice", 200)
		c.operate(t, 204, "PUT", keyPath("Alice")+"/ban", "")
		get("aLICE", 429)
		c.operate(t, 204, "DELETE", keyPath("aLice")+"/ban", "")
		get("aLICE", 200)
		c.operate(t, 204, "PUT", keyPath("ALICE")+"/override", unlimitedOverride)
		for range 4 {
			get("Alice", 200)
		}
		c.operate(t, 204, "DELETE", keyPath("AliCe")+"/override", "")
		get("Alice", 200)
		get("Alice", 429)
		for path, want := range map[string]string{"zones/api/top": `"key":"alice"`, "zones": `"key_case":"lower"`} {
			if got := c.operate(t, 200, "GET", path, "").body; !strings.Contains(got, want) {
				t.Errorf("%s: %s, want %s", path, got, want)
			}
		}
		if zones := c.operate(t, 200, "GET", "zones", "").body; !strings.Contains(zones, fmt.Sprintf("%q:[\"unlimited\"]", url.PathEscape("émile"))) {
			t.Error(zones)
		}
	})
}

// Without key_case, the case counts.
func TestKeyCaseCounts(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, site("zone api {\n key {query.user}\n gcra 1 1h\n override VIP unlimited\n}"))
	for _, key := range []string{"Alice", "alice", "ALICE", "vip", "VIP", "VIP"} {
		c.get(t, "/?user="+key).want(t, 200)
	}
	c.get(t, "/?user=vip").want(t, 429)
}

// A key is folded before it is hashed.
func TestKeyCaseOfHashedKeys(t *testing.T) {
	t.Parallel()
	const secret = "a-secret-of-hashing"
	server := redistest.Start(t)
	c := startCaddy(t, site(fmt.Sprintf("zone api {\n key {query.user}\n key_case lower\n gcra 1 1h\n override VIP unlimited\n}\nredis %s {\n timeout 30s\n hash_keys %s\n}\n", server.Addr, secret)))
	c.get(t, "/?user=Alice").want(t, 200)
	c.get(t, "/?user=ALICE").want(t, 429)
	keys, err := server.Client.Keys(t.Context(), "*").Result()
	if want := redisstore.HashedKey(secret, "alice"); err != nil || len(keys) != 1 || !strings.Contains(keys[0], want) {
		t.Errorf("Redis has %q, want one key with %s: %v", keys, want, err)
	}
	if zones := c.operate(t, 200, "GET", "zones", "").body; !strings.Contains(zones, redisstore.HashedKey(secret, "vip")) {
		t.Error(zones)
	}
}

// An empty key is found although the text around its placeholder has upper-case letters.
func TestKeyCaseOfEmptyKeys(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, site("zone api {\n key User:{query.user}\n key_case lower\n gcra 1000 1h\n}"))
	for range maxInARow {
		c.get(t, "/")
	}
	c.waitForLog(t, "the key of a zone was empty for 100 requests in a row")
}

func TestWarningsOfKeyCase(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, site(`
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
	for _, m := range regexp.MustCompile(`key_case changes no key.*"zone":"(\w+)"`).FindAllStringSubmatch(c.logged(), -1) {
		got += m[1] + " "
	}
	if got != "addresses no_key " {
		t.Errorf("zones %q", got)
	}
}
