package ratelimit

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// collected is what is counted, for all configurations of this process: it
// survives reloads. Labels are zones and outcomes, never keys or addresses,
// which clients could make up without end.
var collected = newCollector()

type collector struct {
	requests      *prometheus.CounterVec
	decision      *prometheus.HistogramVec
	storeErrors   *prometheus.CounterVec
	denyCacheHits *prometheus.CounterVec
	clockSteps    prometheus.Counter
	storeState    prometheus.GaugeFunc
	localKeys     prometheus.GaugeFunc
	localOverflow prometheus.CounterFunc
}

func newCollector() *collector {
	name := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "caddy", Subsystem: "rate_limit", Name: name, Help: help}
	}
	return &collector{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts(name("requests_total",
			"Requests, by zone and what the zone said: allowed, delayed, denied, banned (denied by a ban that stood), shadow_denied (it would have been, but passed this zone), overridden where there was no limit, or error when the store could not decide.")),
			[]string{"zone", "outcome"}),
		decision: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "caddy", Subsystem: "rate_limit", Name: "decision_seconds",
			Help:    "How long decisions took, all zones of a request together.",
			Buckets: []float64{1e-6, 1e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 1},
		}, []string{"zone"}),
		storeErrors: prometheus.NewCounterVec(prometheus.CounterOpts(name("store_errors_total",
			"Requests the store could not decide on, by reason: timeout, silent, connection, permission, reply, key, open, or busy (shed, though Redis works).")),
			[]string{"reason"}),
		denyCacheHits: prometheus.NewCounterVec(prometheus.CounterOpts(name("deny_cache_hits_total",
			"Requests refused without asking Redis, because it had just refused others like them, by the zone that refused.")),
			[]string{"zone"}),
		clockSteps: prometheus.NewCounter(prometheus.CounterOpts(name("clock_steps_total",
			"How often the clock of Redis stepped back by more than a second."))),
		localKeys: prometheus.NewGaugeFunc(prometheus.GaugeOpts(name("local_keys",
			"Keys held in memory; a sliding log counts as one more for every 64 events it has room for.")),
			func() float64 { return fromMemory((*store.SharedMemory).Keys) }),
		localOverflow: prometheus.NewCounterFunc(prometheus.CounterOpts(name("local_overflow_total",
			"Checks decided on a shared budget because the memory was full.")),
			func() float64 { return fromMemory((*store.SharedMemory).Overflowed) }),
		storeState: prometheus.NewGaugeFunc(prometheus.GaugeOpts(name("store_state",
			"How many Redis stores, or nodes of a cluster, fail at present and are not asked until they work again.")), failingStores),
	}
}

// fromMemory adds up a number of the stores in memory.
func fromMemory(read func(*store.SharedMemory) int64) (n float64) {
	shared.Range(func(_, value any) bool {
		if m, ok := value.(pooledMemory); ok {
			n += float64(read(m.SharedMemory))
		}
		return true
	})
	return n
}

// failingStores counts the stores, or nodes of a cluster, that have failed.
func failingStores() (n float64) {
	shared.Range(func(_, value any) bool {
		if b, ok := value.(*backend); ok {
			n += float64(b.redis.Failing())
		}
		return true
	})
	return n
}

func (c *collector) all() []prometheus.Collector {
	return []prometheus.Collector{c.requests, c.decision, c.storeErrors, c.denyCacheHits, c.clockSteps, c.storeState, c.localKeys, c.localOverflow}
}

// Describe implements [prometheus.Collector].
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, one := range c.all() {
		one.Describe(ch)
	}
}

// Collect implements [prometheus.Collector].
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	for _, one := range c.all() {
		one.Collect(ch)
	}
}

// registerMetrics makes the metrics part of a configuration's registry, once.
func registerMetrics(registry prometheus.Registerer) error {
	err := registry.Register(collected)
	var there prometheus.AlreadyRegisteredError
	if errors.As(err, &there) {
		return nil
	}
	return err
}

func countFailure(err error) {
	reason := "other"
	var failed *store.Error
	if errors.As(err, &failed) {
		reason = failed.Reason
	}
	collected.storeErrors.WithLabelValues(reason).Inc()
}

// outcome is what a zone said of a request.
type outcome int

const (
	outcomeAllowed outcome = iota
	outcomeDelayed
	outcomeDenied
	outcomeShadowDenied
	outcomeError
	outcomeOverridden
	outcomeBanned
	outcomes
)

var outcomeNames = [outcomes]string{"allowed", "delayed", "denied", "shadow_denied", "error", "overridden", "banned"}

// requestCounts are the counts of all zones by name, each by outcome. A zone that had no
// request has none.
func requestCounts() map[string]map[string]int64 {
	metrics := make(chan prometheus.Metric)
	go func() {
		defer close(metrics)
		collected.requests.Collect(metrics)
	}()
	counts := make(map[string]map[string]int64)
	for metric := range metrics {
		var read dto.Metric
		if metric.Write(&read) != nil {
			continue
		}
		labels := make(map[string]string)
		for _, label := range read.GetLabel() {
			labels[label.GetName()] = label.GetValue()
		}
		zone := labels["zone"]
		if counts[zone] == nil {
			counts[zone] = make(map[string]int64)
		}
		counts[zone][labels["outcome"]] = int64(read.GetCounter().GetValue())
	}
	return counts
}

// zoneMetrics are a zone's own counters, made at its first request: what is only
// configured, and perhaps rejected, leaves no trace.
type zoneMetrics struct {
	zone     string
	disabled bool
	made     atomic.Pointer[zoneCounters]
}

type zoneCounters struct {
	outcomes [outcomes]prometheus.Counter
	seconds  prometheus.Observer
	hits     prometheus.Counter
}

func (m *zoneMetrics) counters() *zoneCounters {
	if c := m.made.Load(); c != nil {
		return c
	}
	c := &zoneCounters{seconds: collected.decision.WithLabelValues(m.zone), hits: collected.denyCacheHits.WithLabelValues(m.zone)}
	for o, name := range outcomeNames {
		c.outcomes[o] = collected.requests.WithLabelValues(m.zone, name)
	}
	m.made.Store(c)
	return c
}

func (m *zoneMetrics) decided(o outcome, took time.Duration) {
	if m.disabled {
		return
	}
	c := m.counters()
	c.seconds.Observe(took.Seconds())
	c.outcomes[o].Inc()
}

// count counts an outcome that no store decided on.
func (m *zoneMetrics) count(o outcome) {
	if !m.disabled {
		m.counters().outcomes[o].Inc()
	}
}

// cached counts a request that was denied without asking Redis.
func (m *zoneMetrics) cached() {
	if !m.disabled {
		m.counters().hits.Inc()
	}
}
