package e2e

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// A ban is logged once, where it begins, and denials say what denies.
func TestDenialsSayWhy(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		config := func(options, use string) string {
			return strings.Replace(caddytest.Site("zone api {\n key {header.Key}\n gcra 1 1h\n token_bucket 100 1h\n"+options+"\n}\nlog_key\n"+use), "rate_limit @limited", "uri @limited strip_prefix /shown\nrate_limit @limited", 1)
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
		c.Reload(t, config("shadow\n ban 1h", use))
		for range 3 {
			c.Get(t, "/shown/path", "Key", "b").Want(t, 200)
		}
		wantLine(`"msg":"key would be banned","zone":"api"`)
	})
}

// Each denial is counted in a line of the log. TestDenialsAreBounded says how few lines there are.
func TestDenialsAreReported(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, `{
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
		c.Get(t, "/x?token=query", "Key", "secret")
	}
	counted := func() (sum int) {
		for _, m := range regexp.MustCompile(`"msg":"rate limit exceeded".*"count":(\d+)`).FindAllStringSubmatch(c.Logged(), -1) {
			n, _ := strconv.Atoi(m[1])
			sum += n
		}
		return sum
	}
	caddytest.EventuallySees(t, "20 denials are reported", counted, func(n int) bool { return n >= 20 })
	if n := counted(); n != 20 {
		t.Errorf("%d denials are reported, want 20", n)
	}
	log := c.Logged()
	for _, want := range []string{
		`"logger":"http.handlers.rate_limit","msg":"rate limit exceeded","zone":"api","wait":`,
		`"remote_ip":"127.0.0.1","client_ip":"127.0.0.1","count":1,"reason":"limit","limit":"gcra 1 1h","method":"GET","host":"` + c.Site + `","path":"/x","id":"`,
		`","key":"secret"}`,
		`"msg":"recorded event","name":"rate_limit_exceeded","data":{"client_ip":"127.0.0.1","count":1,"host":"` + c.Site + `","id":"`,
		`","limit":"gcra 1 1h","method":"GET","path":"/x","reason":"limit","remote_ip":"127.0.0.1","wait":`,
	} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %s", want)
		}
	}
	if strings.Contains(log, "token=query") {
		t.Error("a query is logged")
	}
	c.Reload(t, caddytest.Site("zone api {\n key {header.Key}\n gcra 1 1h\n}"))
	c.Get(t, "/", "Key", "hidden")
	c.Get(t, "/", "Key", "hidden")
	c.WaitForLog(t, `"path":"/","id":`)
	if strings.Contains(c.Logged(), "hidden") {
		t.Error("a key is logged without log_key")
	}
}
