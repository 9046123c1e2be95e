package ratelimit

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// Operators see and change limits, on every store. In Redis the instances that weren't asked follow.
func TestCommandChanges(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, use string) {
		t.Helper()
		one := startCaddy(t, commandSite(use))
		other := one
		if use != "" {
			other = startCaddy(t, commandSite(use))
		}
		status := func(key string) int { return other.get(t, "/", "Key", key).StatusCode }
		felt := func(key string, want int) {
			t.Helper()
			eventually(t, fmt.Sprintf("%s has status %d", key, want), func() bool { return status(key) == want })
		}
		for range 3 {
			one.get(t, "/", "Key", "k")
		}
		felt("k", 429)
		one.rateLimit(t, "key", "api", "k").succeeds(t, "Zone api, key k\n\nLIMIT              REMAINING  FREES IN  FULL IN\n"+
			"token_bucket 2 1h          0  ")
		if key := decodes[adminapi.Key](t, one.rateLimit(t, "key", "api", "k", "--json")); key.Key != "k" || key.Budgets[0].Limits[0].Remaining != 0 {
			t.Errorf("%+v", key)
		}

		one.rateLimit(t, "override", "api", "k", "token_bucket", "1000", "1h").succeeds(t, "Zone api, key k: token_bucket 1000 1h\n")
		felt("k", 200)
		one.rateLimit(t, "overrides").succeeds(t, "api   config          unlimited             vip\n", "api   runtime         token_bucket 1000 1h  k\n")
		list := decodes[adminapi.OverrideList](t, one.rateLimit(t, "overrides", "api", "--json"))
		if len(list.Overrides) != 2 || list.Next != "" {
			t.Errorf("%+v", list)
		}
		first := decodes[adminapi.OverrideList](t, one.rateLimit(t, "overrides", "api", "--json", "--limit", "1"))
		if len(first.Overrides) != 1 || first.Next == "" {
			t.Errorf("%+v, want one override and a cursor", first)
		}
		one.rateLimit(t, "overrides", "--limit", "1").succeeds(t, "There are more in api: raise --limit.")
		one.rateLimit(t, "override", "api", "k", "token_bucket 9 1h", "gcra 5 1m", "--for", "1d").succeeds(t, "Zone api, key k: token_bucket 9 1h, gcra 5 1m, until 2")
		one.rateLimit(t, "override", "api", "k", "unlimited", "--for", "1h").succeeds(t, "Zone api, key k: unlimited, until ")
		one.rateLimit(t, "override", "api", "k", "--remove").succeeds(t, "Zone api, key k: no override\n")
		one.rateLimit(t, "override", "api", "vip", "--remove").succeeds(t, "Zone api, key vip: the override of the configuration applies: unlimited\n")
		felt("k", 429)
		one.rateLimit(t, "override", "api", "k", "--remove").succeeds(t, "Zone api, key k: had no override\n")
		one.rateLimit(t, "unban", "api", "k").succeeds(t, "Zone api, key k: was not banned; token_bucket 2 1h has nothing left for ")

		one.rateLimit(t, "reset", "api", "k").succeeds(t, "Zone api, key k: reset, remaining 2 of token_bucket 2 1h\n")
		one.rateLimit(t, "reset", "api", "misspelled").succeeds(t, "key misspelled: had full budgets, remaining 2 of token_bucket 2 1h\n")
		felt("k", 200)

		one.rateLimit(t, "ban", "api", "vip").succeeds(t, "Zone api, key vip: banned for 1h, until ")
		one.rateLimit(t, "key", "api", "vip").succeeds(t, "Zone api, key vip\nBanned for 1h, until ", "\nOverride of the configuration: unlimited\n")
		felt("vip", 429)
		one.rateLimit(t, "ban", "api", "fresh", "--for", "30m").succeeds(t, "Zone api, key fresh: banned for 30m, until ")
		one.rateLimit(t, "bans").succeeds(t, "ZONE  ENDS IN  UNTIL", "operator  vip\n", "operator  fresh\n")
		bans := decodes[map[string]adminapi.BanList](t, one.rateLimit(t, "bans", "--json"))
		if len(bans) != 1 || len(bans["api"].Bans) != 2 {
			t.Errorf("%+v", bans)
		}
		after := decodes[adminapi.Key](t, one.rateLimit(t, "unban", "api", "vip", "--json"))
		if after.Key != "vip" || after.Budgets[0].Ban.Banned {
			t.Errorf("%+v", after)
		}
		felt("vip", 200)
		one.rateLimit(t, "unban", "api", "fresh").succeeds(t, "Zone api, key fresh: not banned\n")
		one.rateLimit(t, "bans").succeeds(t, "No key is banned.\n")
	}
	eachStore(t, run)
	t.Run("cluster", func(t *testing.T) {
		long(t)
		t.Parallel()
		run(t, fmt.Sprintf("redis %s {\n cluster\n timeout 30s\n}\n", strings.Join(redistest.StartCluster(t).Addrs()[:2], " ")))
	})
}

// With limits in memory a change is made in each instance. In a Redis it is made once, so a ban counts
// once toward the length of the next ban.
func TestCommandChangesSeveralInstances(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, use string) {
		config := site("zone api {\n key {header.Key}\n gcra 5 1h\n ban 1h max 9h\n}\n" + use)
		one, other := startCaddy(t, config), startCaddy(t, config)
		both := []string{"--address", one.admin, "--address", other.admin}
		asked := []string{one.admin, other.admin}
		if use != "" {
			asked = asked[:1]
		}
		r := one.rateLimit(t, append(both, "ban", "api", "k")...).succeeds(t)
		if lines := strings.Count(r.out, "banned for 1h, until "); lines != len(asked) {
			t.Errorf("it prints %q, want %d bans", r.out, len(asked))
		}
		for _, c := range []*caddyProcess{one, other} {
			eventually(t, "the key is banned", func() bool { return c.get(t, "/", "Key", "k").StatusCode == 429 })
		}
		lists := decodes[map[string]adminapi.BanList](t, one.rateLimit(t, append(both, "bans", "api", "--json")...))
		for _, address := range asked {
			if len(lists[address].Bans) != 1 {
				t.Errorf("%+v, want a ban from %s", lists, address)
			}
		}
		if len(lists) != len(asked) {
			t.Errorf("%+v, want lists from %q", lists, asked)
		}
		gone := "127.0.0.1:" + redistest.FreePort(t)
		r = one.rateLimit(t, "unban", "api", "k", "--address", gone, "--address", one.admin).fails(t, 1, "no Caddy answers at "+gone)
		if !strings.Contains(r.out, "key k: not banned ("+one.admin+")") {
			t.Errorf("it prints %q, without the change that is made", r.out)
		}
	})
}

// A change reaches other instances within a second.
func TestCommandChangeIsFeltWithinASecond(t *testing.T) {
	t.Parallel()
	config := commandSite(fmt.Sprintf("redis %s\n", redistest.Start(t).Addr))
	one, other := startCaddy(t, config), startCaddy(t, config)
	for range 3 {
		other.get(t, "/", "Key", "k")
	}
	if r := other.get(t, "/", "Key", "k"); r.StatusCode != 429 {
		t.Fatalf("status %d, want 429", r.StatusCode)
	}
	one.rateLimit(t, "override", "api", "k", "unlimited").succeeds(t)
	time.Sleep(time.Second) // the promise is about time
	other.get(t, "/", "Key", "k").want(t, 200)
}

// Keys as people see them, and keys in JSON, are the keys that a command gets.
func TestCommandKeys(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, strings.ReplaceAll(commandSite(""), "{header.Key}", "{query.key}"))
	for key, args := range map[string][]string{ // in a URL, and as arguments
		"":               {""},
		"a/b":            {"a/b"},
		"100%25":         {"100%"},
		"%252F":          {"%2F"},
		"a%20b%2Bc":      {"a b+c"},
		"-x":             {"--", "-x"},
		"--encoded":      {"--", "--encoded"},
		"a%0A%00%FF%1B":  {"--encoded", "a%0A%00%FF%1B"},
		"%2Dy":           {"--encoded", "%2Dy"},
		"..":             {".."},
		".":              {"."},
		"a%3Fb%23c%26d=": {"a?b#c&d="},
		"%E2%80%AE":      {"--encoded", "%E2%80%AE"},
	} {
		c.rateLimit(t, append([]string{"ban", "api"}, args...)...).succeeds(t, "banned for 1h")
		if r := c.get(t, "/?key="+key); r.StatusCode != 429 {
			t.Errorf("key %s: status %d after the ban of %q", key, r.StatusCode, args)
		}
		c.rateLimit(t, append([]string{"unban", "api"}, args...)...).succeeds(t, "not banned")
		if r := c.get(t, "/?key="+key); r.StatusCode != 200 {
			t.Errorf("key %s: status %d after the ban of %q has ended", key, r.StatusCode, args)
		}
	}
	long := strings.Repeat("z", 10_000)
	c.rateLimit(t, "ban", "api", long).succeeds(t, "key "+long[:80]+"… (10,000 bytes): banned for 1h")
	r := c.rateLimit(t, "bans", "api").succeeds(t, long[:80]+"… (")
	if len(r.out) > 400 {
		t.Errorf("it prints %d bytes", len(r.out))
	}
}

// Errors of the server say what to write.
func TestCommandChangeErrors(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := startCaddy(t, commandSite(fmt.Sprintf("redis %s\n", server.Addr)))
	c.rateLimit(t, "override", "login", "203.0.113.9", "unlimited").fails(t, 1, "write runtime_overrides in it")
	c.rateLimit(t, "ban", "login", "203.0.113.9").fails(t, 1, "write for example ban 1h in it")
	c.rateLimit(t, "ban", "aip", "k").fails(t, 1, "there is no zone aip", "did you mean api?")
	c.rateLimit(t, "override", "api", "k", "token_buckte", "5", "1m").fails(t, 1, "token_bucket")
	c.rateLimit(t, "override", "api", "k", "token_bucket", "five", "1m").fails(t, 1, "five")
	c.rateLimit(t, "reset", "login", "2001:db8::7").fails(t, 1, "write 2001:db8::/64")
	server.Kill(t)
	c.rateLimit(t, "ban", "api", "k").fails(t, 1, `the store of zone "api" fails`, "make the change again when the store works")
	eventually(t, "the status shows the failure", func() bool {
		c.get(t, "/", "Key", "k") // Redis is down after several failures
		return strings.Contains(c.rateLimit(t, "status").out, "Warning: Redis "+server.Addr+" has failed for ")
	})
}
