package ratelimit

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// processMetrics are the metrics of this process. They count for all configurations, and
// survive reloads. Zones and outcomes are labels. Keys and addresses never are, because clients
// could make up any number of them.
var processMetrics = newCollector()

// collector implements [prometheus.Collector] for all metrics of this package.
type collector struct {
	requests      *prometheus.CounterVec
	decision      *prometheus.HistogramVec
	storeErrors   *prometheus.CounterVec
	denyCacheHits *prometheus.CounterVec
	bansBegun     *prometheus.CounterVec
	clockSteps    prometheus.Counter
	redisSeconds  prometheus.Histogram
	redisBatch    prometheus.Histogram
	storeState    prometheus.GaugeFunc
	localKeys     prometheus.GaugeFunc
	localOverflow prometheus.CounterFunc
	gauges        []prometheus.Collector // see gauges.go
}

func newCollector() *collector {
	name := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "caddy", Subsystem: "rate_limit", Name: name, Help: help}
	}
	return &collector{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts(name("requests_total",
			"Requests, by zone and outcome: allowed, delayed, denied, banned (denied by a ban that was in force), "+
				"shadow_denied (denied in shadow mode, so the zone let it pass), overridden (without a limit), "+
				"exempt (by a matcher of exempt), bad_body (denied because its body could not be read), "+
				"or error (the store could not decide).")),
			[]string{"zone", "outcome"}),
		decision: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "caddy", Subsystem: "rate_limit", Name: "decision_seconds",
			Help:    "How long decisions took. All zones of a request are decided together.",
			Buckets: []float64{1e-6, 1e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 1},
		}, []string{"zone"}),
		storeErrors: prometheus.NewCounterVec(prometheus.CounterOpts(name("store_errors_total",
			"Requests that the store could not decide on, by reason: timeout, silent, connection, permission, reply, key, "+
				"open, or busy (shed, though Redis works).")),
			[]string{"reason"}),
		denyCacheHits: prometheus.NewCounterVec(prometheus.CounterOpts(name("deny_cache_hits_total",
			"Requests denied without asking Redis, because Redis had just denied similar ones, by the zone that denied them.")),
			[]string{"zone"}),
		bansBegun: prometheus.NewCounterVec(prometheus.CounterOpts(name("bans_total",
			"Bans that began on this instance, by denials or by operators.")),
			[]string{"zone"}),
		redisSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "caddy", Subsystem: "rate_limit", Name: "redis_seconds",
			Help:    "How long messages to Redis took until the reply. A message has the requests that were waiting to be sent.",
			Buckets: []float64{5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 1},
		}),
		redisBatch: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "caddy", Subsystem: "rate_limit", Name: "redis_batch_requests",
			Help:    "How many requests were in one message to Redis. A correction of a charge counts as one request.",
			Buckets: []float64{1, 2, 4, 8, 16, 32, 64, 128, 256},
		}),
		clockSteps: prometheus.NewCounter(prometheus.CounterOpts(name("clock_steps_total",
			"How often the clock of Redis stepped back by more than a second."))),
		localKeys: prometheus.NewGaugeFunc(prometheus.GaugeOpts(name("local_keys",
			"Keys held in memory; a sliding log counts as one more for every 64 events it has room for.")),
			func() float64 { return sumOfMemoryStores((*store.SharedMemory).Keys) }),
		localOverflow: prometheus.NewCounterFunc(prometheus.CounterOpts(name("local_overflow_total",
			"Requests decided by a shared budget because the memory was full.")),
			func() float64 { return sumOfMemoryStores((*store.SharedMemory).Overflowed) }),
		storeState: prometheus.NewGaugeFunc(prometheus.GaugeOpts(name("store_state",
			"How many Redis stores, or nodes of a cluster, fail at present. They are not asked until they work again.")), failingRedisNodes),
		gauges: newGauges(name),
	}
}

// sumOfMemoryStores returns the sum of a number over the stores in memory.
func sumOfMemoryStores(number func(*store.SharedMemory) int64) (sum float64) {
	storePool.Range(func(_, value any) bool {
		if m, ok := value.(pooledMemory); ok {
			sum += float64(number(m.SharedMemory))
		}
		return true
	})
	return sum
}

// failingRedisNodes returns how many Redis stores, or nodes of a cluster, fail at present.
func failingRedisNodes() (n float64) {
	for _, b := range openBackends() {
		n += float64(b.redis.Failing())
	}
	return n
}

func (c *collector) collectors() []prometheus.Collector {
	return append([]prometheus.Collector{
		c.requests, c.decision, c.storeErrors, c.denyCacheHits, c.bansBegun, c.clockSteps, c.redisSeconds, c.redisBatch,
		c.storeState, c.localKeys, c.localOverflow,
	}, c.gauges...)
}

// Describe implements [prometheus.Collector].
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, part := range c.collectors() {
		part.Describe(ch)
	}
}

// Collect implements [prometheus.Collector].
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	for _, part := range c.collectors() {
		part.Collect(ch)
	}
}

// registerMetrics registers the metrics with the registry of a configuration, unless it has them
// already.
func registerMetrics(registry prometheus.Registerer) error {
	err := registry.Register(processMetrics)
	if errors.As(err, new(prometheus.AlreadyRegisteredError)) {
		return nil
	}
	return err
}

// countRoundTrip counts a message to Redis, as [redisstore.Hooks] documents.
func (c *collector) countRoundTrip(took time.Duration, requests int) {
	c.redisSeconds.Observe(took.Seconds())
	c.redisBatch.Observe(float64(requests))
}

// countStoreError counts an error of the store by its reason.
func countStoreError(err error) {
	processMetrics.storeErrors.WithLabelValues(storeErrorReason(err)).Inc()
}

// storeErrorReason returns the reason of an error of the store: a short word.
func storeErrorReason(err error) string {
	var failed *store.Error
	if errors.As(err, &failed) {
		return failed.Reason
	}
	return "other"
}

// outcomeLabel is the outcome of a request in a zone, as a label of metrics.
type outcomeLabel int

const (
	outcomeAllowed outcomeLabel = iota
	outcomeDelayed
	outcomeDenied
	outcomeShadowDenied
	outcomeError
	outcomeOverridden
	outcomeBanned
	outcomeExempt
	outcomeBadBody
	outcomeCount
)

var outcomeLabels = [outcomeCount]string{
	"allowed", "delayed", "denied", "shadow_denied", "error", "overridden", "banned", "exempt", "bad_body",
}

// countOutcomes counts the outcomes of a decided request, and how long the decision took. It also counts
// the slots that the request has taken, and the bans that it has begun.
func (state *requestState) countOutcomes(took time.Duration) {
	for i := range state.entries {
		e := &state.entries[i]
		if e.Outcome.Cached && !e.Shadow {
			e.zone.metrics.countDenyCacheHit()
		}
		if label, ok := e.outcomeLabel(state.allowed); ok {
			e.zone.metrics.countDecision(label, took)
			state.trace.setOutcome(e.zone, label)
			state.trace.setRemaining(e)
		}
		if e.Outcome.Slots.Taken {
			e.zone.metrics.countInFlight(1)
		}
		if e.Outcome.Ban.Began && !e.Shadow {
			e.zone.metrics.countBan(e.Key, time.Duration(e.Outcome.Ban.EndsAfter)*time.Microsecond)
		}
	}
}

// countOutcome counts an outcome in a zone without a decision of the store.
func (state *requestState) countOutcome(z *zone, label outcomeLabel) {
	z.metrics.countOutcome(label)
	state.trace.setOutcome(z, label)
}

// outcomeLabel returns the outcome of a decided request in the zone. If the store didn't ask
// the zone, or the request doesn't belong to the zone and isn't banned, ok is false.
func (e *zoneEntry) outcomeLabel(allowed bool) (label outcomeLabel, ok bool) {
	switch verdict := e.Outcome.Verdict; {
	case e.denies() && e.Shadow:
		return outcomeShadowDenied, true
	case verdict == store.Banned:
		return outcomeBanned, true
	case verdict == store.Denied:
		return outcomeDenied, true
	case e.limitSet.unlimited:
		return outcomeOverridden, true
	case verdict == store.NotAsked || e.isBanLookup:
		return 0, false
	case allowed && (e.waited || e.requiredDelay() > 0):
		return outcomeDelayed, true
	default:
		return outcomeAllowed, true
	}
}

// requestCounts returns the counts of requests by zone name and outcome. It leaves out zones
// without requests.
func requestCounts() map[string]map[string]int64 {
	metrics := make(chan prometheus.Metric)
	go func() {
		defer close(metrics)
		processMetrics.requests.Collect(metrics)
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

// zoneMetrics are the metrics of a zone. The zone's first request creates the counters. So a
// configuration that is rejected, or gets no requests, leaves no metrics behind.
type zoneMetrics struct {
	zone         string
	disabled     bool
	bans         bool // the zone has the option ban
	lazyCounters atomic.Pointer[zoneCounters]
}

// zoneCounters are the counters of a zone.
type zoneCounters struct {
	outcomes        [outcomeCount]prometheus.Counter
	decisionSeconds prometheus.Observer
	denyCacheHits   prometheus.Counter
	bansBegun       prometheus.Counter // nil if the zone has no ban
	gauges          *zoneGauges
}

// counters returns the counters. It creates them at the first call.
func (m *zoneMetrics) counters() *zoneCounters {
	if c := m.lazyCounters.Load(); c != nil {
		return c
	}
	c := &zoneCounters{
		decisionSeconds: processMetrics.decision.WithLabelValues(m.zone),
		denyCacheHits:   processMetrics.denyCacheHits.WithLabelValues(m.zone),
		gauges:          gaugesOf(m.zone),
	}
	if m.bans {
		c.bansBegun = processMetrics.bansBegun.WithLabelValues(m.zone)
	}
	for i, label := range outcomeLabels {
		c.outcomes[i] = processMetrics.requests.WithLabelValues(m.zone, label)
	}
	m.lazyCounters.Store(c)
	return c
}

// countDecision counts a decision of the store, and how long it took.
func (m *zoneMetrics) countDecision(label outcomeLabel, took time.Duration) {
	if m.disabled {
		return
	}
	c := m.counters()
	c.decisionSeconds.Observe(took.Seconds())
	c.outcomes[label].Inc()
}

// countOutcome counts an outcome without a decision of the store.
func (m *zoneMetrics) countOutcome(label outcomeLabel) {
	if !m.disabled {
		m.counters().outcomes[label].Inc()
	}
}

// countDenyCacheHit counts a request that was denied without asking Redis.
func (m *zoneMetrics) countDenyCacheHit() {
	if !m.disabled {
		m.counters().denyCacheHits.Inc()
	}
}

// countInFlight counts n more requests that hold a slot. n is -1 for a request that has given it back.
func (m *zoneMetrics) countInFlight(n int64) {
	if !m.disabled {
		m.counters().gauges.inFlight.Add(n)
	}
}

// countWaiting counts n more requests that a limit delays. n is -1 for a request whose delay has ended.
func (m *zoneMetrics) countWaiting(n int64) {
	if !m.disabled {
		m.counters().gauges.waitingForLimit.Add(n)
	}
}

// waitingForSlot returns the number of requests that wait for a slot, or nil with disable_metrics.
func (m *zoneMetrics) waitingForSlot() *atomic.Int64 {
	if m.disabled {
		return nil
	}
	return &m.counters().gauges.waitingForSlot
}

// countBan counts a ban that begins now.
func (m *zoneMetrics) countBan(key string, lasts time.Duration) {
	if m.bans && !m.disabled {
		c := m.counters()
		c.bansBegun.Inc()
		c.gauges.bans.begin(key, lasts)
	}
}
