package ratelimit

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
)

// twoSites is a Caddyfile with shared zones, and two sites that answer ok. The sites get a directive
// each, or other content.
func twoSites(global, one, other string) string {
	return fmt.Sprintf("{\n\tadmin {$ADMIN}\n\tmetrics\n\trate_limit {\n%s\n\t}\n}\n{$SITE} {\n%s\nrespond ok\n}\n{$OTHER} {\n%s\nrespond ok\n}\n",
		global, one, other)
}

// getOther is get for the second site.
func (c *caddyProcess) getOther(t *testing.T, path string) response {
	t.Helper()
	r, err := c.do("GET", "http://"+c.otherSite()+path, "")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// patch changes a value of the configuration through the admin endpoint.
func (c *caddyProcess) patch(t *testing.T, path, value string) response {
	t.Helper()
	r, err := c.do("PATCH", "http://"+c.admin+path, value, "Content-Type", "application/json")
	if err != nil {
		t.Fatal(err)
	}
	c.settle(t)
	return r
}

// Two sites share the budgets of a zone, whatever their own options and matchers are. A reload keeps
// the budgets, and PATCH changes the zone for both sites.
func TestSharedZones(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, use string) {
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
		c := startCaddy(t, config)
		for range 3 {
			c.get(t, "/ready").want(t, 200, "RateLimit", "")
			c.getOther(t, "/ready").want(t, 200)
		}
		c.get(t, "/login").want(t, 200, "RateLimit", `"api";r=4;t=3600, "login";r=1;t=3600`)
		c.getOther(t, "/login").want(t, 200, "RateLimit", "")
		c.get(t, "/").want(t, 200, "RateLimit", `"api";r=2;t=3600`)
		c.getOther(t, "/").want(t, 200)
		c.get(t, "/").want(t, 200, "RateLimit", `"api";r=0;t=3600`)
		c.getOther(t, "/").want(t, 429)
		c.get(t, "/").want(t, 429)
		c.getOther(t, "/?key=b").want(t, 200)
		c.get(t, "/?key=b").want(t, 200, "RateLimit", `"api";r=3;t=3600`)

		c.reload(t, config+"# a comment\n")
		c.get(t, "/").want(t, 429)
		c.getOther(t, "/").want(t, 429)

		var names []string
		for _, z := range seen[[]adminapi.Zone](t, c, "zones") {
			names = append(names, z.Name)
		}
		if fmt.Sprint(names) != "[api login]" {
			t.Errorf("operators see the zones %v", names)
		}
		if got := c.metrics(t); !strings.Contains(got, `caddy_rate_limit_requests_total{outcome="denied",zone="api"} 4`+"\n") {
			t.Errorf("the metrics don't count the requests of both sites:\n%s", got)
		}

		const limits = "/config/apps/rate_limit/rate_limits/api/limits"
		if r := c.patch(t, limits+"/0/events", "-1"); r.StatusCode == 200 || !strings.Contains(r.body, `shared zone \"api\": `) {
			t.Errorf("a bad PATCH: %d %s", r.StatusCode, r.body)
		}
		c.get(t, "/").want(t, 429)
		if r := c.patch(t, limits+"/0/events", "7"); r.StatusCode != 200 {
			t.Error(r.body)
		}
		c.getOther(t, "/").want(t, 200)
		c.get(t, "/login").want(t, 200, "RateLimit", `"api";r=5;t=3600, "login";r=0;t=3600`)
		if r := c.patch(t, limits, `[{"@id":"limit","algorithm":"fixed_window","events":9,"window":"1h"}]`); r.StatusCode != 200 {
			t.Error(r.body)
		}
		if r := c.patch(t, "/id/limit/events", "8"); r.StatusCode != 200 {
			t.Error(r.body)
		}
		c.getOther(t, "/").want(t, 200)
		c.get(t, "/").want(t, 200, "RateLimit", `"api";r=6;t=3600`)
		c.get(t, "/login").want(t, 429)
	})
}

// A directive can have shared zones and its own ones, in all blocks that have directives. Each
// directive charges a request by itself.
func TestSharedZonesInBlocks(t *testing.T) {
	t.Parallel()
	const shared = "zone api {\n key {query.key}\n fixed_window 100 1h\n}\nzone rest {\n match not path /ready\n key {query.key}\n fixed_window 100 1h\n}"
	config := twoSites(shared, `
	handle /own {
		rate_limit api {
			zone own {
				fixed_window 100 1h
			}
		}
	}
	handle /only-own {
		rate_limit {
			zone own {
				fixed_window 100 1h
			}
		}
	}
	handle_path /snippet/* {
		import limited rest
	}
	handle /twice {
		route {
			rate_limit api
			rate_limit
		}
	}
	handle /invoked {
		invoke limited
	}
	@b query key=b
	handle /named {
		rate_limit @b api
	}`, "")
	snippets := "(limited) {\n rate_limit {args[0]}\n}\n&(limited) {\n rate_limit rest\n}\n"
	c := startCaddy(t, strings.Replace(config, "{$SITE}", snippets+"{$SITE}", 1))
	for path, want := range map[string]string{
		"/own?key=own":         `"api";r=99;t=3600, "own";r=99;t=3600`,
		"/snippet/?key=s":      `"rest";r=99;t=3600`,
		"/twice?key=twice":     `"api";r=99;t=3600, "api";r=98;t=3600, "rest";r=99;t=3600`,
		"/named?key=a":         "",
		"/named?key=b":         `"api";r=99;t=3600`,
		"/invoked?key=invoked": `"rest";r=99;t=3600`,
	} {
		c.get(t, path).want(t, 200, "RateLimit", want)
	}
	c.get(t, "/only-own").want(t, 200, "RateLimit", `"own";r=98;t=3600`)
}

// Errors of shared zones name the place, also in zones that no handler uses.
func TestSharedZonesInJSON(t *testing.T) {
	t.Parallel()
	const limit = `"limits":[{"algorithm":"gcra","events":1,"window":"1s"}]`
	const handler = `{"handler":"rate_limit"}`
	api := `"api":{` + limit + `}`
	for _, test := range []struct {
		shared, handlers string
		want             string // of the error; "" for none
	}{
		{api, handler, ""},
		{api, `{"handler":"rate_limit","rate_limits":{},"zones":[]}`, ""},
		{api + `,"b":{` + limit + `}`, `{"handler":"rate_limit","zones":["b","api"],"rate_limits":{"c":{` + limit + `}}}`, ""},
		{api, `{"handler":"rate_limit","rate_limits":{"api":{` + limit + `}}},` + handler, ""},
		{api + `,"b":{"key":"{http.rate_limit.api.remaining}",` + limit + `}`, handler, ""},
		{`"api":{"match":[{"path_regexp":{"name":"user","pattern":"^/users/([0-9]+)"}}],"key":"{http.regexp.user.1}",` + limit + `}`, handler + "," + handler, ""},
		{`"api":{"match":[{"path_regexp":{"name":"user","pattern":"^/users/([0-9]+)"}}],"key":"{http.regexp.user.2}",` + limit + `}`, handler, "nothing provides the placeholder {http.regexp.user.2}"},

		{api, `{"handler":"rate_limit","zones":["api","apo"]}`, `rate_limit: zones[1]: there is no shared zone "apo" (did you mean api?): apps.rate_limit.rate_limits has api`},
		{"", `{"handler":"rate_limit","zones":["api"]}`, `zones[0]: there is no shared zone "api": write it into apps.rate_limit.rate_limits`},
		{api, `{"handler":"rate_limit","zones":["api","api"]}`, `the shared zone "api" is named twice`},
		{api, `{"handler":"rate_limit","zones":["api"],"rate_limits":{"api":{` + limit + `}}}`, `zone "api" has the name of a shared zone that this rate_limit uses, too`},
		{api, `{"handler":"rate_limit","zones":"api"}`, "zones must be a list, not a string"},
		{api, `{"handler":"rate_limit","zones":[1]}`, "zones[0] must be a string, not a number"},
		{api, `{"handler":"rate_limit","rate_limits":{"api":{"limits":[{"algorithm":"gcra","events":2,"window":"1s"}]}}},` + handler, `"api": defined twice with different settings: limits is `},
		{api, handler + `,{"handler":"rate_limit","redis":{"address":["127.0.0.1:1"]}}`, `shared zone "api": used with two stores, memory and redis 127.0.0.1:1`},
		{`"api":{"key":"{clientip}",` + limit + `}`, handler, `shared zone "api": key: nothing provides the placeholder {clientip}`},

		// Caddy finds these in a configuration without handlers, too.
		{`"api":{"limits":[{"algorithm":"gcra","evnts":1,"window":"1s"}]}`, "", `rate_limits.api.limits[0]: unknown field "evnts" (did you mean events?)`},
		{`"api":{"limits":[{"algorithm":"gcra","events":"1","window":"1s"}]}`, "", `rate_limits.api.limits[0].events must be a whole number, not "1": write 1`},
		{`"api":{"limit":[]}`, "", `rate_limits.api: unknown field "limit" (did you mean limits?)`},
		{`"api":null`, "", `shared zone "api": it is null`},
		{`"api":{}`, "", `shared zone "api": it has no limit`},
		{`"a{b":{` + limit + `}`, "", `shared zone "a{b": "a{b" is not a valid zone name`},
		{`"api":{"match":[{"path_regexp":{"pattern":"("}}],` + limit + `}`, "", `shared zone "api": match: `},
		{`"api":{"match":[{"nonsense":{}}],` + limit + `}`, "", `shared zone "api": match: `},
		{`"api":{"status":200,` + limit + `}`, "", `shared zone "api": status must be from 400 to 599, not 200`},
		{
			`"api":{"cost":"{http.request.header.C}","limits":[{"algorithm":"sliding_log","events":200000,"window":"1h"},{"algorithm":"sliding_log","events":200000,"window":"2h"},{"algorithm":"sliding_log","events":200000,"window":"3h"}]}`,
			"", `shared zone "api": the limits of all zones together take too long`,
		},
	} {
		config := strings.Replace(handlerConfig(test.handlers), `"apps":{`, `"apps":{"rate_limit":{"rate_limits":{`+test.shared+`}},`, 1)
		err := validate(config)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %q", config, err, test.want)
		}
	}
	for field, want := range map[string]string{
		`"zones":{}`:      `rate_limit: unknown field "zones" (did you mean rate_limits?)`,
		`"rate_limit":{}`: `rate_limit: unknown field "rate_limit" (did you mean rate_limits?)`,
	} {
		if err := validate(`{"admin":{"disabled":true},"apps":{"rate_limit":{` + field + `}}}`); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", field, err, want)
		}
	}
}

// Warnings about a shared zone are given once, however many directives use the zone. A zone that no
// directive uses is a mistake.
func TestSharedZoneWarnings(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, twoSites(`
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
	c.get(t, "/")
	c.getOther(t, "/")
	c.get(t, "/x")
	for text, want := range map[string]int{
		"a shared zone limits nothing, because no rate_limit uses it": 1,
		`"zone":"unused"`: 1,
		"the keys of zones are addresses, and over IPv6": 1,
		"a cost is not a number":                         1,
	} {
		if got := c.times(t, text); got != want {
			t.Errorf("%q is logged %d times, want %d", text, got, want)
		}
	}
}

// The handlers of a shared zone have its limits in common, as far as on_store_error is the same.
func TestSharedZonesAreCompiledOnce(t *testing.T) {
	outer, err := caddy.ProvisionContext(&caddy.Config{Admin: &caddy.AdminConfig{Disabled: true}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := caddy.NewContext(outer)
	defer end()
	load := func(id, config string) any {
		t.Helper()
		m, err := ctx.LoadModuleByID(id, json.RawMessage(config))
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	load("rate_limit", `{"rate_limits":{"api":{"limits":[{"algorithm":"gcra","events":30,"window":"1s"}]}},"redis":{"address":["127.0.0.1:1"]}}`)
	var zones []*zone
	for _, config := range []string{`{}`, `{"zones":["api"]}`, `{"on_store_error":{"share":"1/3"}}`} {
		zones = append(zones, load("http.handlers.rate_limit", config).(*Handler).zones...)
	}
	if len(zones) != 3 {
		t.Fatalf("%d zones, want 3", len(zones))
	}
	if zones[0].policy != zones[1].policy || zones[0].keyWarnings != zones[2].keyWarnings {
		t.Error("two handlers have the limits of a shared zone twice")
	}
	for i, want := range []int64{30, 30, 10} {
		l := zones[i].defaultSet.budgets[0].limits[0]
		granted := l.Limit
		if l.Share != nil {
			granted = l.Share
		}
		if granted.Burst != want {
			t.Errorf("handler %d grants %d events in an outage, want %d", i+1, granted.Burst, want)
		}
	}
}

// Directives with a shared zone log a body that the zone can't read once, as one directive does.
func TestSharedZoneLogsBodyErrorsOnce(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, twoSites("zone api {\n key {http.rate_limit.request.json.user}\n fixed_window 5 1h\n}",
		"@post method POST\nroute @post {\n rate_limit api\n}", "rate_limit api"))
	for range maxInARow {
		c.post(t, "/", jsonType, "{").want(t, 400)
	}
	r, err := c.do("POST", "http://"+c.otherSite()+"/", "{", "Content-Type", jsonType)
	if err != nil {
		t.Fatal(err)
	}
	r.want(t, 400)
	if _, err := c.do("GET", "http://"+c.admin+"/config/apps?last", ""); err != nil {
		t.Fatal(err)
	}
	c.waitForLog(t, "?last")
	if n := strings.Count(c.logged(), "a zone denied a request because it could not read the body"); n != 1 {
		t.Errorf("%d log lines, want 1", n)
	}
	if strings.Contains(c.logged(), "the key of a zone was empty") {
		t.Error("a warning says that denied requests have an empty key")
	}
}
