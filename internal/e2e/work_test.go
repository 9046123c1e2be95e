package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// An override set at run time has what the zones of the handler leave.
func TestBoundWorkOfOverrides(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, caddytest.Site("zone api {\n key {query.key}\n cost {header.Cost}\n sliding_log 10000 1h\n runtime_overrides\n}\nzone all {\n cost {header.Cost}\n sliding_log 150000 1h\n}\n"))
	put := func(status int, limits, says string) {
		t.Helper()
		if r := c.Operate(t, status, "PUT", keyPath("k")+"/override", `{"limits":[`+limits+`]}`); !strings.Contains(r.Text, says) {
			t.Errorf("%s, want %q", r.Text, says)
		}
	}
	put(204, `{"algorithm":"sliding_log","events":100000,"window":"1h"}`, "")
	put(204, `{"algorithm":"gcra","events":45000,"window":"1h"}`, "")
	put(400, `{"algorithm":"sliding_log","events":200000,"window":"1h"}`, "write sliding_log 104574 1h, or less, instead of sliding_log 200000 1h")
	put(204, `{"algorithm":"sliding_log","events":104574,"window":"1h"}`, "")
	put(400, `{"algorithm":"sliding_log","events":200001,"window":"1h"}`, "events must be at most 200000")
}

// Redis decides a request with as many zones, limits of a zone, or look-ups of overrides as a configuration can
// have.
func TestMostZonesAndLimits(t *testing.T) {
	t.Parallel()
	config := "{\n\tadmin {$ADMIN}\n}\n{$SITE}\n"
	directives := map[string]func(i int) string{
		"zones":  func(i int) string { return fmt.Sprintf("zone z%03d {\n gcra 1000000 1h\n}\n", i) },
		"limits": func(i int) string { return fmt.Sprintf("zone api {\n gcra %d 1h\n}\n", 1_000_000+i) },
		"overrides": func(i int) string {
			return fmt.Sprintf("zone o%03d {\n plan {path} {\n free unlimited\n default unlimited\n }\n runtime_overrides\n}\n", i)
		},
	}
	for name, write := range directives {
		var all strings.Builder
		for i := range 599 {
			all.WriteString(write(i))
		}
		lines := strings.ReplaceAll(all.String(), "}\nzone api {\n", "") // one zone with all limits
		config += fmt.Sprintf("rate_limit /%s {\n%szone last_%[1]s {\n gcra 1 1h\n}\n}\n", name, lines)
	}
	c := caddytest.Start(t, strings.Replace(config, "\n", "\nrate_limit {\n redis "+redistest.Start(t).Addr+" {\n timeout 30s\n }\n on_store_error deny\n}\n", 1)+"respond ok\n")
	for name := range directives {
		for _, status := range []int{200, 429, 429} {
			if r := c.Get(t, "/"+name); r.StatusCode != status {
				t.Errorf("600 %s: status %d, want %d", name, r.StatusCode, status)
			}
		}
	}
}
