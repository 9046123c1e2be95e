package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// A zone in the shadow decides, charges and reports like any other, but its requests
// pass, and clients see nothing of it.
func TestShadow(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		config := func(shadow, use string) string {
			config := caddytest.Site(`
zone tried {
	key {header.Key}
	` + shadow + `
	gcra 2 1h
}
zone real {
	key everybody
	fixed_window 3 10m
	match path /real
}
headers draft x_ratelimit
` + use)
			config = strings.Replace(config, "admin {$ADMIN}", "admin {$ADMIN}\n\tevents {\n\ton rate_limit_exceeded test_record\n}", 1)
			return strings.Replace(config, "respond ok", `respond "{http.rate_limit.tried.allowed} {http.rate_limit.tried.remaining} {http.rate_limit.tried.charged} [{http.rate_limit.exceeded.name}]"`, 1)
		}
		c := caddytest.Start(t, config("shadow", use))
		for i, want := range []string{"true 1 1 []", "true 0 1 []", "false 0 0 []", "false 0 0 []"} {
			r := c.Get(t, "/alone", "Key", "a")
			r.Want(t, 200)
			for name := range r.Header {
				if strings.Contains(name, "Ratelimit") || name == "Retry-After" {
					t.Errorf("request %d: %s says %q", i+1, name, r.Header[name])
				}
			}
			caddytest.WantText(t, fmt.Sprint("request ", i+1), r.Text, want)
		}
		// A shadow that denies keeps no other zone from charging.
		for _, left := range []string{"2", "1", "0"} {
			r := c.Get(t, "/real", "Key", "a")
			r.Want(t, 200, "RateLimit", `"real";r=`+left+`;t=600`, "X-RateLimit-Limit", "3", "X-RateLimit-Remaining", left)
			caddytest.WantText(t, "body", r.Text, "false 0 0 []")
		}
		// A request that another zone denies is not charged to a shadow. The denial names that
		// zone.
		c.Get(t, "/real", "Key", "b").Want(t, 429, "RateLimit", `"real";r=0;t=600`, "RateLimit-Policy", `"real";q=3;w=600`, "Retry-After", "600")
		caddytest.WantText(t, "a shadow's budget", c.Get(t, "/alone", "Key", "b").Text, "true 1 1 []")

		denied := 1
		if use == "" { // Redis' denials are remembered, and then no shadow is asked
			c.Get(t, "/real", "Key", "a").Want(t, 429, "Retry-After", "600") // however long the shadow would have it wait
			denied = 2
		}
		for line, n := range map[string]int{
			`{outcome="allowed",zone="tried"}`:          3,
			`{outcome="denied_elsewhere",zone="tried"}`: 1,
			`{outcome="shadow_denied",zone="tried"}`:    4 + denied,
			`{outcome="denied",zone="tried"}`:           0,
			`{outcome="allowed",zone="real"}`:           3,
			`{outcome="denied",zone="real"}`:            denied,
		} {
			caddytest.WaitForMetric(t, c, fmt.Sprintf("caddy_rate_limit_requests_total%s %d", line, n))
		}
		// It has its own message, and no event: the banned client passed here.
		c.WaitForLog(t, `"msg":"rate limit would be exceeded","zone":"tried","wait":`)
		c.WaitForLog(t, `"msg":"rate limit exceeded","zone":"real"`)
		c.WaitForLog(t, `"name":"rate_limit_exceeded"`)
		log := c.Logged()
		if strings.Contains(log, `"msg":"rate limit exceeded","zone":"tried"`) || strings.Count(log, "recorded event") > 2 {
			t.Error("the log or an event says that a shadow denied")
		}

		// Out of the shadow the budget is the same.
		c.Reload(t, config("", use))
		c.Get(t, "/alone", "Key", "a").Want(t, 429)
		c.Get(t, "/alone", "Key", "b").Want(t, 200, "RateLimit", `"tried";r=0;t=1800`)
		c.Reload(t, config("enforce 0", use))
		c.Get(t, "/alone", "Key", "b").Want(t, 200, "RateLimit", "")
	})
}
