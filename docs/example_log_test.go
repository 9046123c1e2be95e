package docs_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
)

// docs/simulate.md shows the configuration of the example, and its log stays small. The log is a day of a small shop. Two
// crawlers read products slowly, and a partner copies the catalog every hour. An office has one address for twelve people.
// A scraper reads all products at night, and an attacker guesses passwords.
func TestExampleLog(t *testing.T) {
	if shown := caddytest.Fences(t, "docs/simulate.md", "caddyfile")[0]; shown != caddytest.ReadFile(t, "examples/simulate/Caddyfile") {
		t.Error("the first Caddyfile of docs/simulate.md is not examples/simulate/Caddyfile")
	}
	if info, err := os.Stat("examples/simulate/access.log.gz"); err != nil || info.Size() > 70_000 {
		t.Error("the example log is too large, or missing:", err)
	}
}

// The limit in the widest gap denies the scraper and the attacker, and nobody else. So it lets customers, crawlers,
// the partner and the office pass.
func TestGapOfExampleLog(t *testing.T) {
	c := &caddytest.Caddy{File: "examples/simulate/Caddyfile"}
	simulate := func(args ...string) *report.Zone {
		t.Helper()
		var r report.Report
		out := c.RateLimit(t, append([]string{"simulate", "--json", "access.log.gz"}, args...)...).Succeeds(t).Out
		errtest.None(t, json.Unmarshal([]byte(out), &r))
		return &r.Configurations[0].Zones[0]
	}
	const key = "key {client_ip} ; ipv6_prefix 64"
	for _, args := range [][]string{{"--zone", key}, {"--propose", "1%"}} {
		proposals := simulate(args...).Proposals
		at := slices.IndexFunc(proposals, func(p report.Proposal) bool {
			return p.Current == "token_bucket 10 1m 20" || strings.HasPrefix(p.Line, "sliding_window") && strings.HasSuffix(p.Line, " 1m")
		})
		if at < 0 || proposals[at].Gap == nil {
			t.Fatalf("%q: no gap in %+v", args, proposals)
		}
		middle := proposals[at].Gap.Middle.Line
		var denied []string
		for _, k := range simulate("--zone", key+" ; "+middle).TopKeys {
			denied = append(denied, k.Key)
		}
		if !slices.Equal(denied, []string{"198.51.100.23", "192.0.2.99"}) {
			t.Errorf("%q: %s denies %q", args, middle, denied)
		}
	}
}
