package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/httpfields"
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
		caddytest.WaitForMetric(t, c, `caddy_rate_limit_bans_total{zone="api"} 1`)
		c.Operate(t, 204, "PUT", banPath("z"), `{"duration":"2h"}`)
		caddytest.WaitForMetric(t, c, `caddy_rate_limit_bans_total{zone="api"} 2`)
		c.WaitForLog(t, `"msg":"rate limit exceeded","zone":"api","wait":3`)
		c.WaitForLog(t, `"name":"rate_limit_exceeded"`)

		// Another limit keeps the budget, and frees nobody. Another ban frees nobody, too.
		c.Reload(t, banSite("fixed_window 3 10m\n ban 10m after 9", use))
		r = caddytest.EventuallySees(t, "the store is asked again", func() caddytest.Response { return get("a") }, func(r caddytest.Response) bool {
			r.Want(t, 429)
			return r.Field("RateLimit") != "" || use == "" // a denial that is remembered puts it off by a second
		})
		r.Want(t, 429, "RateLimit", `"api";r=1`) // to which nothing is charged
		r.WantWait(t, 3600)
		get("b").Want(t, 200, "RateLimit", `"api";r=1;t=600`)
		c.Reload(t, banSite("fixed_window 3 10m", use))
		get("a").Want(t, 200, "RateLimit", `"api";r=0;t=600`)
	})
}

// The true cost of a response is charged although a ban has begun since.
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
		c.Get(t, "/?cost=5").Want(t, 200)
		c.Get(t, "/?cost=5").Want(t, 429, "Retry-After", "1") // the event that the first request has reserved is all it lacks
		c.Get(t, "/?cost=6").WantWait(t, 3600)
		c.Get(t, "/?cost=0").WantWait(t, 3600)
		g.pass <- struct{}{}
		if status := <-held; status != 200 {
			t.Fatalf("the request that passed before the ban got %d", status)
		}
		c.Reload(t, config(""))
		c.Get(t, "/?cost=0").Want(t, 200, "RateLimit", `"api";r=1;t=3600`)
	})
}
