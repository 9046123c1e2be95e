package e2e

import (
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

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
