package e2e

import (
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// rate_limit_budget shows a client its budgets, and charges nothing.
func TestOwnBudgets(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		c := caddytest.Start(t, twoSites(`
zone monthly {
	key {header.X-User}
	calendar 1000 year
}
`+use, `
rate_limit monthly {
	zone api {
		match path /api /login
		exempt path /api
		key {header.X-User}
		plan {header.X-Plan} {
			pro {
				fixed_window 100 1h
			}
		}
		fixed_window 5 1h
		concurrency 3
		ban 1h after 1
	}
	zone hidden {
		headers off
		fixed_window 50 1h
	}
	zone guesses {
		match path /login
		key {header.X-User}
		fixed_window 5 365d
		settle {
			match status 401
		}
	}
	zone trial {
		shadow
		fixed_window 7 1h
	}
	zone free {
		key {header.X-User}
		fixed_window 6 1h
		override alice unlimited
		runtime_overrides
	}
	zone body {
		key {http.rate_limit.request.json.user}
		fixed_window 80 1h
	}
}
rate_limit_budget /budget`, "rate_limit monthly\nrate_limit_budget /some hidden hidden monthly\nerror /broken 418\nhandle_errors {\n\trate_limit_budget hidden\n}"))
		want := func(r caddytest.Response, parts ...string) {
			t.Helper()
			r.Want(t, 200, "Content-Type", "application/json", "Cache-Control", "no-store")
			for _, part := range parts {
				if !strings.Contains(r.Text, part) {
					t.Errorf("no %s in %s", part, r.Text)
				}
			}
			for _, zone := range []string{"trial", "body", "free"} {
				if strings.Contains(r.Text, zone) {
					t.Errorf("zone %s in %s", zone, r.Text)
				}
			}
		}
		c.Get(t, "/login", "X-User", "alice").Want(t, 200)
		const one = `{"zone":"api","limits":[{"quota":5,"limit":"fixed_window 5 1h","used":1,"remaining":4,`
		const pro = `{"zone":"api","limits":[{"quota":100,"limit":"fixed_window 100 1h","used":1,"remaining":99,`
		for used, answer := range []string{`"used":2,"remaining":998,`, `"used":3,"remaining":997,`} { // by the look itself, which passes monthly
			r := c.Get(t, "/budget", "X-User", "alice")
			want(r, one, `"concurrency":{"limit":3,"in_use":0}}`, `{"zone":"guesses","limits":[{"quota":5,"limit":"fixed_window 5 8760h","used":0,"remaining":5,`,
				`{"zone":"monthly","limits":[{"quota":1000,"limit":"calendar 1000 year",`+answer)
			if strings.Contains(r.Text, "hidden") {
				t.Errorf("look %d shows a hidden zone: %s", used, r.Text)
			}
		}
		want(c.Get(t, "/budget", "X-User", "alice", "X-Plan", "pro"), pro)
		if r := c.Get(t, "/budget"); strings.Contains(r.Text, "api") {
			t.Errorf("budgets of a client without a key: %s", r.Text)
		}
		for range 2 { // through no limiter
			want(getOther(t, c, "/some"), `{"budgets":[{"zone":"hidden","limits":[{"quota":50,"limit":"fixed_window 50 1h","used":5,"remaining":45,`)
		}
		for range 5 {
			c.Get(t, "/login", "X-User", "alice")
		}
		want(c.Get(t, "/budget", "X-User", "alice"), `"used":5,"remaining":0,`, `"ban":{"banned":true,"ends_after_seconds":3`)
		r, _ := c.Do("POST", "http://"+c.OtherSite()+"/broken", "")
		if r.Want(t, 418); strings.Count(r.Text, "hidden") != 1 {
			t.Errorf("in an error route: %s", r.Text)
		}
		r, _ = c.Do("POST", "http://"+c.OtherSite()+"/some", "")
		r.Want(t, 405, "Allow", "GET, HEAD")
		r, _ = c.Do("GET", "http://"+c.OtherSite()+"/some", "", "X-User", "alice")
		if r.Want(t, 200); strings.Count(r.Text, "monthly") != 1 || strings.Count(r.Text, "hidden") != 1 { // although named twice, or of two handlers
			t.Errorf("budgets twice: %s", r.Text)
		}
	})
}

func TestOwnBudgetsOfUnknownZone(t *testing.T) {
	t.Parallel()
	site := func(zone string) string {
		return strings.Replace(caddytest.Site("zone api {\nfixed_window 5 1h\n}"), "respond ok", "rate_limit_budget /budget "+zone+"\nrespond ok", 1)
	}
	c := caddytest.Start(t, site("api"))
	r := c.Load(t, site("apy"), "text/caddyfile")
	r.Want(t, 400)
	if want := `rate_limit_budget: there is no zone \"apy\" (did you mean \"api\"?): write one of [\"api\"]`; !strings.Contains(r.Text, want) {
		t.Errorf("%s, want %s", r.Body, want)
	}
	c.Get(t, "/budget").Want(t, 200)
}

// While the store can't be asked, the response says when to come back.
func TestOwnBudgetsInOutage(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, strings.Replace(caddytest.Site("zone api {\nmatch path /api\nfixed_window 5 1h\n}\nredis 127.0.0.1:1\non_store_error deny"),
		"respond ok", "rate_limit_budget /budget\nrespond ok", 1))
	c.Get(t, "/budget").Want(t, 503, "Retry-After", "1")
}
