package ratelimit

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/httpfields"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// banSite is a site with a zone of these options, which says what placeholders hold.
func banSite(zone, rest string) string {
	config := strings.Replace(site("zone api {\n key {header.Key}\n"+zone+"\n}\n"+rest), "admin {$ADMIN}", "admin {$ADMIN}\n\tevents {\n\ton rate_limit_exceeded test_record\n}", 1)
	config = strings.Replace(config, "@limited not path /ready\n", "@limited not path /ready\nheader >X-Seen \"{http.rate_limit.api.banned} {http.rate_limit.api.allowed} {http.rate_limit.api.limit} {http.rate_limit.api.remaining}\"\n", 1)
	return config
}

// wantWait checks that Retry-After is at most so many seconds, and more than 100 less.
func (r response) wantWait(t *testing.T, most int) {
	t.Helper()
	if wait, err := strconv.Atoi(r.field("Retry-After")); err != nil || wait > most || wait <= most-100 {
		t.Errorf("Retry-After %q, want %d or a little less", r.field("Retry-After"), most)
	}
}

func (c *caddyProcess) metrics(t *testing.T) string {
	t.Helper()
	r, err := c.do("GET", "http://"+c.admin+"/metrics", "")
	if err != nil {
		t.Fatal(err)
	}
	return r.body
}

func TestBan(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, use string) {
		c := startCaddy(t, banSite("fixed_window 2 10m\n fixed_window 100 1d\n ban 1h after 2", "problem_json\nheaders draft x_ratelimit\n"+use))
		get := func(key string) response {
			t.Helper()
			return c.get(t, "/", "Key", key)
		}
		const policy = `"api";q=2;w=600, "api/2";q=100;w=86400`
		get("a").want(t, 200, "RateLimit-Policy", policy, "RateLimit", `"api";r=1;t=600, "api/2";r=99;t=86400`, "X-Seen", "false true 2 1")
		get("a").want(t, 200, "X-Seen", "false true 2 0")

		r := get("a")
		r.want(t, 429, "RateLimit", `"api";r=0;t=600, "api/2";r=98`, "X-RateLimit-Remaining", "0", "X-Seen", "false false 2 0")
		r.wantWait(t, 600)
		r.wantProblem(t, 429, "quota-exceeded", "api")
		// The second denial brings the ban, and says so.
		r = get("a")
		r.want(t, 429, "RateLimit-Policy", policy, "RateLimit", `"api";r=0;t=600, "api/2";r=98`, "X-RateLimit-Limit", "2", "X-Seen", "true false 2 0")
		r.wantWait(t, 3600)
		r.wantProblem(t, 429, "abnormal-usage-detected", "api")

		for range 20 { // that the ban stands may be remembered
			r = get("a")
			r.want(t, 429, "RateLimit-Policy", policy)
			r.wantWait(t, 3600)
			r.wantProblem(t, 429, "abnormal-usage-detected", "api")
			seen := "true false 2 0"
			if fields, there := r.Header[httpfields.RateLimit]; there && fields[0] == "" {
				t.Error("RateLimit is there, and empty")
			}
			if r.field("RateLimit") == "" && strings.Contains(use, "redis") { // no limit was asked
				seen = "true false"
			}
			r.want(t, 429, "X-Seen", seen)
		}
		get("b").want(t, 200, "X-Seen", "false true 2 1")

		for outcome, n := range map[string]int{"allowed": 3, "denied": 2, "banned": 20} {
			waitForMetric(t, c, fmt.Sprintf(`caddy_rate_limit_requests_total{outcome="%s",zone="api"} %d`, outcome, n))
		}
		c.waitForLog(t, `"msg":"rate limit exceeded","zone":"api","wait":3`)
		c.waitForLog(t, `"name":"rate_limit_exceeded"`)

		// Another limit is a new budget, and frees nobody. Another ban frees nobody, too.
		c.reload(t, banSite("fixed_window 3 10m\n ban 10m after 9", use))
		eventually(t, "the store is asked again", func() bool { // which a denial that is remembered puts off by a second
			r = get("a")
			r.want(t, 429)
			return r.field("RateLimit") != "" || use == ""
		})
		r.want(t, 429, "RateLimit", `"api";r=3`) // to which nothing is charged
		r.wantWait(t, 3600)
		get("b").want(t, 200, "RateLimit", `"api";r=2;t=600`)
		c.reload(t, banSite("fixed_window 3 10m", use))
		get("a").want(t, 200, "RateLimit", `"api";r=2;t=600`)
	})
}

// A ban ends when it says, and the next one is longer.
func TestBanEnds(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, use string) {
		c := startCaddy(t, site("zone api {\n gcra 1 2s\n ban 2s max 1h\n}\n"+use))
		c.get(t, "/").want(t, 200)
		for _, seconds := range []int{2, 4} {
			began := time.Now()
			c.get(t, "/").want(t, 429, "Retry-After", strconv.Itoa(seconds))
			ends := began.Add(time.Duration(seconds) * time.Second)
			for {
				r := c.get(t, "/")
				if r.StatusCode == 200 {
					break
				}
				if wait, err := strconv.Atoi(r.field("Retry-After")); err != nil || wait > seconds || time.Since(ends) > patient {
					t.Fatalf("%v after the ban should have ended: Retry-After %s, in a ban of %d s", time.Since(ends), r.field("Retry-After"), seconds)
				}
				time.Sleep(10 * time.Millisecond)
			}
			if early := time.Until(ends); early > 0 {
				t.Errorf("a ban of %d s ended %v too early", seconds, early)
			}
		}
		c.get(t, "/").want(t, 429, "Retry-After", "8")
	})
}

// If one instance bans a key, all instances do.
func TestBanOverInstances(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	config := site("zone api {\n key {header.Key}\n fixed_window 1 10m\n mode uniform\n ban 1h after 2\n}\nredis " + server.Addr + " {\n timeout 30s\n}")
	one, other := startCaddy(t, config), startCaddy(t, config)
	one.get(t, "/", "Key", "a").want(t, 200)
	one.get(t, "/", "Key", "a").want(t, 429, "Retry-After", "600")
	other.get(t, "/", "Key", "a").wantWait(t, 3600)
	for _, c := range []*caddyProcess{one, other} {
		for range 10 {
			r := c.get(t, "/", "Key", "a")
			r.want(t, 429)
			r.wantWait(t, 3600)
		}
	}
	keys, err := server.Client.Keys(t.Context(), "*{a}*").Result()
	if err != nil || !strings.Contains(fmt.Sprint(keys), "caddy_rl:{a}:api:b") || len(keys) != 2 {
		t.Errorf("%v %q", err, keys)
	}
	hits := 0
	for _, c := range []*caddyProcess{one, other} { // each has asked once or twice in each second
		var n int
		_, after, _ := strings.Cut(c.metrics(t), `caddy_rate_limit_deny_cache_hits_total{zone="api"} `)
		_, _ = fmt.Sscan(after, &n)
		hits += n
	}
	if hits < 10 {
		t.Errorf("%d of 20 requests were denied without asking Redis", hits)
	}
}

// Shadows, overrides, settled charges and requests that are held are as they were.
func TestBanBeside(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, use string) {
		c := startCaddy(t, site(`
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
	gcra 1 1s
	delay 1s
	ban 1h after 2
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
			c.get(t, "/shadow").want(t, 200, "RateLimit", "", "Retry-After", "")
		}
		waitForMetric(t, c, `caddy_rate_limit_requests_total{outcome="shadow_denied",zone="shadow"} 3`)
		waitForMetric(t, c, `caddy_rate_limit_requests_total{outcome="banned",zone="shadow"} 0`)
		for range 3 {
			c.get(t, "/some", "Key", "free").want(t, 200)
		}
		c.get(t, "/some", "Key", "few").want(t, 200)
		c.get(t, "/some", "Key", "few").want(t, 429, "Retry-After", "3600")
		for range 7 {
			c.get(t, "/settled").want(t, 200, "RateLimit", `"settled";r=4;t=720`)
		}
		c.get(t, "/held").want(t, 200)
		c.get(t, "/held").want(t, 200)
		flood(t, 6, 6, "/held", c)
		c.get(t, "/held").wantWait(t, 3600)

		c.get(t, "/whole").want(t, 200, "RateLimit", `"beside";r=8;t=400, "whole";r=0;t=3600`)
		for range 5 {
			c.get(t, "/whole").want(t, 403)
		}
		c.reload(t, site("zone beside {\n gcra 9 1h\n}\n"+use))
		c.get(t, "/").want(t, 200, "RateLimit", `"beside";r=7;t=400`)
	})
}

// The true cost of a response is charged although a ban has begun meanwhile.
func TestBanAndSettle(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, use string) {
		config := func(ban string) string {
			config := site("zone api {\n fixed_window 10 1h\n cost {query.cost}\n " + ban + "\n settle {\n cost {http.response.header.X-Tokens}\n }\n}\n" + use)
			return strings.Replace(config, "respond ok", "header X-Tokens {query.tokens}\ntest_hold\nrespond ok", 1)
		}
		c := startCaddy(t, config("ban 1h"))
		held := make(chan response)
		go func() {
			r, _ := c.do("GET", "http://"+c.site+"/?cost=1&tokens=4&hold=2s", "")
			held <- r
		}()
		c.waitForLog(t, `"msg":"held","for":2`) // not that for /ready
		c.get(t, "/?cost=10").wantWait(t, 3600)
		c.get(t, "/?cost=0").wantWait(t, 3600)
		if r := <-held; r.Response == nil || r.StatusCode != 200 {
			t.Fatalf("the request that passed before the ban: %+v", r)
		}
		c.reload(t, config(""))
		c.get(t, "/?cost=0").want(t, 200, "RateLimit", `"api";r=6;t=3600`)
	})
}

// Zones of one name must agree on their ban.
func TestBanIdentity(t *testing.T) {
	handler := func(ban string) string {
		return `{"handler":"rate_limit","rate_limits":{"z":{"limits":[{"algorithm":"gcra","events":1,"window":"1s"}]` + ban + `}}}`
	}
	const hour = `,"ban":{"duration":"1h"}`
	for other, want := range map[string]string{
		`,"ban":{"duration":"60m","after":1,"max":"1h"}`: "",
		"": "ban is 1h0m0s after 1 max 1h0m0s and none",
		`,"ban":{"duration":"1h","scope":"zone"}`:    "",
		`,"ban":{"duration":"1h","scope":"handler"}`: "ban is 1h0m0s after 1 max 1h0m0s and 1h0m0s after 1 max 1h0m0s scope handler",
		`,"ban":{"duration":"1h","max":"2h"}`:        "ban is 1h0m0s after 1 max 1h0m0s and 1h0m0s after 1 max 2h0m0s",
	} {
		err := validate(handlerConfig(handler(hour) + "," + handler(other)))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("ban %s: %v, want %q", other, err, want)
		}
	}
}
