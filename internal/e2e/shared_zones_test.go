package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
)

// twoSites is a Caddyfile with shared zones, and two sites that answer ok. The sites get a directive
// each, or other content.
func twoSites(global, one, other string) string {
	return fmt.Sprintf("{\n\tadmin {$ADMIN}\n\tmetrics\n\trate_limit {\n%s\n\t}\n}\n{$SITE} {\n%s\nrespond ok\n}\n{$OTHER} {\n%s\nrespond ok\n}\n",
		global, one, other)
}

// getOther is get for the second site.
func getOther(t *testing.T, c *caddytest.Caddy, path string) caddytest.Response {
	t.Helper()
	r, err := c.Do("GET", "http://"+c.OtherSite()+path, "")
	errtest.None(t, err)
	return r
}

// patch changes a value of the configuration through the admin endpoint.
func patch(t *testing.T, c *caddytest.Caddy, path, value string) caddytest.Response {
	t.Helper()
	r, err := c.Do("PATCH", "http://"+c.Admin+path, value, "Content-Type", "application/json")
	errtest.None(t, err)
	c.Settle(t)
	return r
}

// Two sites share the budgets of a zone, whatever their own options and matchers are. A reload keeps
// the budgets, and PATCH changes the zone for both sites.
func TestSharedZones(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		config := twoSites(`
zone api {
	match not path /ready
	key {query.key}
	fixed_window 5 1h
}
zone login {
	match path /login
	fixed_window 2 1h
}
`+use, "rate_limit", "@all method GET\nrate_limit @all api {\n headers off\n}")
		c := caddytest.Start(t, config)
		for range 3 {
			c.Get(t, "/ready").Want(t, 200, "RateLimit", "")
			getOther(t, c, "/ready").Want(t, 200)
		}
		c.Get(t, "/login").Want(t, 200, "RateLimit", `"api";r=4;t=3600, "login";r=1;t=3600`)
		getOther(t, c, "/login").Want(t, 200, "RateLimit", "")
		c.Get(t, "/").Want(t, 200, "RateLimit", `"api";r=2;t=3600`)
		getOther(t, c, "/").Want(t, 200)
		c.Get(t, "/").Want(t, 200, "RateLimit", `"api";r=0;t=3600`)
		getOther(t, c, "/").Want(t, 429)
		c.Get(t, "/").Want(t, 429)
		getOther(t, c, "/?key=b").Want(t, 200)
		c.Get(t, "/?key=b").Want(t, 200, "RateLimit", `"api";r=3;t=3600`)

		c.Reload(t, config+"# a comment\n")
		c.Get(t, "/").Want(t, 429)
		getOther(t, c, "/").Want(t, 429)

		var names []string
		for _, z := range seen[[]adminapi.Zone](t, c, "zones") {
			names = append(names, z.Name)
		}
		if fmt.Sprint(names) != "[api login]" {
			t.Errorf("operators see the zones %v", names)
		}
		if got := c.Metrics(t); !strings.Contains(got, `caddy_rate_limit_requests_total{outcome="denied",zone="api"} 4`+"\n") {
			t.Errorf("the metrics don't count the requests of both sites:\n%s", got)
		}

		const limits = "/config/apps/rate_limit/rate_limits/api/limits"
		if r := patch(t, c, limits+"/0/events", "-1"); r.StatusCode == 200 || !strings.Contains(r.Text, `shared zone \"api\": `) {
			t.Errorf("a bad PATCH: %d %s", r.StatusCode, r.Text)
		}
		c.Get(t, "/").Want(t, 429)
		if r := patch(t, c, limits+"/0/events", "7"); r.StatusCode != 200 {
			t.Error(r.Text)
		}
		getOther(t, c, "/").Want(t, 200)
		c.Get(t, "/login").Want(t, 200, "RateLimit", `"api";r=0;t=3600, "login";r=0;t=3600`)
		if r := patch(t, c, limits, `[{"@id":"limit","algorithm":"fixed_window","events":9,"window":"1h"}]`); r.StatusCode != 200 {
			t.Error(r.Text)
		}
		if r := patch(t, c, "/id/limit/events", "10"); r.StatusCode != 200 {
			t.Error(r.Text)
		}
		getOther(t, c, "/").Want(t, 200)
		c.Get(t, "/").Want(t, 200, "RateLimit", `"api";r=1;t=3600`)
		c.Get(t, "/login").Want(t, 429)
	})
}

// Warnings about a shared zone are given once, however many directives use the zone. A zone that no
// directive uses is a mistake.
func TestSharedZoneWarnings(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, twoSites(`
zone api {
	match not path /ready
	key {header.X-Key} {client_ip}
	cost {header.X-Cost}
	fixed_window 1000 1h
}
zone unused {
	key {client_ip}
	fixed_window 1000 1h
}`, "rate_limit api\nrate_limit /x api", "rate_limit api"))
	c.Get(t, "/")
	getOther(t, c, "/")
	c.Get(t, "/x")
	for text, want := range map[string]int{
		"a shared zone limits nothing, because no rate_limit uses it": 1,
		`"zone":"unused"`: 1,
		"the key of a zone is an address, and over IPv6": 1,
		"no placeholder of a cost is a number":           1,
	} {
		if got := c.Times(t, text); got != want {
			t.Errorf("%q is logged %d times, want %d", text, got, want)
		}
	} // A directive can name shared zones, and have its own.
	c.Reload(t, twoSites("zone api {\n fixed_window 5 1h\n}", "rate_limit api {\n zone own {\n fixed_window 5 1h\n }\n}", ""))
	c.Get(t, "/").Want(t, 200, "RateLimit", `"api";r=4;t=3600, "own";r=4;t=3600`)
}
