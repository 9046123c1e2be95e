package e2e

import (
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// An override set at run time has what the zones of the handler leave.
func TestBoundWorkOfOverrides(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, caddytest.Site("zone api {\n key {query.key}\n cost {header.Cost}\n sliding_log 10000 1h\n runtime_overrides\n}\nzone all {\n cost {header.Cost}\n sliding_log 150000 1h\n}\n"))
	put := func(status int, limits, says string) {
		t.Helper()
		if r := c.Operate(t, status, "PUT", overridePath("k"), `{"limits":[`+limits+`]}`); !strings.Contains(r.Text, says) {
			t.Errorf("%s, want %q", r.Text, says)
		}
	}
	put(204, `{"algorithm":"sliding_log","events":100000,"window":"1h"}`, "")
	put(204, `{"algorithm":"gcra","events":45000,"window":"1h"}`, "")
	put(400, `{"algorithm":"sliding_log","events":200000,"window":"1h"}`, "take too long to decide in one call: write sliding_window")
	put(204, `{"algorithm":"sliding_log","events":104574,"window":"1h"}`, "")
	put(400, `{"algorithm":"sliding_log","events":200001,"window":"1h"}`, "events must be at most 200000")
}
