package e2e

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

func TestHeaderForms(t *testing.T) {
	t.Parallel()
	const zone = "zone %s {\n token_bucket 2 1h 3\n gcra 100 1d\n cost 1\n}\n"
	in := func(d time.Duration) string { return strconv.FormatInt(time.Now().Add(d).Unix(), 10) }
	c := caddytest.Start(t, caddytest.Site(fmt.Sprintf(zone, "draft")))
	for name, fields := range map[string][]string{ // TestFamilies has those of denials
		"draft_06":          {"RateLimit-Limit", "3", "RateLimit-Remaining", "2", "RateLimit-Reset", "1800", "RateLimit", "", "RateLimit-Policy", ""},
		"x_ratelimit draft": {"X-RateLimit-Limit", "3", "X-RateLimit-Remaining", "2", "X-RateLimit-Reset", "1800", "RateLimit", `"x_ratelimit draft";r=2;t=1800, "x_ratelimit draft/2";r=99;t=864`},
		"x_ratelimit_epoch": {"X-RateLimit-Limit", "3", "X-RateLimit-Remaining", "2", "RateLimit", ""},
		"sharkey":           {"X-RateLimit-Remaining", "2", "X-RateLimit-Limit", "", "X-RateLimit-Reset", "", "RateLimit", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c.Reload(t, caddytest.Site(fmt.Sprintf(zone, `"`+name+`"`)+"headers "+name))
			r := c.Get(t, "/")
			switch r.Want(t, 200, fields...); name {
			case "x_ratelimit_epoch":
				caddytest.WantText(t, "X-RateLimit-Reset", r.Field("X-RateLimit-Reset"), in(1801*time.Second))
			case "sharkey":
				r.WantSpan(t, "X-RateLimit-Clear", 1800)
			}
		})
	}
	t.Run("off", func(t *testing.T) {
		c.Reload(t, caddytest.Site(strings.Replace(fmt.Sprintf(zone, "off"), "cost 1", "cost 3", 1)+"headers off"))
		c.Get(t, "/").Want(t, 200)
		r := c.Get(t, "/")
		r.Want(t, 429, "Retry-After", "5400", "RateLimit", "", "X-RateLimit-Remaining", "", "RateLimit-Remaining", "")
	})
	t.Run("off for a zone", func(t *testing.T) {
		hidden := "zone quota {\n fixed_window 9 1h\n}\nzone hidden {\n fixed_window 1 1h\n headers off\n}\nheaders draft x_ratelimit\nproblem_json"
		c.Reload(t, caddytest.Site(hidden))
		c.Get(t, "/").Want(t, 200, "RateLimit-Policy", `"quota";q=9;w=3600`, "RateLimit", `"quota";r=8;t=3600`, "X-RateLimit-Remaining", "8")
		r := c.Get(t, "/")
		r.Want(t, 429, "RateLimit-Policy", `"quota";q=9;w=3600`, "RateLimit", `"quota";r=8`, "X-RateLimit-Remaining", "8", "Retry-After", "3600")
		if body := r.Text; !strings.Contains(body, `"retry-after":3600`) && !strings.Contains(body, `"reason":"limit"`) || strings.Contains(body, "hidden") {
			t.Errorf("problem document %s", body)
		}
	})
	t.Run("jitter only adds", func(t *testing.T) {
		c.Reload(t, caddytest.Site("zone jitter {\n fixed_window 1 1h\n}\njitter 0.5"))
		c.Get(t, "/")
		different := make(map[string]bool)
		for range 20 {
			text := c.Get(t, "/").Field("Retry-After")
			seconds, _ := strconv.Atoi(text)
			if seconds < 3500 || seconds > 5400 {
				t.Errorf("Retry-After %q, want 3600 to 5400", text)
			}
			different[text] = true
		}
		if len(different) < 2 {
			t.Errorf("Retry-After is always the same: %v", different)
		}
	})
}

// A single-valued family of an upstream or of another handler is sent whole if
// it has less remaining than ours, and not at all otherwise. Lists are joined.
func TestHeadersMerge(t *testing.T) {
	t.Parallel()
	upstream := caddytest.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		for name, values := range r.URL.Query() {
			w.Header()[name] = values
		}
		_, _ = w.Write([]byte("from upstream"))
	})
	proxied := func(name string) string {
		return fmt.Sprintf("{\n\tadmin {$ADMIN}\n}\n{$SITE}\nrate_limit {\nzone %s {\n gcra 10 1h\n}\nheaders draft x_ratelimit\n}\nreverse_proxy %s\n", name, upstream)
	}
	c := caddytest.Start(t, proxied("a"))
	theirs := func(remaining string) string {
		return "/?X-Ratelimit-Remaining=" + remaining + "&X-Ratelimit-Limit=77&X-Ratelimit-Reset=88&Ratelimit=%22theirs%22%3Br%3D1"
	}
	c.Reload(t, proxied("b"))
	c.Get(t, theirs("5")).Want(t, 200, "X-RateLimit-Remaining", "5", "X-RateLimit-Limit", "77", "X-RateLimit-Reset", "88",
		"RateLimit", `"b";r=9;t=360, "theirs";r=1`)
	c.Get(t, theirs("50")).Want(t, 200, "X-RateLimit-Remaining", "8", "X-RateLimit-Limit", "10", "X-RateLimit-Reset", "720")
	c.Get(t, "/").Want(t, 200, "X-RateLimit-Remaining", "7", "X-RateLimit-Limit", "10")

	// A set of another form is removed as a whole, and is not mixed with ours.
	c.Reload(t, strings.Replace(proxied("s"), "headers draft x_ratelimit", "headers sharkey", 1))
	c.Get(t, theirs("5")+"&X-Ratelimit-Clear=3").Want(t, 200, "X-RateLimit-Remaining", "5", "X-RateLimit-Limit", "77", "X-RateLimit-Reset", "88", "X-RateLimit-Clear", "3")
	r := c.Get(t, theirs("50"))
	r.Want(t, 200, "X-RateLimit-Remaining", "8", "X-RateLimit-Limit", "", "X-RateLimit-Reset", "")
	r.WantSpan(t, "X-RateLimit-Clear", 720)

	two := "{\n\tadmin {$ADMIN}\n}\n{$SITE}\nroute {\n%s%s}\nrespond ok\n"
	handler := "rate_limit {\nzone %s {\n gcra %d 1h\n}\nheaders draft x_ratelimit\n}\n"
	for i, limits := range [][2]int{{5, 50}, {50, 5}} {
		outer, inner := fmt.Sprint("outer", i), fmt.Sprint("inner", i)
		c.Reload(t, fmt.Sprintf(two, fmt.Sprintf(handler, outer, limits[0]), fmt.Sprintf(handler, inner, limits[1])))
		c.Get(t, "/").Want(t, 200, "X-RateLimit-Remaining", "4", "X-RateLimit-Limit", "5", "RateLimit-Policy",
			fmt.Sprintf(`"%s";q=%d;w=3600, "%s";q=%d;w=3600`, outer, limits[0], inner, limits[1]))
	}
}

// A JSON subroute has error routes of its own, which get denials only with return_errors.
func TestDenialAndErrorRoutes(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, caddytest.Site("zone plain {\n gcra 1 1h\n}"))
	subroute := func(returnErrors bool) string {
		return fmt.Sprintf(`{"admin":{"listen":"{$ADMIN}"},"apps":{"http":{"servers":{"s":{"listen":["%s"],"routes":[{"handle":[{"handler":"subroute",
		"routes":[{"handle":[{"handler":"rate_limit","return_errors":%v,"rate_limits":{"sub%v":{"limits":[{"algorithm":"gcra","events":1,"window":"1h"}]}}},
		{"handler":"static_response","body":"ok"}]}],
		"errors":{"routes":[{"handle":[{"handler":"static_response","status_code":418}]}]}}]}]}}}}}`, c.Site, returnErrors, returnErrors)
	}
	for _, returnErrors := range []bool{false, true} {
		if r := c.Load(t, subroute(returnErrors), "application/json"); r.StatusCode != 200 {
			t.Fatal(r.Text)
		}
		c.Get(t, "/").Want(t, 200)
		c.Get(t, "/").Want(t, map[bool]int{false: 429, true: 418}[returnErrors], "Retry-After", "3600")
	}
}

func TestPlaceholders(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, `{
	admin {$ADMIN}
}
{$SITE}
header {
	>Exceeded "[{http.rate_limit.exceeded.name}]"
	>Api "{http.rate_limit.api.limit} {http.rate_limit.api.remaining} {http.rate_limit.api.reset} [{http.rate_limit.api.retry_after}] {http.rate_limit.api.allowed} {http.rate_limit.api.charged}"
	>Dotted "[{http.rate_limit.v1.0 beta.remaining}]"
	>Inner "[{http.rate_limit.inner.remaining}]"
	>Twice "{http.rate_limit.twice.remaining} {http.rate_limit.twice.charged}"
	>Whole "[{http.rate_limit}]"
	>Unknown "{http.rate_limit.nobody.remaining} {http.rate_limit.api.colour}"
}
route {
	rate_limit {
		zone api {
			match path /api
			gcra 2 1h
			gcra 10 1h
		}
		zone twice {
			match path /twice
			gcra 10 1h
		}
		zone "v1.0 beta" {
			match path /dotted
			gcra 5 1h
		}
	}
	rate_limit {
		zone inner {
			match path /api /inner
			gcra 7 1h
		}
		zone api {
			match path /never
			gcra 2 1h
			gcra 10 1h
		}
		zone twice {
			match path /twice
			gcra 10 1h
		}
	}
	respond ok
}
`)
	c.Get(t, "/api").Want(t, 200, "Exceeded", "[]", "Api", "2 1 1800 [] true 1", "Dotted", "[]", "Inner", "[6]",
		"Unknown", "{http.rate_limit.api.colour}")
	c.Get(t, "/api")
	c.Get(t, "/api").Want(t, 429, "Exceeded", "[api]", "Api", "2 0 3600 [1800] false 0", "Inner", "[]")
	c.Get(t, "/twice").Want(t, 200, "Twice", "8 2") // both directives charge
	c.Get(t, "/dotted").Want(t, 200, "Exceeded", "[]", "Api", "[]", "Dotted", "[4]")
	if r := c.Get(t, "/api?"); strings.Contains(r.Field("Whole"), "0x") || r.Field("Whole") != "[]" {
		t.Errorf("{http.rate_limit} is %q", r.Field("Whole"))
	}
	c.Get(t, "/inner").Want(t, 200, "Inner", "[4]", "Api", "[]")
}

func TestFactor(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, caddytest.Site(`
zone api {
	leaky_bucket 1 1h 4
	factor {header.X-Factor}
	match not header X-None *
}
zone fixed {
	match header X-None *
	token_bucket 1 1h 4
	factor 3
}
`))
	for _, test := range []struct{ factor, policy, limit string }{
		{"1", `"api";q=4;w=14400`, `"api";r=3;t=3600`},
		{"", `"api";q=4;w=14400`, `"api";r=2;t=3600`},
		{"0.5", `"api";q=8;w=28800`, `"api";r=5;t=3600`},
		{"0", "", ""},
		{"0.00000001", `"api";q=625499;w=2251796400`, `"api";r=625495;t=3600`}, // the largest that is counted exactly
		{"many", `"api";q=4;w=14400`, `"api";r=0;t=3600`},
		{"-1", `"api";q=4;w=14400`, `"api";r=0;t=3600`},
		{"1e300", `"api";q=1;w=3600`, `"api";r=0;t=3600`}, // what a larger burst let pass is no debt
	} {
		r := c.Get(t, "/", "X-Factor", test.factor)
		caddytest.WantText(t, "RateLimit-Policy with factor "+test.factor, r.Field("RateLimit-Policy"), test.policy)
		caddytest.WantText(t, "RateLimit with factor "+test.factor, r.Field("RateLimit"), test.limit)
	}
	c.WaitForLog(t, "a factor is not a number from 0")
	c.Get(t, "/", "X-None", "1").Want(t, 200, "RateLimit-Policy", `"fixed";q=2;w=7200`, "RateLimit", `"fixed";r=1;t=3600`)
}

func TestProblemJSON(t *testing.T) {
	t.Parallel()
	config := caddytest.Site(`
zone "<b> & 'x'" {
	key {header.Key}
	fixed_window 1 1h
	fixed_window 1 1d
	fixed_window 9 1d
	status 403
	match path /named
}
zone other {
	fixed_window 1 1h
	match path /named /other
}
zone watching {
	shadow
	fixed_window 1 1h
	match path /named /other
}
headers draft sharkey
problem_json
`)
	c := caddytest.Start(t, config)
	c.Get(t, "/named", "Key", "a").Want(t, 200, "Content-Type", "text/plain; charset=utf-8")
	r := c.Get(t, "/named?<script>", "Key", "<script>")
	r.WantProblem(t, 429, "quota-exceeded", "other")
	r.Want(t, 429, "Retry-After", "3600", "X-RateLimit-Remaining", "0")
	c.Get(t, "/named", "Key", "a").WantProblem(t, 403, "quota-exceeded", "<b> & 'x'", "<b> & 'x'/2", "other")

	full := c.Get(t, "/other")
	head, err := c.Do("HEAD", "http://"+c.Site+"/other", "")
	if err != nil || head.Text != "" {
		t.Fatal(err, head.Text)
	}
	head.Want(t, 429, "Content-Type", "application/problem+json", "Content-Length", full.Field("Content-Length"), "Retry-After", "3600")

	// Redis that fails is no fault of the client's.
	c.Reload(t, strings.Replace(config, "problem_json\n", "problem_json\nredis localhost:1\non_store_error deny\n", 1))
	c.Get(t, "/other").WantProblem(t, 503, "temporary-reduced-capacity")

	// Switched off.
	c.Reload(t, strings.Replace(config, "problem_json\n", "problem_json off\n", 1))
	c.Get(t, "/other").Want(t, 200)
	c.Get(t, "/other").Want(t, 429, "Content-Length", "0", "Content-Type", "")

	// Error routes go first, and it is said that they do.
	c.Reload(t, config+"handle_errors {\n respond \"rendered {err.status_code}\"\n}\n")
	for range 2 {
		if r := c.Get(t, "/other"); r.StatusCode != 429 || r.Text != "rendered 429" || strings.Contains(r.Field("Content-Type"), "problem") {
			t.Errorf("with error routes: %d %q %q", r.StatusCode, r.Text, r.Field("Content-Type"))
		}
	}
	if n := c.Times(t, "problem_json has no effect here"); n != 1 {
		t.Errorf("said %d times that problem_json has no effect", n)
	}
}
