package e2e

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

func TestReloads(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		zone := func(name, limit string) string {
			return caddytest.Site(fmt.Sprintf("zone %s {\n key static\n %s\n}\nzone other {\n key static\n gcra 2 1h\n match path /other\n}\n%s", name, limit, use))
		}
		config := zone("api", "fixed_window 3 1h")
		c := caddytest.Start(t, config)
		for range 3 {
			c.Get(t, "/").Want(t, 200)
		}
		c.Get(t, "/").Want(t, 429)
		c.Get(t, "/ready").Want(t, 200)

		c.Reload(t, config+"# a comment\n")
		c.Get(t, "/").Want(t, 429) // a good reload keeps budgets

		taken, err := net.Listen("tcp", "127.0.0.1:0")
		errtest.None(t, err)
		defer taken.Close()
		for name, bad := range map[string]string{ // by what the error says
			"events must be above 0":                      zone("api", "fixed_window 0 1h"),
			"unrecognized directive":                      config + "nonsense\n",
			"defined twice":                               strings.Replace(config, "respond ok", "rate_limit {\n zone api {\n  events 7\n  window 1s\n }\n}\nrespond ok", 1),
			"address already in use":                      strings.Replace(zone("api", "fixed_window 50 1h"), "{$SITE}\n", fmt.Sprintf("http://%s {\n respond x\n bind 127.0.0.1\n}\n{$SITE} {\n", taken.Addr()), 1) + "}\n",
			"no such file":                                strings.Replace(config, "respond ok", "reverse_proxy localhost:1 {\n transport http {\n  tls\n  tls_trust_pool file /no/such/file\n }\n}\nrespond ok", 1),
			"password of redis: the environment variable": strings.Replace(config, "respond ok", "rate_limit {\n zone last {\n  gcra 7 1s\n }\n redis localhost:1 {\n  password {env.NO_SUCH_VARIABLE}\n }\n}\nrespond ok", 1),
		} {
			if r := c.Load(t, bad, "text/caddyfile"); r.StatusCode == 200 || !strings.Contains(r.Text, name) {
				t.Errorf("a configuration that should be rejected because of %q: %d %s", name, r.StatusCode, r.Text)
			}
			// After two rejected configurations in a row, the running one still stands.
			c.Load(t, bad, "text/caddyfile")
			if r := c.Get(t, "/"); r.StatusCode != 429 {
				t.Errorf("after a reload rejected because of %q: status %d, want 429", name, r.StatusCode)
			}
			c.Reload(t, config+"# after "+name+"\n")
			if r := c.Get(t, "/"); r.StatusCode != 429 {
				t.Errorf("after a reload rejected because of %q and a good one: status %d, want 429", name, r.StatusCode)
			}
		}

		c.Get(t, "/other").Want(t, 429) // by api; nothing is charged to other
		c.Reload(t, zone("api", "fixed_window 4 1h"))
		c.Get(t, "/other").Want(t, 200, "RateLimit", `"api";r=0;t=3600, "other";r=1;t=1800`) // a changed limit continues
		c.Reload(t, zone("renamed", "fixed_window 4 1h"))
		c.Get(t, "/other").Want(t, 200, "RateLimit", `"other";r=0;t=1800, "renamed";r=3;t=3600`) // a renamed zone starts fresh
		c.Reload(t, config)
		c.Get(t, "/").Want(t, 429) // what was left as it was before is as it was before
	})
}

// A request that was on its way when its configuration was replaced is still
// decided, by that configuration, and charged once.
func TestReloadDuringRequests(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		config := caddytest.Site("zone api {\n fixed_window 5 1h\n}\n" + use)
		config = strings.Replace(config, "{$SITE}", "{$SITE}\nroute {\ntest_hold\n", 1) + "}\n"
		c := caddytest.Start(t, config)
		answered := make(chan map[int]int)
		go func() { answered <- caddytest.Flood(t, 10, 10, "/?hold=2s", c) }()
		caddytest.Eventually(t, "ten requests are delayed", func() bool { return strings.Count(c.Logged(), `"msg":"held","for":2`) == 10 })
		c.Reload(t, caddytest.Site("zone another {\n gcra 1 1h\n}")) // without the store
		statuses := <-answered
		if statuses[200] != 5 || statuses[429] != 5 {
			t.Errorf("statuses %v, want 5 times 200 and 5 times 429", statuses)
		}
	})
}

// The connections to a Redis that both configurations name stay open.
func TestReloadKeepsConnections(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	config := caddytest.Site(fmt.Sprintf("zone api {\n gcra 100 1h\n}\nredis %s {\n timeout 30s\n}\n", server.Addr))
	c := caddytest.Start(t, config)
	connections := func() map[string]bool {
		ids := make(map[string]bool)
		for line := range strings.Lines(server.Client.ClientList(t.Context()).Val()) {
			if !strings.Contains(line, "cmd=client") { // which is this one
				ids[strings.Fields(line)[0]] = true
			}
		}
		return ids
	}
	c.Get(t, "/").Want(t, 200)
	before := connections()
	const reloads = 6
	for i := range reloads {
		c.Reload(t, config+fmt.Sprint("# ", i, "\n"))
		c.Get(t, "/").Want(t, 200)
	}
	after := connections() // a few more: the first check comes at the same time as requests, and the client dials ahead
	for id := range before {
		if !after[id] {
			t.Errorf("connections before %v and after %v, want the same", before, after)
		}
	}
	if len(before) == 0 || len(after) >= len(before)+reloads {
		t.Errorf("%d connections before and %d after", len(before), len(after))
	}
	c.Reload(t, caddytest.Site("zone api {\n gcra 100 1h\n}"))
	caddytest.EventuallySees(t, "no connection is open after the last configuration that names this Redis", connections, func(open map[string]bool) bool { return len(open) == 0 })
}

// A zone keeps its budgets when another of its name and with other settings comes or goes,
// whichever stands first, and neither spends those of the other.
func TestPlainZonesKeepTheirBudgets(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		zone := func(path, key string, events int, more string) string {
			return fmt.Sprintf("rate_limit %s {\n zone api {\n  key %s\n  events %d\n  window 1h\n  %s\n }\n%s}\n", path, key, events, more, use)
		}
		config := func(handlers ...string) string {
			return "{\n\tadmin {$ADMIN}\n}\n{$SITE}\nroute {\n" + strings.Join(handlers, "") + "respond ok\n}\n"
		}
		a, key, limit := zone("/a", "static", 5, ""), zone("/key", "{header.Key}", 5, ""), zone("/limit", "static", 6, "")
		prefix := zone("/prefix", "static", 5, "ipv6_prefix 64")
		c := caddytest.Start(t, config(a))
		left := func(path string, want int) {
			t.Helper()
			c.Get(t, path, "Key", "static").Want(t, 200, "RateLimit", fmt.Sprintf(`"api";r=%d;t=3600`, want))
		}
		left("/a", 4)
		c.Reload(t, config(a, key, limit, prefix))
		c.WaitForLog(t, "a zone is defined twice with different settings")
		left("/a", 3)
		left("/key", 4)
		left("/limit", 3) // of 6, in the budget of /a
		left("/prefix", 4)
		c.Reload(t, config(prefix, limit, key, a))
		left("/a", 1)
		left("/key", 3)
		left("/limit", 1)
		left("/prefix", 3)
		c.Reload(t, config(zone("/a", "static", 7, "match method GET")))
		left("/a", 1)
		// It also doesn't matter that it can't have such others any more.
		c.Reload(t, config(zone("/a", "{header.Other} static", 7, "status 403")))
		left("/a", 0)
	})
}

// max_keys bounds the keys with budgets of their own, also after a reload that changes it.
func TestMaxKeys(t *testing.T) {
	t.Parallel()
	config := strings.Replace(caddytest.Site("zone api {\n key {header.Key}\n gcra 1 1h\n}"),
		"admin {$ADMIN}", "admin {$ADMIN}\n\trate_limit {\n\t\tmemory {\n\t\t\tmax_keys 10\n\t\t}\n\t}", 1)
	c := caddytest.Start(t, config)
	passed := 0
	for i := range 30 {
		if c.Get(t, "/", "Key", fmt.Sprint(i)).StatusCode == 200 {
			passed++
		}
	}
	if passed != 11 {
		t.Errorf("%d of 30 keys passed; want the 10 there is room for, and 1 for all the others", passed)
	}
	c.WaitForLog(t, "the memory store is full")
	c.Reload(t, strings.Replace(config, "max_keys 10", "max_keys 100", 1))
	c.Get(t, "/", "Key", "29").Want(t, 200)
	c.Get(t, "/", "Key", "3").Want(t, 429)
}
