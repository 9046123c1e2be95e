package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// Operators see and change limits, on every store. In Redis the instances that weren't asked follow: within a second, as
// TestFaults says.
func TestCommandChanges(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, testCommandChanges)
}

func testCommandChanges(t *testing.T, use string) {
	one := caddytest.Start(t, commandSite(use))
	other := one
	if use != "" {
		other = caddytest.Start(t, commandSite(use))
	}
	status := func(key string) int { return other.Get(t, "/", "Key", key).StatusCode }
	felt := func(key string, want int) {
		t.Helper()
		caddytest.EventuallySees(t, fmt.Sprintf("%s has status %d", key, want), func() int { return status(key) }, func(got int) bool { return got == want })
	}
	for range 3 {
		one.Get(t, "/", "Key", "k")
	}
	felt("k", 429)
	both := one.RateLimit(t, "key", "api", "k", "--address", one.Admin, "--address", other.Admin) // each has denied it, one once
	both.Succeeds(t, "Zone api, key k\nRecently: denied 2 times since ", ": token_bucket 2 1h\n\nLIMIT              USED  REMAINING  FREES IN  FULL IN\n"+
		"token_bucket 2 1h     2          0  ")
	if n := strings.Count(both.Out, "LIMIT"); n != 1 {
		t.Errorf("the budgets are shown %d times: %s", n, both.Out)
	}
	if key := decodes[adminapi.Key](t, one.RateLimit(t, "key", "api", "k", "--json")); key.Key != "k" || key.Budgets[0].Limits[0].Remaining != 0 {
		t.Errorf("%+v", key)
	}

	one.RateLimit(t, "override", "api", "k", "token_bucket", "1000", "1h").Succeeds(t, "Zone api, key k\nOverride at run time: token_bucket 1000 1h\n\nLIMIT ")
	felt("k", 200)
	one.RateLimit(t, "overrides").Succeeds(t, "api   config          unlimited             vip\n", "api   runtime         token_bucket 1000 1h  k\n")
	list := decodes[adminapi.OverrideList](t, one.RateLimit(t, "overrides", "api", "--json"))
	if len(list.Overrides) != 2 || list.Next != "" {
		t.Errorf("%+v", list)
	}
	first := decodes[adminapi.OverrideList](t, one.RateLimit(t, "overrides", "api", "--json", "--limit", "1"))
	if len(first.Overrides) != 1 || first.Next == "" {
		t.Errorf("%+v, want one override and a cursor", first)
	}
	one.RateLimit(t, "overrides", "--limit", "1").Succeeds(t, "There are more in api: raise --limit.")
	one.RateLimit(t, "override", "api", "k", "token_bucket 9 1h", "gcra 5 1m", "--for", "1d").Succeeds(t, "\nOverride at run time: token_bucket 9 1h, gcra 5 1m, until 2")
	one.RateLimit(t, "override", "api", "k", "unlimited", "--for", "1h").Succeeds(t, "\nOverride at run time: unlimited, until ")
	one.RateLimit(t, "override", "api", "k", "--remove").Succeeds(t, "Zone api, key k: override removed\n", "\ntoken_bucket 2 1h     2          0  ")
	one.RateLimit(t, "override", "api", "vip", "--remove").Succeeds(t, "Zone api, key vip: nothing has changed: remove the override from the configuration\nOverride of the configuration: unlimited\n")
	felt("k", 429)
	nothing := ": nothing has changed: check the spelling of the key\n"
	one.RateLimit(t, "override", "api", "k", "--remove").Succeeds(t, "Zone api, key k"+nothing)
	one.RateLimit(t, "unban", "api", "k").Succeeds(t, "Zone api, key k"+nothing+"\nLIMIT ", "\ntoken_bucket 2 1h     2          0  ")

	one.RateLimit(t, "reset", "api", "k").Succeeds(t, "Zone api, key k: reset\n\nLIMIT              USED  REMAINING  FREES IN  FULL IN\ntoken_bucket 2 1h     0          2\n")
	one.RateLimit(t, "reset", "api", "misspelled").Succeeds(t, "key misspelled"+nothing)
	one.RateLimit(t, "key", "api", "misspelled").Succeeds(t, "\nNo request is charged to this key now: check its spelling, and whether its plan is unlimited.\n")
	felt("k", 200)

	one.RateLimit(t, "ban", "api", "vip").Succeeds(t, "Zone api, key vip\nBanned for 3d, until ")
	one.RateLimit(t, "key", "api", "vip").Succeeds(t, "Zone api, key vip\nBanned for ", ", until ", "\nOverride of the configuration: unlimited\n")
	felt("vip", 429)
	one.RateLimit(t, "ban", "api", "fresh", "--for", "5d").Succeeds(t, "Zone api, key fresh\nBanned for 5d, until ", "\nNo request is charged to this key now: check its spelling, and whether its plan is unlimited.\n")
	one.RateLimit(t, "bans").Succeeds(t, "ZONE  ENDS IN  UNTIL", "operator  vip\n", "operator  fresh\n")
	bans := decodes[map[string]adminapi.BanList](t, one.RateLimit(t, "bans", "--json"))
	if len(bans) != 1 || len(bans["api"].Bans) != 2 {
		t.Errorf("%+v", bans)
	}
	after := decodes[adminapi.Key](t, one.RateLimit(t, "unban", "api", "vip", "--json"))
	if after.Key != "vip" || after.Budgets[0].Ban.Banned {
		t.Errorf("%+v", after)
	}
	felt("vip", 200)
	one.RateLimit(t, "reset", "api", "fresh").Succeeds(t, "Zone api, key fresh: reset\n") // which ends its ban
	one.RateLimit(t, "bans").Succeeds(t, "No key is banned.\n")
}

// With limits in memory a change is made in each instance. In a Redis it is made once, so a ban counts
// once toward the length of the next ban.
func TestCommandChangesSeveralInstances(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		config := caddytest.Site("zone api {\n key {header.Key}\n gcra 5 1h\n ban 3d max 9d\n}\n" + use)
		one, other := caddytest.Start(t, config), caddytest.Start(t, config)
		both := []string{"--address", one.Admin, "--address", other.Admin}
		asked := []string{one.Admin, other.Admin}
		if use != "" {
			asked = asked[:1]
		}
		r := one.RateLimit(t, append(both, "ban", "api", "k")...).Succeeds(t)
		if lines := strings.Count(r.Out, "Banned for 3d, until "); lines != len(asked) {
			t.Errorf("it prints %q, want %d bans", r.Out, len(asked))
		}
		for _, c := range []*caddytest.Caddy{one, other} {
			c.Until(t, 429, "Key", "k")
		}
		lists := decodes[map[string]adminapi.BanList](t, one.RateLimit(t, append(both, "bans", "api", "--json")...))
		for _, address := range asked {
			if len(lists[address].Bans) != 1 {
				t.Errorf("%+v, want a ban from %s", lists, address)
			}
		}
		if len(lists) != len(asked) {
			t.Errorf("%+v, want lists from %q", lists, asked)
		}
		gone := "127.0.0.1:" + redistest.FreePort(t)
		r = one.RateLimit(t, "unban", "api", "k", "--address", gone, "--address", one.Admin).Fails(t, 1, "no Caddy answers at "+gone)
		if !strings.Contains(r.Out, "Caddy at "+one.Admin+":\nZone api, key k: ban ended\n") {
			t.Errorf("it prints %q, without the change that is made", r.Out)
		}
	})
}

// Keys as people see them, and keys in JSON, are the keys that a command gets.
func TestCommandKeys(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, strings.ReplaceAll(commandSite(""), "{header.Key}", "{query.key}"))
	for key, args := range map[string][]string{ // in a URL, and as arguments
		"100%25":        {"100%"},
		"-x":            {"--", "-x"},
		"a%0A%00%FF%1B": {"--encoded", "a%0A%00%FF%1B"},
	} {
		c.RateLimit(t, append([]string{"ban", "api"}, args...)...).Succeeds(t, "Banned for 3d")
		if r := c.Get(t, "/?key="+key); r.StatusCode != 429 {
			t.Errorf("key %s: status %d after the ban of %q", key, r.StatusCode, args)
		}
		c.RateLimit(t, append([]string{"unban", "api"}, args...)...).Succeeds(t, "ban ended")
		if r := c.Get(t, "/?key="+key); r.StatusCode != 200 {
			t.Errorf("key %s: status %d after the ban of %q has ended", key, r.StatusCode, args)
		}
	}
	long := strings.Repeat("z", 10_000)
	c.RateLimit(t, "ban", "api", long).Succeeds(t, "key "+long[:80]+"… (10,000 bytes)\nBanned for 3d")
	r := c.RateLimit(t, "bans", "api").Succeeds(t, long[:80]+"… (")
	if len(r.Out) > 400 {
		t.Errorf("it prints %d bytes", len(r.Out))
	}
}

// Errors of the server say what to write.
func TestCommandChangeErrors(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := caddytest.Start(t, commandSite(fmt.Sprintf("redis %s\n", server.Addr)))
	c.RateLimit(t, "override", "login", "203.0.113.9", "unlimited").Fails(t, 1, "write runtime_overrides in it")
	c.RateLimit(t, "ban", "login", "203.0.113.9").Fails(t, 1, "write for example ban 1h in it")
	c.RateLimit(t, "override", "api", "k", "token_buckte", "5", "1m").Fails(t, 1, "token_bucket")
	c.RateLimit(t, "override", "api", "k", "token_bucket", "five", "1m").Fails(t, 1, "five")
	c.RateLimit(t, "reset", "login", "2001:db8::7").Fails(t, 1, "write 2001:db8::/64")
	server.Kill(t)
	c.RateLimit(t, "ban", "api", "k").Fails(t, 1, `the store of zone "api" fails`, "make the change again when the store works")
	caddytest.EventuallySees(t, "the status shows the failure", func() string {
		c.Get(t, "/", "Key", "k") // Redis is down after several failures
		return c.RateLimit(t, "status").Out
	}, func(shown string) bool {
		return strings.Contains(shown, "Warning: Redis "+server.Addr+" has failed for ")
	})
}
