package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// wantNoMetric checks that there is no metric whose name and labels begin so.
func wantNoMetric(t *testing.T, c *caddytest.Caddy, name string) {
	t.Helper()
	if got := caddytest.Metrics(t, c, name); len(got) > 0 {
		t.Errorf("there are metrics %v", got)
	}
}

// The gauges follow requests in flight and waiting requests. TestConcurrency shows that requests give their slots back, however they
// end.
func TestGaugesOfRequests(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		g := startGate(t)
		zone := `zone api {
			key {query.key}
			concurrency 2
			delay 1h
		}
		`
		config := gated(g, zone+`zone slow {
			match path /slow
			gcra 1 1h
			delay 1000h
		}
		zone plain {
			gcra 1000000 1s
		}
		`+use)
		c := caddytest.Start(t, config)
		inFlight := func(n int) {
			t.Helper()
			caddytest.WaitForMetric(t, c, fmt.Sprintf(`caddy_rate_limit_in_flight{zone="api"} %d`, n))
		}
		waiting := func(zone, what string, n int) {
			t.Helper()
			caddytest.WaitForMetric(t, c, fmt.Sprintf(`caddy_rate_limit_waiting{for="%s",zone="%s"} %d`, what, zone, n))
		}
		inFlight(0)
		waiting("api", "slot", 0)
		waiting("slow", "limit", 0)
		for _, name := range []string{`in_flight{zone="slow"`, `in_flight{zone="plain"`, `waiting{for="slot",zone="slow"`, `waiting{for="limit",zone="plain"`} {
			wantNoMetric(t, c, "caddy_rate_limit_"+name)
		}

		// A client that waits for a slot leaves. Another one gets a slot.
		one, two := c.Hold(t.Context(), "/hold"), c.Hold(t.Context(), "/hold")
		g.wait(t, 2)
		inFlight(2)
		ctx, leave := context.WithCancel(t.Context())
		gone := c.Hold(ctx, "/hold")
		waiting("api", "slot", 1)
		leave()
		<-gone
		waiting("api", "slot", 0)
		three := c.Hold(t.Context(), "/hold")
		waiting("api", "slot", 1)
		g.pass <- struct{}{}
		waiting("api", "slot", 0)
		inFlight(2)

		// A reload, and a configuration without the zone.
		c.Reload(t, config+"# again\n")
		inFlight(2)
		c.Reload(t, gated(g, "zone other {\n concurrency 5\n}\n"+use))
		inFlight(2)
		caddytest.WaitForMetric(t, c, `caddy_rate_limit_in_flight{zone="other"} 0`)
		g.pass <- struct{}{}
		g.pass <- struct{}{}
		for _, done := range []<-chan int{one, two, three} {
			if status := <-done; status != 200 {
				t.Errorf("status %d", status)
			}
		}
		look := func() map[string]float64 { return caddytest.Metrics(t, c, `caddy_rate_limit_in_flight{zone="api"`) }
		caddytest.EventuallySees(t, "the zone has left the metrics", look, func(of map[string]float64) bool { return len(of) == 0 })
		wantNoMetric(t, c, `caddy_rate_limit_waiting`)
		c.Reload(t, config)

		// A limit that delays, and a client that disconnects.
		c.Get(t, "/slow").Want(t, 200)
		ctx, leave = context.WithCancel(t.Context())
		one, two = c.Hold(ctx, "/slow"), c.Hold(ctx, "/slow")
		waiting("slow", "limit", 2)
		waiting("api", "limit", 0)
		inFlight(2)
		leave()
		<-one
		<-two
		waiting("slow", "limit", 0)
		inFlight(0)

		c.Reload(t, gated(g, zone+"redis localhost:1")) // which fails, so that local budgets decide
		one = c.Hold(t.Context(), "/hold")
		inFlight(1)
		g.pass <- struct{}{}
		<-one
		inFlight(0)
	})
}

// The metrics of Redis say how messages travel. Without Redis there are no gauges of connections.
func TestMetricsOfRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := caddytest.StartProcess(t, caddytest.Site("zone api {\n gcra 100 1h\n}\n"))
	c.Get(t, "/")
	wantNoMetric(t, c, "caddy_rate_limit_redis_queue")
	wantNoMetric(t, c, "caddy_rate_limit_redis_connections")
	caddytest.WaitForMetric(t, c, "caddy_rate_limit_redis_seconds_count 0")
	c.Reload(t, caddytest.Site(fmt.Sprintf("zone api {\n gcra 100 1h\n}\nredis %s {\n timeout 30s\n}\n", server.Addr)))
	for range 7 { // one after the other, so each has its message
		c.Get(t, "/").Want(t, 200)
	}
	for _, name := range []string{"caddy_rate_limit_redis_seconds_count", "caddy_rate_limit_redis_batch_requests_count", "caddy_rate_limit_redis_batch_requests_sum"} {
		caddytest.WaitForMetric(t, c, name+" 7")
	}
	caddytest.WaitForMetric(t, c, "caddy_rate_limit_redis_queue 0")
	caddytest.WaitForMetric(t, c, `caddy_rate_limit_redis_connections{state="in_use"} 0`)
	caddytest.WaitForMetricAbove(t, c, `caddy_rate_limit_redis_connections{state="idle"}`)
}

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
