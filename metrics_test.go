package ratelimit

import (
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/store"
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

// metricsWork returns what requests do for the metrics, by kind of request. A message to Redis is shared by
// its requests.
func metricsWork(tb testing.TB) map[string]func() {
	tb.Helper()
	h := loadHandler(tb, `"z":{"limits":[{"algorithm":"gcra","events":1,"window":"1s"}],"concurrency":1}`)
	state := &requestState{handler: h, allowed: true}
	state.add(zoneEntry{zone: h.zones[0], limitSet: h.zones[0].defaultSet}, store.Request{Outcome: store.Outcome{Verdict: store.Allowed}})
	state.entries[0].Request = &state.requests[0]
	return map[string]func(){
		"a decision": func() { state.countOutcomes(time.Microsecond) },
		"a decision with concurrency": func() {
			state.requests[0].Outcome.Slots.Taken = true
			state.countOutcomes(time.Microsecond)
			h.zones[0].metrics.countInFlight(-1)
			state.requests[0].Outcome.Slots.Taken = false
		},
		"a message to Redis": func() { processMetrics.countRoundTrip(time.Millisecond, 3) },
	}
}

// BenchmarkMetrics measures the cost of metrics.
func BenchmarkMetrics(b *testing.B) {
	for name, work := range metricsWork(b) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				work()
			}
		})
	}
}

// Metrics allocate nothing.
func TestMetricsAllocateNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("allocations can't be counted")
	}
	for name, work := range metricsWork(t) {
		if got := testing.AllocsPerRun(1000, work); got > 0 {
			t.Errorf("%s: %v allocations", name, got)
		}
	}
}
