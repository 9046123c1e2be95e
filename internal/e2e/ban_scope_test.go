package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// crawlerSite is a site with a zone of crawlers, whose ban applies to the whole handler, and a zone of
// some other requests.
func crawlerSite(ban, rest string) string {
	config := caddytest.Site(`zone crawlers {
		match header User-Agent *Bot*
		exempt path /robots.txt
		key {header.Net}
		fixed_window 1 10m
		ban ` + ban + `
		status 403
	}
	zone all {
		match path /all
		fixed_window 100 1h
	}
	` + rest)
	return strings.Replace(config, "@limited not path /ready\n",
		"@limited not path /ready\nheader >X-Seen \"[{http.rate_limit.crawlers.banned}{http.rate_limit.crawlers.allowed}{http.rate_limit.crawlers.limit}] {http.rate_limit.exceeded.name}\"\n", 1)
}

// While the key of a request is banned, all requests of the handler are denied.
func TestBanOfHandler(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		c := caddytest.Start(t, crawlerSite("1h scope handler", "problem_json\nheaders draft x_ratelimit\n"+use))
		get := func(agent, path, net string) caddytest.Response {
			t.Helper()
			return c.Get(t, path, "User-Agent", agent, "Net", net)
		}
		const all = `"all";q=100;w=3600`
		free := func(path, net string) {
			t.Helper()
			r := get("Firefox", path, net)
			r.Want(t, 200, "X-Seen", "[]", "Retry-After", "")
			if path != "/all" {
				r.Want(t, 200, "RateLimit-Policy", "", "RateLimit", "", "X-RateLimit-Limit", "")
			}
		}
		banned := func(agent, path, net string) {
			t.Helper()
			r := get(agent, path, net)
			r.Want(t, 403, "X-Seen", "[truefalse] crawlers")
			r.WantWait(t, 3600)
			r.WantProblem(t, 403, "abnormal-usage-detected", "crawlers")
		}
		free("/", "a")
		free("/all", "a")
		get("SomeBot", "/all", "a").Want(t, 200, "RateLimit-Policy", all+`, "crawlers";q=1;w=600`)
		r := get("SomeBot", "/", "a") // denied by the limit, and banned from now on
		r.WantWait(t, 3600)
		for range 3 {
			banned("Firefox", "/", "a")
			banned("Firefox", "/all", "a")
			banned("curl", "/", "a")
		}
		get("SomeBot", "/", "a").WantWait(t, 3600)
		get("SomeBot", "/all", "a").WantWait(t, 3600)
		// Exempt requests precede the ban, and others have another key.
		free("/robots.txt", "a")
		get("SomeBot", "/robots.txt", "a").Want(t, 200, "X-Seen", "[]")
		free("/", "b")
		free("/all", "b")
		r = get("Firefox", "/all", "b")
		r.Want(t, 200, "RateLimit-Policy", all, "RateLimit", `"all";r=96;t=3600`) // the banned ones are not charged

		// A key with an empty placeholder is banned in the zone alone.
		get("SomeBot", "/", "").Want(t, 200)
		get("SomeBot", "/", "").WantWait(t, 3600)
		get("SomeBot", "/", "").WantWait(t, 3600)
		free("/", "")

		for outcome, n := range map[string]int{"allowed": 2, "denied": 2, "banned": 12, "exempt": 1} {
			caddytest.WaitForMetric(t, c, fmt.Sprintf(`caddy_rate_limit_requests_total{outcome="%s",zone="crawlers"} %d`, outcome, n))
		}
		caddytest.Eventually(t, "the ban is logged", func() bool {
			return strings.Contains(c.Logged(), `"zone":"crawlers","wait":35`) && strings.Contains(c.Logged(), `"reason":"ban","limit":"ban"`)
		})
		c.Operate(t, 204, "DELETE", "zones/crawlers/ban?key=a", "")
		free("/", "a")
		c.Operate(t, 204, "PUT", "zones/crawlers/ban?key=a", `{"duration":"2h"}`)
		r = get("Firefox", "/", "a")
		r.Want(t, 403)
		r.WantWait(t, 7200)

		// In shadow mode, and with the scope of the zone, the others pass.
		c.Reload(t, crawlerSite("1h scope handler\nshadow", use))
		get("Firefox", "/", "a").Want(t, 200, "X-Seen", "[truefalse]", "Retry-After", "")
		caddytest.WaitForMetric(t, c, `caddy_rate_limit_requests_total{outcome="shadow_denied",zone="crawlers"} 1`)
		c.WaitForLog(t, "rate limit would be exceeded")
		c.Reload(t, crawlerSite("1h scope zone", use))
		free("/", "a")
		get("SomeBot", "/", "a").Want(t, 403)
	})
}

// The alternative of the key that a request has decides which ban is looked up. A factor of 0 takes a
// request out of the zone, whether the zone's match matches it or not.
func TestBanOfHandlerKeys(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, caddytest.Site(`zone api {
			match method POST
			key {header.User} {header.Net}
			token_bucket 1 1h
			factor {header.Factor}
			cost {header.Cost}
			plan {header.Plan} {
				free unlimited
			}
			override vip unlimited
			ban 1h scope handler
		}
		`))
	for _, key := range []string{"a", "vip"} {
		c.Operate(t, 204, "PUT", banPath(key), "")
	}
	for _, header := range []string{"User a", "Net a", "User vip", "User a Plan free", "User a Cost 0", "User a Factor 2", "User a Factor none"} {
		c.Get(t, "/", strings.Fields(header)...).WantWait(t, 3600)
	}
	for _, header := range []string{"User b", "User b Net a", "User a Factor 0", ""} {
		c.Get(t, "/", strings.Fields(header)...).Want(t, 200)
	}
	if strings.Contains(c.Logged(), " a number from 0") {
		t.Error("a look-up warns about a factor or a cost")
	}
}

// While the store fails, requests of no zone are answered as those of the zone.
func TestBanOfHandlerOutage(t *testing.T) {
	t.Parallel()
	nobody := "redis 127.0.0.1:" + redistest.FreePort(t) + "\non_store_error "
	for policy, status := range map[string]int{"deny": 503, "allow": 200, "local": 200} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			c := caddytest.Start(t, crawlerSite("1h scope handler", nobody+policy))
			c.Get(t, "/", "Net", "a").Want(t, status)
			c.Get(t, "/").Want(t, 200) // its key is empty, so there is nothing to ask
			c.Get(t, "/robots.txt", "Net", "a").Want(t, 200)
			if policy != "local" {
				return
			}
			for range 2 {
				c.Get(t, "/", "Net", "a", "User-Agent", "SomeBot")
			}
			c.Get(t, "/", "Net", "a").WantWait(t, 3600) // by the local ban
		})
	}
}
