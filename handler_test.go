package ratelimit

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
)

// field returns a header field's values, joined.
func (r response) field(name string) string { return strings.Join(r.Header.Values(name), ", ") }

// want checks the status and fields, given as pairs of name and value.
func (r response) want(t *testing.T, status int, fields ...string) {
	t.Helper()
	if r.StatusCode != status {
		t.Errorf("status %d, want %d", r.StatusCode, status)
	}
	for i := 0; i < len(fields); i += 2 {
		wantText(t, fields[i], r.field(fields[i]), fields[i+1])
	}
}

// wantText compares two texts. Numbers of 60 and more may be up to 5 less than
// wanted, and those of 300 and more up to 20: they are seconds, and some have passed.
func wantText(t *testing.T, what, got, want string) {
	t.Helper()
	number := regexp.MustCompile(`\d+`)
	same := number.ReplaceAllString(got, "0") == number.ReplaceAllString(want, "0")
	if same {
		gots, wants := number.FindAllString(got, -1), number.FindAllString(want, -1)
		for i := range wants {
			g, _ := strconv.Atoi(gots[i])
			w, _ := strconv.Atoi(wants[i])
			passed := 5
			if w >= 300 {
				passed = 20
			}
			same = same && (g == w || w >= 60 && g < w && g >= w-passed)
		}
	}
	if !same {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func TestHeaderForms(t *testing.T) {
	t.Parallel()
	const zone = "zone %s {\n token_bucket 2 1h 3\n gcra 100 1d\n cost 1\n}\n"
	in := func(d time.Duration) string { return strconv.FormatInt(time.Now().Add(d).Unix(), 10) }
	c := startCaddy(t, site(fmt.Sprintf(zone, "draft")))
	t.Run("draft", func(t *testing.T) {
		policy := `"draft";q=3;w=3600, "draft/2";q=100;w=86400`
		c.get(t, "/").want(t, 200, "RateLimit-Policy", policy, "RateLimit", `"draft";r=2;t=1800, "draft/2";r=99;t=864`, "Retry-After", "")
		c.get(t, "/")
		c.get(t, "/").want(t, 200, "RateLimit", `"draft";r=0;t=1800, "draft/2";r=97;t=864`)
		r := c.get(t, "/")
		r.want(t, 429, "RateLimit-Policy", policy, "RateLimit", `"draft";r=0;t=1800, "draft/2";r=97`, "Retry-After", "1800")
		if r.body != "" || r.field("X-RateLimit-Limit") != "" {
			t.Errorf("body %q, X-RateLimit-Limit %q", r.body, r.field("X-RateLimit-Limit"))
		}
	})
	t.Run("draft_06", func(t *testing.T) {
		c.reload(t, site(fmt.Sprintf(zone, "d6")+"headers draft_06"))
		c.get(t, "/").want(t, 200, "RateLimit-Limit", "3", "RateLimit-Remaining", "2", "RateLimit-Reset", "1800", "RateLimit", "", "RateLimit-Policy", "")
		c.get(t, "/")
		c.get(t, "/")
		c.get(t, "/").want(t, 429, "RateLimit-Limit", "3", "RateLimit-Remaining", "0", "RateLimit-Reset", "5400", "Retry-After", "1800")
	})
	t.Run("x_ratelimit and draft", func(t *testing.T) {
		c.reload(t, site(fmt.Sprintf(zone, "x")+"headers x_ratelimit draft"))
		c.get(t, "/").want(t, 200, "X-RateLimit-Limit", "3", "X-RateLimit-Remaining", "2", "X-RateLimit-Reset", "1800",
			"RateLimit", `"x";r=2;t=1800, "x/2";r=99;t=864`)
	})
	t.Run("x_ratelimit_epoch", func(t *testing.T) {
		c.reload(t, site(fmt.Sprintf(zone, "xe")+"headers x_ratelimit_epoch"))
		r := c.get(t, "/")
		r.want(t, 200, "X-RateLimit-Limit", "3", "X-RateLimit-Remaining", "2")
		wantText(t, "X-RateLimit-Reset", r.field("X-RateLimit-Reset"), in(1801*time.Second))
	})
	t.Run("off", func(t *testing.T) {
		c.reload(t, site(strings.Replace(fmt.Sprintf(zone, "off"), "cost 1", "cost 3", 1)+"headers off"))
		c.get(t, "/").want(t, 200)
		r := c.get(t, "/")
		r.want(t, 429, "Retry-After", "5400", "RateLimit", "", "X-RateLimit-Remaining", "", "RateLimit-Remaining", "")
	})
	t.Run("cost above burst has no Retry-After", func(t *testing.T) {
		c.reload(t, site(strings.Replace(fmt.Sprintf(zone, "never"), "cost 1", "cost 4", 1)))
		c.get(t, "/").want(t, 429, "RateLimit", `"never";r=3, "never/2";r=100`, "Retry-After", "")
	})
	t.Run("jitter only adds", func(t *testing.T) {
		c.reload(t, site("zone jitter {\n fixed_window 1 1h\n}\njitter 0.5"))
		c.get(t, "/")
		different := make(map[string]bool)
		for range 20 {
			text := c.get(t, "/").field("Retry-After")
			seconds, _ := strconv.Atoi(text)
			if seconds < 3590 || seconds > 5400 {
				t.Errorf("Retry-After %q, want 3600 to 5400", text)
			}
			different[text] = true
		}
		if len(different) < 2 {
			t.Errorf("Retry-After is always the same: %v", different)
		}
	})
	t.Run("retry after is at least 1", func(t *testing.T) {
		c.reload(t, site("zone quick {\n sliding_log 1 50ms\n}"))
		for range 100 {
			if r := c.get(t, "/"); r.StatusCode == 429 {
				r.want(t, 429, "Retry-After", "1")
				return
			}
		}
		t.Error("never denied")
	})
}

// A single-valued family of an upstream or of another handler is sent whole if
// it has less remaining than ours, and not at all otherwise. Lists are joined.
func TestHeadersMerge(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, values := range r.URL.Query() {
			w.Header()[name] = values
		}
		_, _ = w.Write([]byte("from upstream"))
	}))
	defer upstream.Close()
	proxied := func(name string) string {
		return fmt.Sprintf("{\n\tadmin {$ADMIN}\n}\n{$SITE}\nrate_limit {\nzone %s {\n gcra 10 1h\n}\nheaders draft x_ratelimit\n}\nreverse_proxy %s\n", name, upstream.Listener.Addr())
	}
	c := startCaddy(t, proxied("a"))
	theirs := func(remaining string) string {
		return "/?X-Ratelimit-Remaining=" + remaining + "&X-Ratelimit-Limit=77&X-Ratelimit-Reset=88&Ratelimit=%22theirs%22%3Br%3D1"
	}
	c.reload(t, proxied("b"))
	c.get(t, theirs("5")).want(t, 200, "X-RateLimit-Remaining", "5", "X-RateLimit-Limit", "77", "X-RateLimit-Reset", "88",
		"RateLimit", `"b";r=9;t=360, "theirs";r=1`)
	c.get(t, theirs("50")).want(t, 200, "X-RateLimit-Remaining", "8", "X-RateLimit-Limit", "10", "X-RateLimit-Reset", "720")
	c.get(t, theirs("lots")).want(t, 200, "X-RateLimit-Remaining", "7", "X-RateLimit-Limit", "10")
	c.get(t, "/").want(t, 200, "X-RateLimit-Remaining", "6", "X-RateLimit-Limit", "10")

	// Of a set of another form nothing is left, nor is it mixed with ours.
	c.reload(t, strings.Replace(proxied("s"), "headers draft x_ratelimit", "headers sharkey", 1))
	c.get(t, theirs("5")+"&X-Ratelimit-Clear=3").want(t, 200, "X-RateLimit-Remaining", "5", "X-RateLimit-Limit", "77", "X-RateLimit-Reset", "88", "X-RateLimit-Clear", "3")
	r := c.get(t, theirs("50"))
	r.want(t, 200, "X-RateLimit-Remaining", "8", "X-RateLimit-Limit", "", "X-RateLimit-Reset", "")
	r.wantSpan(t, "X-RateLimit-Clear", 720)
	c.reload(t, strings.Replace(proxied("s"), "draft x_ratelimit", "x_ratelimit", 1))
	c.get(t, "/?X-Ratelimit-Remaining=50&X-Ratelimit-Clear=3").want(t, 200, "X-RateLimit-Remaining", "7", "X-RateLimit-Limit", "10", "X-RateLimit-Clear", "")

	silent := "{\n\tadmin {$ADMIN}\n}\n{$SITE}\nrate_limit {\nzone c {\n gcra 10 1h\n}\nheaders x_ratelimit\n}\n%s\n"
	c.reload(t, fmt.Sprintf(silent, "")) // nobody writes anything
	c.get(t, "/").want(t, 200, "X-RateLimit-Remaining", "9")
	c.reload(t, fmt.Sprintf(silent, "error 418\nhandle_errors {\n respond x\n}")) // the error routes do
	c.get(t, "/").want(t, 418, "X-RateLimit-Remaining", "8")

	two := "{\n\tadmin {$ADMIN}\n}\n{$SITE}\nroute {\n%s%s}\nrespond ok\n"
	handler := "rate_limit {\nzone %s {\n gcra %d 1h\n}\nheaders draft x_ratelimit\n}\n"
	for i, limits := range [][2]int{{5, 50}, {50, 5}} {
		outer, inner := fmt.Sprint("outer", i), fmt.Sprint("inner", i)
		c.reload(t, fmt.Sprintf(two, fmt.Sprintf(handler, outer, limits[0]), fmt.Sprintf(handler, inner, limits[1])))
		c.get(t, "/").want(t, 200, "X-RateLimit-Remaining", "4", "X-RateLimit-Limit", "5", "RateLimit-Policy",
			fmt.Sprintf(`"%s";q=%d;w=3600, "%s";q=%d;w=3600`, outer, limits[0], inner, limits[1]))
	}
	// With as much remaining, the one that denies has its say.
	tie := func(outer, inner string) string {
		handler := "rate_limit {\nzone %s {\n leaky_bucket %d 1h\n}\nheaders sharkey\n}\n"
		return fmt.Sprintf(two, fmt.Sprintf(handler, outer, 2), fmt.Sprintf(handler, inner, 1))
	}
	c.reload(t, tie("many", "few"))
	c.get(t, "/")
	r = c.get(t, "/")
	r.want(t, 429, "X-RateLimit-Remaining", "0")
	r.wantSpan(t, "X-RateLimit-Reset", 3600)
	c.reload(t, strings.Replace(site("zone one {\n leaky_bucket 1 1h\n}\nheaders sharkey"), "respond ok", "header X-RateLimit-Remaining 0\nrespond ok", 1))
	c.get(t, "/").want(t, 200, "X-RateLimit-Remaining", "0", "X-RateLimit-Clear", "")
	r = c.get(t, "/")
	r.want(t, 429, "X-RateLimit-Remaining", "0")
	r.wantSpan(t, "X-RateLimit-Reset", 3600)
}

func TestDenialAndErrorRoutes(t *testing.T) {
	t.Parallel()
	limited := "rate_limit {\nzone %s {\n fixed_window 1 1h\n match path /x\n status 430\n}\n}\n"
	c := startCaddy(t, "{\n\tadmin {$ADMIN}\n}\n{$SITE}\n"+fmt.Sprintf(limited, "plain")+"respond ok\n")
	c.get(t, "/x").want(t, 200)
	c.get(t, "/x").want(t, 430, "Retry-After", "3600")
	c.get(t, "/y").want(t, 200, "RateLimit", "")

	c.reload(t, "{\n\tadmin {$ADMIN}\n}\n{$SITE}\n"+fmt.Sprintf(limited, "routes")+`
respond ok
handle_errors {
	header X-Zone "{http.rate_limit.exceeded.name}"
	respond "{err.status_code}: come back in {http.rate_limit.routes.retry_after}"
}`)
	c.get(t, "/x").want(t, 200)
	r := c.get(t, "/x")
	r.want(t, 430, "Retry-After", "3600", "X-Zone", "routes", "RateLimit", `"routes";r=0;t=3600`)
	wantText(t, "body", r.body, "430: come back in 3600")

	// A JSON subroute with error routes of its own.
	subroute := func(returnErrors bool) string {
		return fmt.Sprintf(`{"admin":{"listen":"{$ADMIN}"},"apps":{"http":{"servers":{"s":{"listen":["%s"],"routes":[{"handle":[{"handler":"subroute",
		"routes":[{"handle":[{"handler":"rate_limit","return_errors":%v,"rate_limits":{"sub%v":{"limits":[{"algorithm":"gcra","events":1,"window":"1h"}]}}},
		{"handler":"static_response","body":"ok"}]}],
		"errors":{"routes":[{"handle":[{"handler":"static_response","status_code":418}]}]}}]}]}}}}}`, c.site, returnErrors, returnErrors)
	}
	for _, returnErrors := range []bool{false, true} {
		if r := c.load(t, subroute(returnErrors), "application/json"); r.StatusCode != 200 {
			t.Fatal(r.body)
		}
		c.get(t, "/").want(t, 200)
		c.get(t, "/").want(t, map[bool]int{false: 429, true: 418}[returnErrors], "Retry-After", "3600")
	}
}

func TestPlaceholders(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, `{
	admin {$ADMIN}
}
{$SITE}
header {
	>Exceeded "[{http.rate_limit.exceeded.name}]"
	>Api "{http.rate_limit.api.limit} {http.rate_limit.api.remaining} {http.rate_limit.api.reset} [{http.rate_limit.api.retry_after}] {http.rate_limit.api.allowed} {http.rate_limit.api.charged}"
	>Dotted "[{http.rate_limit.v1.0 beta.remaining}]"
	>Inner "[{http.rate_limit.inner.remaining}]"
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
	}
	respond ok
}
`)
	c.get(t, "/api").want(t, 200, "Exceeded", "[]", "Api", "2 1 1800 [] true 1", "Dotted", "[]", "Inner", "[6]",
		"Unknown", "{http.rate_limit.nobody.remaining} {http.rate_limit.api.colour}")
	c.get(t, "/api")
	c.get(t, "/api").want(t, 429, "Exceeded", "[api]", "Api", "2 0 3600 [1800] false 0", "Inner", "[]")
	c.get(t, "/dotted").want(t, 200, "Exceeded", "[]", "Api", "[]", "Dotted", "[4]")
	if r := c.get(t, "/api?"); strings.Contains(r.field("Whole"), "0x") || r.field("Whole") != "[]" {
		t.Errorf("{http.rate_limit} is %q", r.field("Whole"))
	}
	c.get(t, "/inner").want(t, 200, "Inner", "[4]", "Api", "[]")
}

func TestKeys(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, site(`
zone one {
	match path /one
	key {header.A}
	gcra 100 1h
}
zone alternatives {
	match path /alternatives
	key "{header.A}|{header.B}" {header.A} {header.C}
	gcra 100 1h
}
zone prefixes {
	match path /prefixes
	key {header.A}
	ipv4_prefix 24
	ipv6_prefix 64
	gcra 100 1h
}
zone four {
	match path /four
	key {header.A}
	ipv4_prefix 16
	gcra 100 1h
}
zone static {
	match path /static
	gcra 100 1h
}`))
	remaining := func(path string, header ...string) int {
		t.Helper()
		r := c.get(t, path, header...)
		_, rest, _ := strings.Cut(r.field("RateLimit"), ";r=")
		n, err := strconv.Atoi(strings.SplitN(rest, ";", 2)[0])
		if err != nil {
			t.Fatal(r.field("RateLimit"))
		}
		return n
	}
	tests := []struct {
		path   string
		header []string
		want   int
	}{
		{"/one", []string{"A", "x"}, 99},
		{"/one", []string{"A", "x"}, 98},
		{"/one", []string{"A", "X"}, 99},
		{"/one", nil, 99}, // an empty placeholder: one budget for all without it
		{"/one", []string{"A", ""}, 98},
		{"/alternatives", []string{"A", "x", "B", "y"}, 99},
		{"/alternatives", []string{"A", "x"}, 99},
		{"/alternatives", []string{"C", "x"}, 99}, // the same text, by another alternative
		{"/alternatives", []string{"C", "x|y"}, 99},
		{"/alternatives", []string{"A", "x", "C", "other"}, 98},
		{"/alternatives", nil, 99}, // the last alternative, empty
		{"/prefixes", []string{"A", "192.0.2.1"}, 99},
		{"/prefixes", []string{"A", "192.0.2.200"}, 98},
		{"/prefixes", []string{"A", "::ffff:192.0.2.7"}, 97},
		{"/prefixes", []string{"A", "192.0.3.1"}, 99},
		{"/prefixes", []string{"A", "2001:db8::1"}, 99},
		{"/prefixes", []string{"A", "2001:db8::ffff:1"}, 98},
		{"/prefixes", []string{"A", "2001:db8:0:1::1"}, 99},
		{"/prefixes", []string{"A", "192.0.2.1 x"}, 99}, // not an address as a whole
		{"/four", []string{"A", "2001:db8::1"}, 99},
		{"/four", []string{"A", "2001:db8::2"}, 99},
		{"/four", []string{"A", "10.1.2.3"}, 99},
		{"/four", []string{"A", "10.1.9.9"}, 98},
		{"/static", nil, 99},
		{"/static", []string{"A", "x"}, 98},
	}
	for _, test := range tests {
		if got := remaining(test.path, test.header...); got != test.want {
			t.Errorf("%s %q: %d remaining, want %d", test.path, test.header, got, test.want)
		}
	}
}

func TestCost(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, site(`
zone api {
	gcra 100 1h
	cost {header.Cost}
}`))
	left := 100
	for _, test := range []struct {
		cost    string
		charged int
	}{{"5", 5}, {"0", 0}, {"2.1", 3}, {"", 1}, {"many", 1}, {"-3", 1}, {"NaN", 1}, {"-Inf", 1}, {"-0", 1}, {"0x2", 1}, {"1e1", 10}} {
		left -= test.charged
		c.get(t, "/", "Cost", test.cost).want(t, 200, "RateLimit-Policy", `"api";q=100;w=3600`)
		if r := c.get(t, "/", "Cost", "0"); !strings.HasPrefix(r.field("RateLimit"), fmt.Sprintf(`"api";r=%d;`, left)) {
			t.Errorf("cost %q: %s, want %d left", test.cost, r.field("RateLimit"), left)
		}
	}
	for _, cost := range []string{"101", "2147483648", "1e300", "1e999", "Inf"} {
		c.get(t, "/", "Cost", cost).want(t, 429, "Retry-After", "")
	}
	c.waitForLog(t, "a cost is no number from 0")
	if n := strings.Count(c.logged(), "a cost is no number from 0"); n != 1 {
		t.Errorf("the bad costs were logged %d times, want once", n)
	}
}

func TestFactor(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, use string) {
		c := startCaddy(t, site(`
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
`+use))
		for _, test := range []struct{ factor, policy, limit string }{
			{"1", `"api";q=4;w=3600`, `"api";r=3;t=3600`},
			{"", `"api";q=4;w=3600`, `"api";r=2;t=3600`},
			{"0.5", `"api";q=8;w=3600`, `"api";r=5;t=3600`},
			{"0", "", ""},
			{"0.00000001", `"api";q=625499;w=3600`, `"api";r=625495;t=3600`}, // the largest that is counted exactly
			{"many", `"api";q=4;w=3600`, `"api";r=0;t=3600`},
			{"-1", `"api";q=4;w=3600`, `"api";r=0;t=3600`},
			{"1e300", `"api";q=1;w=3600`, `"api";r=0;t=14400`},
		} {
			r := c.get(t, "/", "X-Factor", test.factor)
			wantText(t, "RateLimit-Policy with factor "+test.factor, r.field("RateLimit-Policy"), test.policy)
			wantText(t, "RateLimit with factor "+test.factor, r.field("RateLimit"), test.limit)
		}
		c.waitForLog(t, "a factor is no number from 0")
		c.get(t, "/", "X-None", "1").want(t, 200, "RateLimit-Policy", `"fixed";q=2;w=3600`, "RateLimit", `"fixed";r=1;t=3600`)
	})
}

func TestModes(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, use string) {
		config := ""
		for _, mode := range []string{"binary", "nary", "uniform", "force"} {
			config += fmt.Sprintf("zone %s {\n match path /%s\n token_bucket 10 1h\n cost {header.Cost}\n mode %s\n}\n", mode, mode, mode)
		}
		c := startCaddy(t, strings.Replace(site(config+use), "respond ok",
			`respond "{http.rate_limit.binary.charged}{http.rate_limit.nary.charged}{http.rate_limit.uniform.charged}{http.rate_limit.force.charged}"`, 1))
		for _, test := range []struct {
			mode    string
			cost    int
			status  int
			charged string
			field   string
			retry   string
		}{
			{"binary", 7, 200, "7", `"binary";r=3;t=360`, ""},
			{"binary", 7, 429, "", `"binary";r=3;t=360`, "1440"},
			{"binary", 11, 429, "", `"binary";r=3;t=360`, ""},
			{"nary", 7, 200, "7", `"nary";r=3;t=360`, ""},
			{"nary", 7, 200, "3", `"nary";r=0;t=360`, ""},
			{"nary", 7, 429, "", `"nary";r=0;t=360`, "360"},
			{"force", 7, 200, "7", `"force";r=3;t=360`, ""},
			{"force", 7, 200, "3", `"force";r=0;t=360`, ""},
			{"force", 7, 200, "0", `"force";r=0;t=360`, ""},
			{"uniform", 7, 200, "7", `"uniform";r=3;t=360`, ""},
			{"uniform", 7, 429, "", `"uniform";r=0;t=1800`, "3960"},
			{"uniform", 9, 429, "", `"uniform";r=0;t=3960`, "6840"}, // the debt is at its bound
			{"uniform", 9, 429, "", `"uniform";r=0;t=3960`, "6840"},
		} {
			r := c.get(t, "/"+test.mode, "Cost", strconv.Itoa(test.cost))
			r.want(t, test.status, "RateLimit", test.field, "Retry-After", test.retry)
			if r.body != test.charged {
				t.Errorf("%s of cost %d: charged %s, want %s", test.mode, test.cost, r.body, test.charged)
			}
		}
	})
}

func TestDenialsAreReported(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, `{
	admin {$ADMIN}
	events {
		on rate_limit_exceeded test_record
	}
}
{$SITE}
rate_limit {
	zone api {
		match path /x
		key {header.Key}
		gcra 1 1h
	}
	log_key
}
respond ok
`)
	for range 21 {
		c.get(t, "/x?token=query", "Key", "secret")
	}
	counted := func() (sum int) {
		for _, m := range regexp.MustCompile(`"msg":"rate limit exceeded".*"count":(\d+)`).FindAllStringSubmatch(c.logged(), -1) {
			n, _ := strconv.Atoi(m[1])
			sum += n
		}
		return sum
	}
	eventually(t, "20 denials are reported", func() bool { return counted() >= 20 })
	if n := counted(); n != 20 {
		t.Errorf("%d denials are reported, want 20", n)
	}
	log := c.logged()
	for _, want := range []string{
		`"logger":"http.handlers.rate_limit","msg":"rate limit exceeded","zone":"api","wait":`,
		`"remote_ip":"127.0.0.1","client_ip":"127.0.0.1","count":1,"reason":"limit","limit":"gcra 1 1h","method":"GET","host":"` + c.site + `","path":"/x","key":"secret"}`,
		`"msg":"recorded event","name":"rate_limit_exceeded","data":{"client_ip":"127.0.0.1","count":1,"host":"` + c.site + `","limit":"gcra 1 1h","method":"GET","path":"/x","reason":"limit","remote_ip":"127.0.0.1","wait":`,
	} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %s", want)
		}
	}
	if strings.Contains(log, "token=query") {
		t.Error("a query is logged")
	}
	if n := strings.Count(log, "rate limit exceeded"); n > 5 {
		t.Errorf("20 denials in about a second are %d lines, want 2", n)
	}
	c.reload(t, site("zone api {\n key {header.Key}\n gcra 1 1h\n}"))
	c.get(t, "/", "Key", "hidden")
	c.get(t, "/", "Key", "hidden")
	c.waitForLog(t, `"path":"/"}`)
	if strings.Contains(c.logged(), "hidden") {
		t.Error("a key is logged without log_key")
	}
}

// With hash_keys a key is neither in Redis nor in the log.
func TestHashKeys(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := startCaddy(t, site("zone api {\n key {header.X-Api-Key}\n gcra 1 1h 1\n}\nlog_key\nredis "+server.Addr+" {\n timeout 30s\n hash_keys {env.RATE_LIMIT_SECRET}\n batch 0\n}"), "RATE_LIMIT_SECRET=pepper")
	for _, status := range []int{200, 429} {
		c.get(t, "/", "X-Api-Key", "sesame").want(t, status)
	}
	c.waitForLog(t, "rate limit exceeded")
	hashed := redisstore.HashedKey("pepper", "sesame")
	if log := c.logged(); !strings.Contains(log, hashed) || strings.Contains(log, "sesame") || strings.Contains(log, "pepper") {
		t.Errorf("the log lacks %s, or has the key or the secret", hashed)
	}
	for line := range strings.Lines(c.logged()) { // keys can be made of them
		if strings.Contains(line, "rate limit exceeded") && (strings.Contains(line, `"path"`) || strings.Contains(line, `"host"`)) {
			t.Errorf("the log says host or path: %s", line)
		}
	}
	if names := server.Client.Keys(t.Context(), "caddy_rl:{*}:api:*").Val(); len(names) != 1 || !strings.Contains(names[0], hashed) {
		t.Errorf("budgets in Redis: %q", names)
	}
}

// With hash_keys neither a log line nor an event has an address in clear.
func TestHashKeysHidesAddresses(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := startCaddy(t, strings.Replace(addressed("key {client_ip}\ngcra 1 1h\nipv6_prefix 64", "log_key\nredis "+server.Addr+" {\n timeout 30s\n hash_keys {env.RATE_LIMIT_SECRET}\n}"),
		"servers {", "events {\n on rate_limit_exceeded test_record\n }\n servers {", 1), "RATE_LIMIT_SECRET=pepper")
	for _, status := range []int{200, 429} {
		c.get(t, "/", "X-Forwarded-For", "203.0.113.99").want(t, status)
	}
	c.waitForLog(t, `"name":"rate_limit_exceeded"`)
	c.waitForLog(t, "rate limit exceeded")
	for line := range strings.Lines(c.logged()) {
		if strings.Contains(line, "203.0.113.99") || strings.Contains(line, "rate limit exceeded") && strings.Contains(line, "_ip") {
			t.Error(line)
		}
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	config := site(`
zone api {
	key {header.Key}
	gcra 1 1h
}
zone quiet {
	match path /never
	gcra 1 1h
}`)
	config = strings.Replace(config, "admin {$ADMIN}", "admin {$ADMIN}\n\tmetrics", 1)
	c := startCaddy(t, config)
	c.get(t, "/", "Key", "secret")
	c.get(t, "/", "Key", "secret")
	metrics := func() string {
		t.Helper()
		r, err := c.do("GET", "http://"+c.admin+"/metrics", "")
		if err != nil {
			t.Fatal(err)
		}
		return r.body
	}
	c.reload(t, config+"# the same\n") // counts survive
	got := metrics()
	for _, want := range []string{
		`caddy_rate_limit_requests_total{outcome="allowed",zone="api"} 1`,
		`caddy_rate_limit_requests_total{outcome="denied",zone="api"} 1`,
		`caddy_rate_limit_decision_seconds_count{zone="api"} 2`,
		`caddy_rate_limit_local_keys 1`,
	} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("the metrics lack %s", want)
		}
	}
	if strings.Contains(got, "secret") {
		t.Error("a key is in the metrics")
	}
	if strings.Contains(got, "quiet") {
		t.Error("a zone without requests is in the metrics")
	}
	c.reload(t, strings.Replace(config, "zone quiet", "disable_metrics\nzone quiet", 1))
	c.get(t, "/")
	if got := metrics(); !strings.Contains(got, `caddy_rate_limit_decision_seconds_count{zone="api"} 2`+"\n") {
		t.Error("disable_metrics does not keep a request out of the metrics")
	}
}
