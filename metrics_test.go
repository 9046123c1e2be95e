package ratelimit

import (
	"strings"
	"testing"
)

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
