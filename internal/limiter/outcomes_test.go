package limiter

import (
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/telemetry"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// metricsWork returns what requests do for the metrics, by kind of request. A message to Redis is shared by
// its requests.
func metricsWork(tb testing.TB) map[string]func() {
	tb.Helper()
	z := &Zone{Name: "z", Metrics: telemetry.Zone{Name: "z"}}
	state := newTestState(new(Limiter), z, new(LimitSet), store.Request{Outcome: store.Outcome{Verdict: store.Allowed}})
	state.Allowed = true
	return map[string]func(){
		"a decision": func() { state.countOutcomes(time.Microsecond) },
		"a decision with concurrency": func() {
			state.Requests[0].Outcome.Slots.Taken = true
			state.countOutcomes(time.Microsecond)
			z.Metrics.CountInFlight(-1)
			state.Requests[0].Outcome.Slots.Taken = false
		},
		"a message to Redis": func() { telemetry.CountRoundTrip(time.Millisecond, 3) },
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
	if caddytest.RaceEnabled {
		t.Skip("allocations can't be counted")
	}
	for name, work := range metricsWork(t) {
		if got := testing.AllocsPerRun(1000, work); got > 0 {
			t.Errorf("%s: %v allocations", name, got)
		}
	}
}
