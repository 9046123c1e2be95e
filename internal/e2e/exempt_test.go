package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// A matcher that fails answers the request as one of match does.
func TestExemptFails(t *testing.T) {
	t.Parallel()
	zone := func(option string) string {
		return "zone api {\n " + option + " expression `int({http.request.uri.query.n}) == 1`\n gcra 100 1h\n}"
	}
	c := caddytest.Start(t, caddytest.Site(zone("match")))
	want := c.Get(t, "/?n=x")
	if c.Get(t, "/?n=1").Want(t, 200); want.StatusCode < 400 {
		t.Fatalf("status %d: this matcher doesn't fail", want.StatusCode)
	}
	c.Reload(t, caddytest.Site(zone("exempt")))
	c.Get(t, "/?n=1").Want(t, 200)
	c.Get(t, "/?n=x").Want(t, want.StatusCode)
}

// A key without a limit keeps the ban and the slots of the zone.
func TestUnlimitedKeys(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		config := strings.Replace(caddytest.Site(`zone api {
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
		c := caddytest.Start(t, config)
		saysNothing := func(r caddytest.Response) {
			t.Helper()
			for name := range r.Header {
				if strings.Contains(strings.ToLower(name), "ratelimit") {
					t.Errorf("%s: %q", name, r.Header[name])
				}
			}
		}
		unlimited := func(header ...string) {
			t.Helper()
			r := c.Until(t, 200, header...)
			saysNothing(r)
			caddytest.WantText(t, "placeholders", r.Text, "[  ]")
		}
		banned := func(header ...string) {
			t.Helper()
			r := c.Get(t, "/", header...)
			r.Want(t, 429)
			saysNothing(r)
			r.WantWait(t, 3600)
			r.WantProblem(t, 429, "abnormal-usage-detected", "api")
		}
		for range 3 {
			unlimited("Key", "vip")
			unlimited("Key", "customer", "Plan", "free")
		}
		caddytest.WaitForMetric(t, c, `caddy_rate_limit_requests_total{outcome="overridden",zone="api"} 6`)
		c.Operate(t, 204, "PUT", banPath("vip"), "")
		for range 3 {
			banned("Key", "vip")
		}
		// The ban of the key stands also for a plan without a limit, and for an override at run time.
		c.Get(t, "/", "Key", "customer").Want(t, 200)
		c.Get(t, "/", "Key", "customer").Want(t, 429)
		banned("Key", "customer", "Plan", "free")
		c.Operate(t, 204, "PUT", overridePath("customer"), unlimitedOverride)
		banned("Key", "customer")
		caddytest.WaitForMetric(t, c, `caddy_rate_limit_requests_total{outcome="banned",zone="api"} 5`)
		caddytest.WaitForMetric(t, c, `caddy_rate_limit_requests_total{outcome="overridden",zone="api"} 6`)
		c.Operate(t, 204, "DELETE", banPath("customer"), "")
		for range 3 {
			unlimited("Key", "customer")
		}
		unlimited("Key", "other", "Plan", "free")
		c.Get(t, "/", "Key", "other").Want(t, 200, "RateLimit", `"api";r=0;t=3600`) // none of these was charged

		c.Reload(t, strings.Replace(config, "ban 1h", "ban 1h\nshadow", 1))
		c.Get(t, "/", "Key", "vip").Want(t, 200)
		caddytest.WaitForMetric(t, c, `caddy_rate_limit_requests_total{outcome="shadow_denied",zone="api"} 1`)
	})
}

// A key without a limit, slots and ban costs no script call. With a factor of 0 a request passes
// whatever the zone has.
func TestUnlimitedKeysCostNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	use := "redis " + server.Addr + " {\n timeout 30s\n}\n"
	c := caddytest.Start(t, caddytest.Site("zone api {\n key {header.Key}\n token_bucket 1 1h\n override vip unlimited\n}\n"+use))
	before := server.Calls(t, "evalsha")
	for range 50 {
		c.Get(t, "/", "Key", "vip").Want(t, 200)
	}
	c.Reload(t, caddytest.Site("zone api {\n key {header.Key}\n token_bucket 1 1h\n factor {header.Factor}\n ban 1h\n concurrency 1\n}\n"+use))
	c.Operate(t, 204, "PUT", banPath("vip"), "")
	for range 50 {
		c.Get(t, "/", "Key", "vip", "Factor", "0").Want(t, 200, "RateLimit-Policy", "")
	}
	if n := server.Calls(t, "evalsha") - before; n > 10 { // each configuration checks Redis once, and a ban is set
		t.Errorf("%d script calls", n)
	}
	c.Get(t, "/", "Key", "vip", "Factor", "1").Want(t, 429)
}

// Some keys, and some plans, have other limits, or none. The used events of a limit that stays the
// same are not forgotten when other limits change.
func TestOverridesAndPlans(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		config := func(overrides string) string {
			return caddytest.Site(fmt.Sprintf(`zone api {
				key {header.X-Key}
				fixed_window 2 1h
				%s
				plan {header.X-Plan} {
					pro {
						fixed_window 4 1h
						fixed_window 100 10h
					}
					internal unlimited
				}
			}
			%s`, overrides, use))
		}
		c := caddytest.Start(t, config(`override friend unlimited
			override big {
				fixed_window 3 1h
			}`))
		ask := func(key, plan, statuses, limits string) {
			t.Helper()
			for want := range strings.FieldsSeq(statuses) {
				r := c.Get(t, "/", "X-Key", key, "X-Plan", plan)
				if fmt.Sprint(r.StatusCode) != want || r.Field("RateLimit-Policy") != limits {
					t.Errorf("key %q of plan %q: %d with limits %s, want %s with %s", key, plan, r.StatusCode, r.Field("RateLimit-Policy"), want, limits)
				}
			}
		}
		ask("anybody", "", "200 200 429", `"api";q=2;w=3600`)
		ask("stranger", "unheard of", "200 200 429", `"api";q=2;w=3600`)
		ask("friend", "", "200 200 200 200", "")
		ask("friend", "pro", "200", "") // an override goes first
		ask("big", "pro", "200 200 200 429", `"api";q=3;w=3600`)
		ask("customer", "pro", "200 200 200 200 429", `"api";q=4;w=3600, "api/2";q=100;w=36000`)
		ask("customer", "", "429", `"api";q=2;w=3600`) // of the same budget
		ask("us", "internal", "200 200 200 200", "")
		caddytest.WaitForMetric(t, c, `caddy_rate_limit_requests_total{outcome="overridden",zone="api"} 9`)

		c.Reload(t, config(""))
		ask("friend", "", "200 200 429", `"api";q=2;w=3600`)
		ask("customer", "pro", "429", `"api";q=4;w=3600, "api/2";q=100;w=36000`)
		ask("anybody", "", "429", `"api";q=2;w=3600`)
		ask("big", "", "429", `"api";q=2;w=3600`)
	})
}
