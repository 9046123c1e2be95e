package ratelimit

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// Exempt requests pass whatever the zone has, unlike other requests of the same key, and cost nothing.
func TestExempt(t *testing.T) {
	t.Parallel()
	g := startGate(t)
	server := redistest.Start(t)
	for name, use := range map[string]string{"memory": "", "redis": "redis " + server.Addr + " {\n timeout 30s\n}\n"} {
		t.Run(name, func(t *testing.T) {
			c := startCaddy(t, strings.Replace(gated(g, `zone api {
				match path /api/* /hold
				exempt path /api/health
				exempt {
					header X-Team ops
					method GET
				}
				key {header.Key}
				fixed_window 2 1h
				concurrency 1
				ban 1h
				status 403
			}
			`+use), "@limited not path /ready\n", "@limited not path /ready\nheader >X-Seen \"[{http.rate_limit.api.limit}{http.rate_limit.api.allowed}{http.rate_limit.api.banned}]\"\n", 1))
			passes := func(method, path string, header ...string) {
				t.Helper()
				r, err := c.do(method, "http://"+c.site+path, "", append([]string{"Key", "k"}, header...)...)
				if err != nil {
					t.Fatal(err)
				}
				r.want(t, 200, "RateLimit", "", "RateLimit-Policy", "", "X-Seen", "[]")
			}
			limited := func(status int, header ...string) {
				t.Helper()
				r, err := c.do("POST", "http://"+c.site+"/api/x", "", append([]string{"Key", "k"}, header...)...)
				if err != nil {
					t.Fatal(err)
				}
				r.want(t, status)
			}
			calls := func() int {
				if use == "" {
					return 0
				}
				return server.Calls(t, "evalsha")
			}
			before := calls()
			for range 50 {
				passes("POST", "/api/health")
				passes("GET", "/api/x", "X-Team", "ops")
			}
			passes("GET", "/elsewhere", "X-Team", "ops") // doesn't belong to the zone
			if n := calls() - before; n > 10 {           // Redis is checked, too
				t.Errorf("exempt requests took %d script calls", n)
			}
			// All matchers of a block must match, and one of several lines.
			limited(200, "X-Team", "ops")
			limited(200)
			limited(403) // and is banned from now on
			limited(403, "X-Team", "ops")
			for range 3 {
				passes("POST", "/api/health")
				passes("GET", "/api/x", "X-Team", "ops")
			}
			for outcome, n := range map[string]int{"exempt": 106, "allowed": 2, "denied": 1, "banned": 1} {
				waitForMetric(t, c, fmt.Sprintf(`caddy_rate_limit_requests_total{outcome="%s",zone="api"} %d`, outcome, n))
			}
			// Also while no slot is free.
			held := c.hold(t.Context(), "/hold")
			g.wait(t, 1)
			r, err := c.do("POST", "http://"+c.site+"/api/x", "")
			if err != nil {
				t.Fatal(err)
			}
			r.want(t, 403, "Retry-After", "1")
			passes("GET", "/api/x", "X-Team", "ops", "Key", "")
			g.pass <- struct{}{}
			<-held
		})
	}
}

// An exempt request of one zone is limited by others.
func TestExemptOfOneZone(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, site("zone a {\n exempt path /free\n gcra 1 1h\n}\nzone b {\n fixed_window 3 1h\n}"))
	for range 3 {
		c.get(t, "/free").want(t, 200, "RateLimit-Policy", `"b";q=3;w=3600`)
	}
	c.get(t, "/free").want(t, 429, "RateLimit-Policy", `"b";q=3;w=3600`)
}

// A matcher that fails answers the request as one of match does.
func TestExemptFails(t *testing.T) {
	t.Parallel()
	zone := func(option string) string {
		return "zone api {\n " + option + " expression `int({http.request.uri.query.n}) == 1`\n gcra 100 1h\n}"
	}
	c := startCaddy(t, site(zone("match")))
	want := c.get(t, "/?n=x")
	if c.get(t, "/?n=1").want(t, 200); want.StatusCode < 400 {
		t.Fatalf("status %d: this matcher doesn't fail", want.StatusCode)
	}
	c.reload(t, site(zone("exempt")))
	c.get(t, "/?n=1").want(t, 200)
	c.get(t, "/?n=x").want(t, want.StatusCode)
}

// Zones of one name can exempt other requests.
func TestExemptIdentity(t *testing.T) {
	handler := func(exempt string) string {
		return `{"handler":"rate_limit","rate_limits":{"z":{"limits":[{"algorithm":"gcra","events":1,"window":"1s"}]` + exempt + `}}}`
	}
	if err := validate(handlerConfig(handler(`,"exempt":[{"path":["/a"]}]`) + "," + handler(""))); err != nil {
		t.Error(err)
	}
}

// A key without a limit keeps the ban and the slots of the zone.
func TestUnlimitedKeys(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, use string) {
		config := strings.Replace(site(`zone api {
			key {header.Key}
			fixed_window 1 1h
			cost {header.Cost}
			ban 1h
			override vip unlimited
			plan {header.Plan} {
				free unlimited
			}
			runtime_overrides
			settle {
				cost {query.tokens}
			}
		}
		problem_json
		headers draft x_ratelimit
		`+use), "respond ok", "respond \"[{http.rate_limit.api.limit} {http.rate_limit.api.allowed} {http.rate_limit.api.banned}]\"", 1)
		c := startCaddy(t, config)
		saysNothing := func(r response) {
			t.Helper()
			for name := range r.Header {
				if strings.Contains(strings.ToLower(name), "ratelimit") {
					t.Errorf("%s: %q", name, r.Header[name])
				}
			}
		}
		unlimited := func(header ...string) {
			t.Helper()
			r := c.until(t, 200, header...)
			saysNothing(r)
			wantText(t, "placeholders", r.body, "[  ]")
		}
		banned := func(header ...string) {
			t.Helper()
			r := c.get(t, "/", header...)
			r.want(t, 429)
			saysNothing(r)
			r.wantWait(t, 3600)
			r.wantProblem(t, 429, "abnormal-usage-detected", "api")
		}
		for range 3 {
			unlimited("Key", "vip")
			unlimited("Key", "customer", "Plan", "free")
		}
		waitForMetric(t, c, `caddy_rate_limit_requests_total{outcome="overridden",zone="api"} 6`)
		c.operate(t, 204, "PUT", keyPath("vip")+"/ban", "")
		for range 3 {
			banned("Key", "vip")
		}
		// The ban of the key stands also for a plan without a limit, and for an override at run time.
		c.get(t, "/", "Key", "customer").want(t, 200)
		c.get(t, "/", "Key", "customer").want(t, 429)
		banned("Key", "customer", "Plan", "free")
		c.operate(t, 204, "PUT", keyPath("customer")+"/override", unlimitedOverride)
		banned("Key", "customer")
		waitForMetric(t, c, `caddy_rate_limit_requests_total{outcome="banned",zone="api"} 5`)
		waitForMetric(t, c, `caddy_rate_limit_requests_total{outcome="overridden",zone="api"} 6`)
		c.operate(t, 204, "DELETE", keyPath("customer")+"/ban", "")
		for range 3 {
			unlimited("Key", "customer")
		}
		unlimited("Key", "other", "Plan", "free")
		c.get(t, "/", "Key", "other").want(t, 200, "RateLimit", `"api";r=0;t=3600`) // none of these was charged

		// Denials before count on, because requests without a limit leave them alone.
		c.reload(t, strings.Replace(config, "ban 1h", "ban 1h after 2", 1))
		c.get(t, "/", "Key", "late").want(t, 200)
		c.get(t, "/", "Key", "late").want(t, 429)
		unlimited("Key", "late", "Plan", "free")
		c.get(t, "/", "Key", "late").wantWait(t, 3600)
		c.reload(t, strings.Replace(config, "ban 1h", "ban 1h\nshadow", 1))
		c.get(t, "/", "Key", "vip").want(t, 200)
		waitForMetric(t, c, `caddy_rate_limit_requests_total{outcome="shadow_denied",zone="api"} 1`)
	})
}

// A key without a limit takes slots. Its placeholders and fields describe the slots.
func TestUnlimitedKeysTakeSlots(t *testing.T) {
	t.Parallel()
	g := startGate(t)
	eachStore(t, func(t *testing.T, use string) {
		config := strings.Replace(gated(g, "zone api {\n key {query.key}\n fixed_window 1 1h\n concurrency 2\n override vip unlimited\n}\nproblem_json\nheaders draft x_ratelimit\n"+use),
			"@limited not path /ready\n", "@limited not path /ready\nheader >X-Seen \"{http.rate_limit.api.limit} {http.rate_limit.api.remaining} {http.rate_limit.api.allowed} {http.rate_limit.api.charged}\"\n", 1)
		c := startCaddy(t, config)
		const policy = `"api";q=2;qu="concurrent-requests"`
		for range 3 {
			c.get(t, "/?key=vip").want(t, 200, "RateLimit-Policy", policy, "RateLimit", `"api";r=1`, "X-RateLimit-Limit", "2", "X-Seen", "2 1 true 1")
		}
		held := []<-chan int{c.hold(t.Context(), "/hold?key=vip"), c.hold(t.Context(), "/hold?key=vip")}
		g.wait(t, 2)
		r := c.get(t, "/?key=vip")
		r.want(t, 429, "Retry-After", "1", "RateLimit-Policy", policy, "RateLimit", `"api";r=0;t=1`, "X-Seen", "2 0 false 0")
		r.wantProblem(t, 429, "quota-exceeded", "api")
		c.waitForLog(t, `"reason":"concurrency","limit":"concurrency 2"`)
		for range held {
			g.pass <- struct{}{}
		}
		for _, h := range held {
			<-h
		}
		eventually(t, "the slots are free", func() bool { return seenKey(t, c, "vip").Budgets[0].Concurrency.InUse == 0 })
		waitForMetric(t, c, `caddy_rate_limit_requests_total{outcome="denied",zone="api"} 1`)
		waitForMetric(t, c, `caddy_rate_limit_requests_total{outcome="overridden",zone="api"} 5`)
	})
}

// A key without a limit, slots and ban costs no script call. With a factor of 0 a request passes
// whatever the zone has.
func TestUnlimitedKeysCostNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	use := "redis " + server.Addr + " {\n timeout 30s\n}\n"
	c := startCaddy(t, site("zone api {\n key {header.Key}\n token_bucket 1 1h\n override vip unlimited\n}\n"+use))
	before := server.Calls(t, "evalsha")
	for range 50 {
		c.get(t, "/", "Key", "vip").want(t, 200)
	}
	c.reload(t, site("zone api {\n key {header.Key}\n token_bucket 1 1h\n factor {header.Factor}\n ban 1h\n concurrency 1\n}\n"+use))
	c.operate(t, 204, "PUT", keyPath("vip")+"/ban", "")
	for range 50 {
		c.get(t, "/", "Key", "vip", "Factor", "0").want(t, 200, "RateLimit-Policy", "")
	}
	if n := server.Calls(t, "evalsha") - before; n > 10 { // Redis is checked, too
		t.Errorf("%d script calls", n)
	}
	c.get(t, "/", "Key", "vip", "Factor", "1").want(t, 429)
}

// Lines of match or exempt that were meant as one block get a warning. Alternatives don't.
func TestMatchersOfOneBlock(t *testing.T) {
	for matchers, want := range map[string][]string{
		"match method POST\nmatch path /login":                         {"method", "path"},
		"match path /login\nmatch method POST":                         {"method", "path"},
		"match path /a\nmatch path /b\nmatch not client_ip 10.0.0.0/8": {"not", "path"},
		"match not path /a\nmatch not path /b":                         {"not", "not"},
		"match protocol https\nmatch method POST":                      {"protocol", "method"},
		"match method POST\nmatch method PUT":                          nil,
		"match path /a\nmatch path /b":                                 nil,
		"match path /a\nmatch host example.com\nmatch header A b":      nil,
		"match {\n method POST\n path /login\n}\nmatch path /signup":   nil,
		"match {\n method POST\n path /login\n}\nmatch method PUT":     nil,
		"match not path /a":                                            nil,
		"exempt method GET\nexempt path /health":                       {"method", "path"},
		"exempt method GET\nmatch path /health":                        nil,
		"exempt client_ip 10.0.0.0/8\nexempt path /health":             nil,
	} {
		tokens, err := caddyfile.Tokenize([]byte("rate_limit {\n zone api {\n "+matchers+"\n gcra 1 1s\n}\n}"), "Caddyfile")
		if err != nil {
			t.Fatal(err)
		}
		var h Handler
		if err := h.UnmarshalCaddyfile(caddyfile.NewDispenser(tokens)); err != nil {
			t.Fatal(err)
		}
		z := h.RateLimits["api"]
		if got := append(matchersOfOneBlock(z.MatcherSetsRaw), matchersOfOneBlock(z.ExemptRaw)...); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", matchers, got, want)
		}
	}
}
