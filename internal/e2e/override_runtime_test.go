package e2e

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// setOverride sets the override of a key in zone api as any instance finds it, for a while or
// permanently.
func setOverride(t *testing.T, server *redistest.Server, key, text string, span time.Duration) {
	t.Helper()
	name := "caddy_rl:{" + cmp.Or(key, "%") + "}:api:o"
	if text == "" {
		server.Client.Del(t.Context(), name)
	} else if err := server.Client.Set(t.Context(), name, text, span).Err(); err != nil {
		t.Fatal(err)
	}
}

const unlimitedOverride = `{"unlimited":true}`

// overridable is a site with a zone api that has overrides.
func overridable(server *redistest.Server, options string) string {
	config := caddytest.Site(fmt.Sprintf("zone api {\n key {header.Key}\n gcra 2 1h\n runtime_overrides\n %s\n}\nredis %s {\n timeout 30s\n}\n", options, server.Addr))
	return strings.Replace(config, "respond ok", `respond "[{http.rate_limit.api.limit} {http.rate_limit.api.allowed} {http.rate_limit.api.charged}]"`, 1)
}

// All instances follow an override, and what was charged to a limit that stays isn't lost.
func TestOverridesAtRunTime(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	a, b := caddytest.Start(t, overridable(server, "")), caddytest.Start(t, overridable(server, ""))
	a.Get(t, "/", "Key", "k").Want(t, 200, "RateLimit-Policy", `"api";q=2;w=3600`)

	const more = `"limits":[{"algorithm":"gcra","events":2,"window":3600000000000},{"algorithm":"fixed_window","events":5,"window":"1h"}]`
	setOverride(t, server, "k", "{"+more+"}", 0)
	for i, c := range []*caddytest.Caddy{b, a} {
		r := c.Get(t, "/", "Key", "k")
		policy := `"api";q=2;w=3600, "api/2";q=5;w=3600`
		if i == 0 {
			r.Want(t, 200, "RateLimit-Policy", policy, "RateLimit", `"api";r=0;t=1800, "api/2";r=4;t=3600`)
			caddytest.WantText(t, "placeholders", r.Text, "[2 true 1]")
		} else {
			r.Want(t, 429, "RateLimit-Policy", policy, "Retry-After", "1800")
		}
	}
	setOverride(t, server, "k", unlimitedOverride, 0)
	for _, c := range []*caddytest.Caddy{a, b, a, b} {
		r := c.Until(t, 200, "Key", "k")
		for name := range r.Header {
			if strings.HasPrefix(name, "Ratelimit") {
				t.Errorf("%s: %q", name, r.Header[name])
			}
		}
		caddytest.WantText(t, "placeholders of no limit", r.Text, "[  ]")
	}
	caddytest.WaitForMetric(t, a, `caddy_rate_limit_requests_total{outcome="overridden",zone="api"} 2`)
	setOverride(t, server, "k", `{`+more+`,"until":"2026-01-02T03:04:05Z"}`, 0) // when it really ends, the store says
	b.Get(t, "/", "Key", "k").Want(t, 429, "Retry-After", "1800")
	a.Get(t, "/", "Key", "other").Want(t, 200, "RateLimit-Policy", `"api";q=2;w=3600`, "RateLimit", `"api";r=1;t=1800`)

	setOverride(t, server, "k", unlimitedOverride, time.Hour)
	a.Until(t, 200, "Key", "k")
	setOverride(t, server, "k", unlimitedOverride, time.Millisecond)
	a.Until(t, 429, "Key", "k").Want(t, 429, "RateLimit-Policy", `"api";q=2;w=3600`)
	b.Get(t, "/", "Key", "k").Want(t, 429)
}

// An unreadable override has no effect, and is reported. Other keys have their overrides.
func TestOverridesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	caddytest.Long(t)
	server := redistest.Shared(t)
	c := caddytest.Start(t, overridable(server, "override config unlimited"))
	for i, text := range []string{
		"garbage", "[]", "{}", `{"limit":[]}`, `{"unlimited":true}{}`, `{"unlimited":true,"limits":[{"algorithm":"gcra","events":1,"window":"1s"}]}`,
		`{"limits":[{"algorithm":"gcra","events":0,"window":"1s"}]}`, `{"limits":[{"algorithm":"magic","events":1,"window":"1s"}]}`,
	} {
		key := fmt.Sprint("k", i)
		setOverride(t, server, key, text, 0)
		for _, want := range []int{200, 200, 429} {
			c.Get(t, "/", "Key", key).Want(t, want, "RateLimit-Policy", `"api";q=2;w=3600`)
		}
	}
	if v := seen[adminapi.Key](t, c, keyPath("k0")); v.Override == nil || v.Override.Error == "" {
		t.Errorf("%+v", v.Override)
	}
	setOverride(t, server, "", "zzz", 0)
	c.WaitForLog(t, "the override of a key can't be read")
	caddytest.Flood(t, 64, 64, "/", c) // without a key
	c.WaitForLog(t, "invalid character 'z'")
	if n := strings.Count(c.Logged(), "the override of a key can't be read"); n != 9 {
		t.Errorf("it was said %d times, want once of each", n)
	}
	server.Client.HSet(t.Context(), "caddy_rl:{hash}:api:o", "a", "b") // the store can't decide
	for _, want := range []int{200, 200, 429} {
		c.Get(t, "/", "Key", "hash").Want(t, want)
	}
	// The configuration's overrides are there where there is none in the store.
	for range 4 {
		c.Get(t, "/", "Key", "config").Want(t, 200)
	}
	setOverride(t, server, "config", `{"limits":[{"algorithm":"gcra","events":1,"window":"1h"}]}`, 0)
	c.Get(t, "/", "Key", "config").Want(t, 200)
	c.Get(t, "/", "Key", "config").Want(t, 429, "RateLimit-Policy", `"api";q=1;w=3600`)
}

// An override costs no round trip, but for the one that finds it.
func TestOverrideRoundTrips(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := caddytest.Start(t, overridable(server, "shadow"))
	for key, text := range map[string]string{"none": "", "more": `{"limits":[{"algorithm":"gcra","events":1000,"window":"1s"}]}`, "unlimited": unlimitedOverride} {
		setOverride(t, server, key, text, 0)
		c.Get(t, "/", "Key", key).Want(t, 200)
		before := server.Calls(t, "evalsha")
		for range 50 {
			c.Get(t, "/", "Key", key).Want(t, 200)
		}
		n := server.Calls(t, "evalsha") - before
		if key != "none" && n < 50 || n > 60 { // denials of a shadow are remembered; checks of Redis are calls, too
			t.Errorf("%s: 50 requests took %d script calls", key, n)
		}
	}
}

// An override set at run time has what the zones of the handler leave.
func TestBoundWorkOfOverrides(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, caddytest.Site("zone api {\n key {query.key}\n cost {header.Cost}\n sliding_log 10000 1h\n runtime_overrides\n}\nzone all {\n cost {header.Cost}\n sliding_log 150000 1h\n}\n"))
	put := func(status int, limits, says string) {
		t.Helper()
		if r := c.Operate(t, status, "PUT", overridePath("k"), `{"limits":[`+limits+`]}`); !strings.Contains(r.Text, says) {
			t.Errorf("%s, want %q", r.Text, says)
		}
	}
	put(204, `{"algorithm":"sliding_log","events":100000,"window":"1h"}`, "")
	put(204, `{"algorithm":"gcra","events":45000,"window":"1h"}`, "")
	put(400, `{"algorithm":"sliding_log","events":200000,"window":"1h"}`, "take too long to decide in one call: write sliding_window")
	put(204, `{"algorithm":"sliding_log","events":104574,"window":"1h"}`, "")
	put(400, `{"algorithm":"sliding_log","events":200001,"window":"1h"}`, "events must be at most 200000")
}
