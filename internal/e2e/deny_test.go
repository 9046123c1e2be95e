package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// A request that Redis has denied is denied again without asking Redis. The response names the limits that deny, and
// no others. TestDenyCacheUntil says when Redis is asked again, and TestDenyCacheIsRight
// what is not remembered.
func TestDenialsAreRemembered(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	config := fmt.Sprintf(`{
	admin {$ADMIN}
}
{$SITE}
@limited not path /ready
rate_limit @limited {
	zone two {
		match path /two
		gcra 100 1h
		fixed_window 1 1h
	}
	zone other {
		match path /two
		key {client_ip}
		gcra 100 1000h
	}
	redis %s {
		timeout 30s
	}
	headers draft x_ratelimit
}
handle_errors {
	respond "{http.rate_limit.exceeded.name} two={http.rate_limit.two.remaining}/{http.rate_limit.two.limit} other={http.rate_limit.other.remaining}{http.rate_limit.other.allowed}"
}
respond ok
`, server.Addr)
	c := caddytest.Start(t, config)

	denied := func(path string) caddytest.Response {
		t.Helper()
		r := c.Get(t, path)
		r.Want(t, 429)
		return r
	}
	c.Get(t, "/two").Want(t, 200)
	denied("/two")

	others, all := 2, 1 // the other zone was asked about the two
	r := caddytest.EventuallySees(t, "a denial is remembered", func() caddytest.Response {
		all++
		return denied("/two")
	}, func(r caddytest.Response) bool {
		if !strings.Contains(r.Field("RateLimit"), "other") {
			return true
		}
		caddytest.WantText(t, "body", r.Text, "two two=0/1 other=99true")
		others++
		return false
	})
	r.Want(t, 429,
		"Ratelimit-Policy", `"other";q=100;w=3600000, "two";q=100;w=3600, "two/2";q=1;w=3600`,
		"Ratelimit", `"two/2";r=0;t=3600`,
		"X-Ratelimit-Limit", "1", "X-Ratelimit-Remaining", "0", "X-Ratelimit-Reset", "3600",
		"Retry-After", "3600")
	caddytest.WantText(t, "body", r.Text, "two two=0/1 other=")
	metrics := c.Metrics(t)
	for _, line := range []string{
		`caddy_rate_limit_deny_cache_hits_total{zone="two"} 1`,
		fmt.Sprintf(`caddy_rate_limit_requests_total{outcome="denied",zone="two"} %d`, all),
		`caddy_rate_limit_requests_total{outcome="allowed",zone="other"} 1`,
		fmt.Sprintf(`caddy_rate_limit_requests_total{outcome="denied_elsewhere",zone="other"} %d`, others-1),
		`caddy_rate_limit_deny_cache_hits_total{zone="other"} 0`,
	} {
		if !strings.Contains(metrics, line+"\n") {
			t.Errorf("the metrics don't say %s", line)
		}
	}
}
