package e2e

import (
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

func TestMetrics(t *testing.T) {
	t.Parallel()
	config := caddytest.Site(`
zone api {
	key {header.Key}
	gcra 1 1h
}
zone quiet {
	match path /never
	gcra 1 1h
}`)
	config = strings.Replace(config, "admin {$ADMIN}", "admin {$ADMIN}\n\tmetrics", 1)
	c := caddytest.Start(t, config)
	c.Get(t, "/", "Key", "secret")
	c.Get(t, "/", "Key", "secret")
	metrics := func() string {
		t.Helper()
		r, err := c.Do("GET", "http://"+c.Admin+"/metrics", "")
		if err != nil {
			t.Fatal(err)
		}
		return r.Text
	}
	c.Reload(t, config+"# the same\n") // counts survive
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
	c.Reload(t, strings.Replace(config, "zone quiet", "disable_metrics\nzone quiet", 1))
	c.Get(t, "/")
	if got := metrics(); !strings.Contains(got, `caddy_rate_limit_decision_seconds_count{zone="api"} 2`+"\n") {
		t.Error("disable_metrics does not keep a request out of the metrics")
	}
}
