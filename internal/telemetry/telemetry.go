// Package telemetry counts requests for Prometheus, and adds them to traces. It never decides a request, and
// has no label and no attribute that a client can choose.
package telemetry

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// The metrics of this process that this package counts itself; the others come from [Sources]. They count for all
// configurations, and survive reloads. Zones and outcomes are labels. Keys and addresses never are, because clients
// could make up any number of them.
var (
	decisionSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "caddy", Subsystem: "rate_limit", Name: "decision_seconds",
		Help:    "How long decisions took. All zones of a request are decided together.",
		Buckets: []float64{1e-6, 1e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 1},
	}, []string{"zone"})
	storeErrors = prometheus.NewCounterVec(prometheus.CounterOpts(name("store_errors_total",
		"Requests that the store could not decide on, by reason: timeout, silent, connection, permission, reply, key, "+
			"open, or busy (shed, though Redis works).")),
		[]string{"reason"})
	redisSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: "caddy", Subsystem: "rate_limit", Name: "redis_seconds",
		Help:    "How long messages to Redis took until the reply. A message has the requests that were waiting to be sent.",
		Buckets: []float64{5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 1},
	})
	redisBatch = prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: "caddy", Subsystem: "rate_limit", Name: "redis_batch_requests",
		Help:    "How many requests were in one message to Redis. A correction of a charge counts as one request.",
		Buckets: []float64{1, 2, 4, 8, 16, 32, 64, 128, 256},
	})
	clockSteps = prometheus.NewCounter(prometheus.CounterOpts(name("clock_steps_total",
		"How often the clock of Redis stepped back by more than a second.")))
)

// name returns the full name of a metric, and its help.
func name(name, help string) prometheus.Opts {
	return prometheus.Opts{Namespace: "caddy", Subsystem: "rate_limit", Name: name, Help: help}
}

// Register registers the metrics with the registry of a configuration. A registry that has them already keeps its
// sources.
func Register(registry prometheus.Registerer, sources Sources) error {
	all := prometheus.NewRegistry() // which is registered as one collector
	all.MustRegister(decisionSeconds, storeErrors, clockSteps, redisSeconds, redisBatch)
	all.MustRegister(sources.collectors()...)
	err := registry.Register(all)
	if errors.As(err, new(prometheus.AlreadyRegisteredError)) {
		return nil
	}
	return err
}

// Forget sets to zero what is counted by zone or reason. Only tests call it: their configurations share a process, one
// after the other.
func Forget() {
	decisionSeconds.Reset()
	storeErrors.Reset()
	processZones.Clear()
	processHistory.forget()
}

// CountClockStep counts that the clock of Redis has stepped back.
func CountClockStep() { clockSteps.Inc() }

// CountRoundTrip counts a message to Redis: how long it took until the reply, and how many requests it had.
func CountRoundTrip(took time.Duration, requests int) {
	redisSeconds.Observe(took.Seconds())
	redisBatch.Observe(float64(requests))
}

// CountStoreError counts an error of the store by its reason.
func CountStoreError(err error) {
	storeErrors.WithLabelValues(storeErrorReason(err)).Inc()
}

// storeErrorReason returns the reason of an error of the store: a short word.
func storeErrorReason(err error) string {
	if failed, ok := errors.AsType[*store.Error](err); ok {
		return failed.Reason
	}
	return "other"
}
