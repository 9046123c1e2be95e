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

// Requests that another zone denies count apart, unless they have no limit.
func TestMetricsOfOtherZones(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, strings.Replace(caddytest.Site(`
zone strict {
	key {query.key}
	fixed_window 1 1h
}
zone wide {
	key {query.key}
	fixed_window 10 1h
}
zone open {
	key {query.key}
	fixed_window 10 1h
	override a unlimited
}`), "admin {$ADMIN}", "admin {$ADMIN}\n\tmetrics", 1))
	for _, want := range []int{200, 429, 429} {
		c.Get(t, "/?key=a").Want(t, want)
	}
	for _, want := range []string{
		`{outcome="allowed",zone="strict"} 1`, `{outcome="denied",zone="strict"} 2`, `{outcome="denied_elsewhere",zone="strict"} 0`,
		`{outcome="allowed",zone="wide"} 1`, `{outcome="denied_elsewhere",zone="wide"} 2`,
		`{outcome="overridden",zone="open"} 3`, `{outcome="denied_elsewhere",zone="open"} 0`,
	} {
		caddytest.WaitForMetric(t, c, "caddy_rate_limit_requests_total"+want)
	}
}
