package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/httpfields"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// banSite is a site with a zone of these options, which says what placeholders hold.
func banSite(zone, rest string) string {
	config := strings.Replace(caddytest.Site("zone api {\n key {header.Key}\n"+zone+"\n}\n"+rest), "admin {$ADMIN}", "admin {$ADMIN}\n\tevents {\n\ton rate_limit_exceeded test_record\n}", 1)
	config = strings.Replace(config, "@limited not path /ready\n", "@limited not path /ready\nheader >X-Seen \"{http.rate_limit.api.banned} {http.rate_limit.api.allowed} {http.rate_limit.api.limit} {http.rate_limit.api.remaining}\"\n", 1)
	return config
}

func TestBan(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		c := caddytest.Start(t, banSite("fixed_window 2 10m\n fixed_window 100 1d\n ban 1h after 2", "problem_json\nheaders draft x_ratelimit\n"+use))
		get := func(key string) caddytest.Response {
			t.Helper()
			return c.Get(t, "/", "Key", key)
		}
		const policy = `"api";q=2;w=600, "api/2";q=100;w=86400`
		get("a").Want(t, 200, "RateLimit-Policy", policy, "RateLimit", `"api";r=1;t=600, "api/2";r=99;t=86400`, "X-Seen", "false true 2 1")
		get("a").Want(t, 200, "X-Seen", "false true 2 0")

		r := get("a")
		r.Want(t, 429, "RateLimit", `"api";r=0;t=600, "api/2";r=98`, "X-RateLimit-Remaining", "0", "X-Seen", "false false 2 0")
		r.WantWait(t, 600)
		r.WantProblem(t, 429, "quota-exceeded", "api")
		// The second denial brings the ban, and says so.
		r = get("a")
		r.Want(t, 429, "RateLimit-Policy", policy, "RateLimit", `"api";r=0;t=600, "api/2";r=98`, "X-RateLimit-Limit", "2", "X-Seen", "true false 2 0")
		r.WantWait(t, 3600)
		r.WantProblem(t, 429, "abnormal-usage-detected", "api")

		for range 20 { // that the ban stands may be remembered
			r = get("a")
			r.Want(t, 429, "RateLimit-Policy", policy)
			r.WantWait(t, 3600)
			r.WantProblem(t, 429, "abnormal-usage-detected", "api")
			seen := "true false 2 0"
			if fields, there := r.Header[httpfields.RateLimit]; there && fields[0] == "" {
				t.Error("RateLimit is there, and empty")
			}
			if r.Field("RateLimit") == "" && strings.Contains(use, "redis") { // no limit was asked
				seen = "true false"
			}
			r.Want(t, 429, "X-Seen", seen)
		}
		get("b").Want(t, 200, "X-Seen", "false true 2 1")

		for outcome, n := range map[string]int{"allowed": 3, "denied": 2, "banned": 20} {
			caddytest.WaitForMetric(t, c, fmt.Sprintf(`caddy_rate_limit_requests_total{outcome="%s",zone="api"} %d`, outcome, n))
		}
		c.WaitForLog(t, `"msg":"rate limit exceeded","zone":"api","wait":3`)
		c.WaitForLog(t, `"name":"rate_limit_exceeded"`)

		// Another limit is a new budget, and frees nobody. Another ban frees nobody, too.
		c.Reload(t, banSite("fixed_window 3 10m\n ban 10m after 9", use))
		r = caddytest.EventuallySees(t, "the store is asked again", func() caddytest.Response { return get("a") }, func(r caddytest.Response) bool {
			r.Want(t, 429)
			return r.Field("RateLimit") != "" || use == "" // a denial that is remembered puts it off by a second
		})
		r.Want(t, 429, "RateLimit", `"api";r=3`) // to which nothing is charged
		r.WantWait(t, 3600)
		get("b").Want(t, 200, "RateLimit", `"api";r=2;t=600`)
		c.Reload(t, banSite("fixed_window 3 10m", use))
		get("a").Want(t, 200, "RateLimit", `"api";r=2;t=600`)
	})
}

// If one instance bans a key, all instances do.
func TestBanOverInstances(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	config := caddytest.Site("zone api {\n key {header.Key}\n fixed_window 1 10m\n mode uniform\n ban 1h after 2\n}\nredis " + server.Addr + " {\n timeout 30s\n}")
	one, other := caddytest.Start(t, config), caddytest.Start(t, config)
	one.Get(t, "/", "Key", "a").Want(t, 200)
	one.Get(t, "/", "Key", "a").Want(t, 429, "Retry-After", "600")
	other.Get(t, "/", "Key", "a").WantWait(t, 3600)
	for _, c := range []*caddytest.Caddy{one, other} {
		for range 10 {
			r := c.Get(t, "/", "Key", "a")
			r.Want(t, 429)
			r.WantWait(t, 3600)
		}
	}
	keys, err := server.Client.Keys(t.Context(), "*{a}*").Result()
	if err != nil || !strings.Contains(fmt.Sprint(keys), "caddy_rl:{a}:api:b") || len(keys) != 2 {
		t.Errorf("%v %q", err, keys)
	}
	for _, c := range []*caddytest.Caddy{one, other} {
		caddytest.EventuallySees(t, "a request is denied without asking Redis", func() (hits int) {
			c.Get(t, "/", "Key", "a").Want(t, 429)
			_, after, _ := strings.Cut(c.Metrics(t), `caddy_rate_limit_deny_cache_hits_total{zone="api"} `)
			_, _ = fmt.Sscan(after, &hits)
			return hits
		}, func(hits int) bool { return hits > 0 })
	}
}

// Shadows, overrides, settled charges and requests that are held are as they were.
func TestBanBeside(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		c := caddytest.Start(t, caddytest.Site(`
zone shadow {
	match path /shadow
	gcra 1 1h
	shadow
	ban 1h
}
zone some {
	match path /some
	key {header.Key}
	gcra 1 1h
	ban 1h
	override free unlimited
	override few {
		gcra 1 30m
	}
}
zone settled {
	match path /settled
	token_bucket 5 1h
	ban 1h
	settle {
		match status 500
	}
}
zone held {
	match path /held
	gcra 1 1000h
	delay 1000h
	ban 2000h after 2
}
zone whole {
	match path /whole
	gcra 1 1h
	ban 1h
	mode nary
	status 403
}
zone beside {
	match path /whole
	gcra 9 1h
}
`+use))
		for range 4 {
			c.Get(t, "/shadow").Want(t, 200, "RateLimit", "", "Retry-After", "")
		}
		caddytest.WaitForMetric(t, c, `caddy_rate_limit_requests_total{outcome="shadow_denied",zone="shadow"} 3`)
		caddytest.WaitForMetric(t, c, `caddy_rate_limit_requests_total{outcome="banned",zone="shadow"} 0`)
		for range 3 {
			c.Get(t, "/some", "Key", "free").Want(t, 200)
		}
		c.Get(t, "/some", "Key", "few").Want(t, 200)
		c.Get(t, "/some", "Key", "few").Want(t, 429, "Retry-After", "3600")
		for range 7 {
			c.Get(t, "/settled").Want(t, 200, "RateLimit", `"settled";r=4;t=720`)
		}
		c.Get(t, "/held").Want(t, 200)
		ctx, leave := context.WithCancel(t.Context())
		held := c.Hold(ctx, "/held")
		caddytest.WaitForMetric(t, c, `caddy_rate_limit_requests_total{outcome="delayed",zone="held"} 1`)
		c.Get(t, "/held").Want(t, 429) // it would be held for too long
		c.Get(t, "/held").WantWait(t, 2000*3600)
		c.Get(t, "/held").WantWait(t, 2000*3600)
		leave()
		<-held

		c.Get(t, "/whole").Want(t, 200, "RateLimit", `"beside";r=8;t=400, "whole";r=0;t=3600`)
		for range 5 {
			c.Get(t, "/whole").Want(t, 403)
		}
		c.Reload(t, caddytest.Site("zone beside {\n gcra 9 1h\n}\n"+use))
		c.Get(t, "/").Want(t, 200, "RateLimit", `"beside";r=7;t=400`)
	})
}

// The true cost of a response is charged although a ban has begun meanwhile.
func TestBanAndSettle(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		g := startGate(t)
		config := func(ban string) string {
			config := gated(g, "zone api {\n fixed_window 10 1h\n cost {query.cost}\n "+ban+"\n settle {\n cost {http.response.header.X-Tokens}\n }\n}\n"+use)
			return strings.Replace(config, "test_hold", "header X-Tokens {query.tokens}", 1)
		}
		c := caddytest.Start(t, config("ban 1h"))
		held := c.Hold(t.Context(), "/hold?cost=1&tokens=4")
		g.wait(t, 1)
		c.Get(t, "/?cost=10").WantWait(t, 3600)
		c.Get(t, "/?cost=0").WantWait(t, 3600)
		g.pass <- struct{}{}
		if status := <-held; status != 200 {
			t.Fatalf("the request that passed before the ban got %d", status)
		}
		c.Reload(t, config(""))
		c.Get(t, "/?cost=0").Want(t, 200, "RateLimit", `"api";r=6;t=3600`)
	})
}
