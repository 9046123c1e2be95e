package e2e

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// A ban is logged once, where it begins. Denials say what denies, and each is counted in a line. TestDenialsAreBounded says how
// few lines there are.
func TestDenialsSayWhy(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		config := func(options, use string) string {
			return strings.Replace(caddytest.Site("zone api {\n key {header.Key}\n gcra 1 1h\n token_bucket 100 1us\n"+options+"\n}\nlog_key\n"+use), "rate_limit @limited", "uri @limited strip_prefix /shown\nrate_limit @limited", 1)
		}
		c := caddytest.Start(t, config("ban 1h after 2", use))
		for range 6 {
			c.Get(t, "/shown/path?secret", "Key", "a")
		}
		const who = `"remote_ip":"127.0.0.1","client_ip":"127.0.0.1","count":\d+`
		const what = `"method":"GET","host":"127.0.0.1:\d+","path":"/shown/path"`
		wantLine := func(pattern string) {
			t.Helper()
			caddytest.Eventually(t, pattern, func() bool { return regexp.MustCompile(pattern).MatchString(c.Logged()) })
		}
		wantLine(`"msg":"rate limit exceeded","zone":"api","wait":[0-9.]+,` + who + `,"reason":"limit","limit":"gcra 1 1h",` + what + `,"id":"\w{10}","key":"a"}`)
		wantLine(`"msg":"key banned","zone":"api","until":"20[0-9TZ:-]+","duration":3600,` + who + `,"reason":"limit","limit":"gcra 1 1h",` + what + `,"key":"a"}`)
		wantLine(`"msg":"rate limit exceeded","zone":"api","wait":3[0-9.]+,` + who + `,"reason":"ban","limit":"ban",` + what + `,"id":"\w{10}","key":"a"}`)
		if n := strings.Count(c.Logged(), `"key banned"`); n != 1 {
			t.Errorf("a ban is logged %d times, want once", n)
		}
		counted := func() (sum int) {
			for _, m := range regexp.MustCompile(`"msg":"rate limit exceeded".*"count":(\d+)`).FindAllStringSubmatch(c.Logged(), -1) {
				n, _ := strconv.Atoi(m[1])
				sum += n
			}
			return sum
		}
		caddytest.EventuallySees(t, "each denial is counted once", counted, func(n int) bool { return n == 5 })
		if strings.Contains(c.Logged(), "?secret") {
			t.Error("a query is logged")
		}
		c.Reload(t, config("shadow\n ban 1h", use))
		for range 3 {
			c.Get(t, "/shown/path", "Key", "b").Want(t, 200)
		}
		wantLine(`"msg":"key would be banned","zone":"api"`)
		caddytest.WaitForMetric(t, c, `caddy_rate_limit_bans_total{zone="api"} 1`)
		c.Reload(t, strings.Replace(config("status 430", use), "log_key\n", "", 1))
		for range 2 {
			c.Get(t, "/shown/hidden", "Key", "hush")
		}
		wantLine(`"path":"/shown/hidden","id":`)
		if strings.Contains(c.Logged(), "hush") {
			t.Error("a key is logged without log_key")
		}
	})
}

// The problem document, error pages, the log and the event of a denial have the same ID.
func TestDenialsShowTheirID(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		config := func(use string) string {
			return strings.Replace(caddytest.Site("zone api {\n key {header.Key}\n gcra 1 1h\n}\nzone tried {\n key {header.Key}\n gcra 1 1d\n shadow\n}\nproblem_json\n"+use),
				"admin {$ADMIN}", "admin {$ADMIN}\n\tevents {\n\ton rate_limit_exceeded test_record\n}", 1)
		}
		c := caddytest.Start(t, config(use))
		shown := func(body string, pattern string) string {
			t.Helper()
			m := regexp.MustCompile(pattern).FindStringSubmatch(body)
			if m == nil {
				t.Fatalf("no ID in %s", body)
			}
			return m[1]
		}
		c.Get(t, "/", "Key", "a").Want(t, 200)
		inBody := shown(c.Get(t, "/", "Key", "a").Text, `"denial":"(\w{10})"`)
		c.WaitForLog(t, `"msg":"recorded event"`)
		c.WaitForLog(t, `"rate limit exceeded"`)
		var logged, emitted string
		for line := range strings.Lines(c.Logged()) {
			switch {
			case strings.Contains(line, `"rate limit exceeded"`):
				logged = shown(line, `"id":"(\w{10})"`)
			case strings.Contains(line, `"recorded event"`):
				emitted = shown(line, `"id":"(\w{10})"`)
			case strings.Contains(line, `"rate limit would be exceeded"`):
				if shown(line, `"id":"(\w{10})"`) == inBody {
					t.Error("a shadow shares the ID of the zone that denies")
				}
			}
		}
		if logged != inBody || emitted != inBody {
			t.Errorf("the body has %s, the log %s and the event %s", inBody, logged, emitted)
		}
		if other := shown(c.Get(t, "/", "Key", "a").Text, `"denial":"(\w{10})"`); other != inBody {
			t.Errorf("the second denial of the key has the ID %s, want %s", other, inBody)
		}
		c.Get(t, "/", "Key", "b").Want(t, 200)
		if other := shown(c.Get(t, "/", "Key", "b").Text, `"denial":"(\w{10})"`); other == inBody {
			t.Errorf("two keys share the ID %s", inBody)
		}
		c.Reload(t, config(use)+"handle_errors {\n respond \"ID {http.rate_limit.exceeded.id}\"\n}\n")
		_ = shown(c.Get(t, "/", "Key", "b").Text, `^ID (\w{10})$`)
		if body := c.Get(t, "/ready").Text; body != "ok" {
			t.Error(body)
		}
	})
}

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
