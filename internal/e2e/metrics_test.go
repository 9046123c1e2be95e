package e2e

import (
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// Counts survive a reload, have no key, and disable_metrics keeps requests out of them.
func TestMetrics(t *testing.T) {
	t.Parallel()
	config := caddytest.Site("zone counted {\n key {header.Key}\n gcra 1 1h\n}\nzone quiet {\n match path /never\n gcra 1 1h\n}")
	c := caddytest.Start(t, config)
	c.Get(t, "/", "Key", "secret")
	c.Reload(t, config+"# the same\n")
	c.Get(t, "/", "Key", "secret")
	c.Reload(t, strings.Replace(config, "zone quiet", "disable_metrics\nzone quiet", 1))
	c.Get(t, "/")
	metrics := c.Metrics(t)
	for _, want := range []string{
		`caddy_rate_limit_requests_total{outcome="allowed",zone="counted"} 1`,
		`caddy_rate_limit_requests_total{outcome="denied",zone="counted"} 1`,
		`caddy_rate_limit_decision_seconds_count{zone="counted"} 2`,
	} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("the metrics lack %s", want)
		}
	}
	if strings.Contains(metrics, "secret") || strings.Contains(metrics, "quiet") {
		t.Error("a key, or a zone without requests, is in the metrics")
	}
}
