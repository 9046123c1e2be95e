package telemetry

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// The values of these metrics are collected when somebody asks, so a request costs at most an addition.

// metricSet is a [prometheus.Collector] of the metrics with one name.
type metricSet struct {
	*prometheus.Desc
	kind prometheus.ValueType
	// collect calls set for each metric, with the values of its labels.
	collect func(set func(value float64, labels ...string))
}

// Describe implements [prometheus.Collector].
func (g metricSet) Describe(ch chan<- *prometheus.Desc) { ch <- g.Desc }

// Collect implements [prometheus.Collector].
func (g metricSet) Collect(ch chan<- prometheus.Metric) {
	g.collect(func(value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(g.Desc, g.kind, value, labels...)
	})
}

// The values of the label "for", which traces have, too.
const (
	forLimit = "limit"
	forSlot  = "slot"
)

// Sources are the functions that gauges ask for their values. They can be called at the same time.
type Sources struct {
	// Zones returns the zones of the configuration in force whose metrics are counted, by name.
	Zones func() map[string]Features
	// Redis returns the sums over all Redis. ok is false if there is none.
	Redis func() (sum RedisState, ok bool)
	// MemoryKeys and MemoryOverflowed return the sums over the stores in memory.
	MemoryKeys, MemoryOverflowed func() float64
}

// Features are the options of the zones with one name that have gauges.
type Features struct {
	Concurrency bool
	Delay       bool
	SlotWait    bool // concurrency, with delay
}

// RedisState holds the present numbers of one or more Redis.
type RedisState struct {
	Failing int // servers that fail at present
	Queued  int // requests and corrections of charges that wait to be sent
	Idle    int // connections
	InUse   int // connections
}

// collectors returns the metrics that have their values from the sources.
func (s Sources) collectors() []prometheus.Collector {
	set := func(o prometheus.Opts, collect func(func(float64, ...string)), labels ...string) metricSet {
		desc := prometheus.NewDesc(prometheus.BuildFQName(o.Namespace, o.Subsystem, o.Name), o.Help, labels, nil)
		return metricSet{desc, prometheus.GaugeValue, collect}
	}
	requests := set(name("requests_total",
		"Requests, by zone and outcome: allowed, delayed, denied, banned (denied by a ban that was in force), "+
			"shadow_denied (denied in shadow mode, so the zone let it pass), overridden (without a limit), "+
			"exempt (by a matcher of exempt), bad_body (denied because its body could not be read), "+
			"denied_elsewhere (denied by another zone, while this zone had room), "+
			"or error (the store could not decide)."), collectOutcomes, "zone", "outcome")
	requests.kind = prometheus.CounterValue
	return []prometheus.Collector{
		requests,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts(name("store_state",
			"How many Redis stores, or nodes of a cluster, fail at present. They are not asked until they work again.")),
			func() float64 { sum, _ := s.Redis(); return float64(sum.Failing) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts(name("local_keys",
			"Keys held in memory; a sliding log counts as one more for every 64 events it has room for.")), s.MemoryKeys),
		prometheus.NewCounterFunc(prometheus.CounterOpts(name("local_overflow_total",
			"Requests decided by a shared budget because the memory was full.")), s.MemoryOverflowed),
		set(name("in_flight", "Requests of this instance that hold a slot of concurrency."), s.collectInFlight, "zone"),
		set(name("waiting", "Delayed requests, by what they wait for: limit, or slot (of concurrency)."), s.collectWaiting, "zone", "for"),
		set(name("redis_queue", "Requests and corrections of charges that wait to be sent to Redis."), s.collectRedisQueue),
		set(name("redis_connections", "Connections to Redis, by state: idle or in_use."), s.collectRedisConnections, "state"),
	}
}

func collectOutcomes(set func(float64, ...string)) {
	for zone, counts := range RequestCounts() {
		for i, n := range counts {
			set(float64(n), zone, outcomeNames[i])
		}
	}
}

// collectRequests calls set with a number of the requests of each zone that has a feature, and with further labels. A
// zone that has left the configuration is shown until its last request has ended.
func (s Sources) collectRequests(
	set func(float64, ...string), has func(Features) bool, number func(*zoneNumbers) *atomic.Int64, labels ...string,
) {
	values := make(map[string]int64)
	for name, features := range s.Zones() {
		if has(features) {
			values[name] = 0
		}
	}
	processZones.Range(func(name, g any) bool {
		value, zone := number(g.(*zoneNumbers)).Load(), name.(string)
		if _, shown := values[zone]; shown || value != 0 {
			values[zone] = value
		}
		return true
	})
	for zone, value := range values {
		set(float64(value), append([]string{zone}, labels...)...)
	}
}

func (s Sources) collectInFlight(set func(float64, ...string)) {
	s.collectRequests(set, func(f Features) bool { return f.Concurrency }, func(g *zoneNumbers) *atomic.Int64 { return &g.inFlight })
}

func (s Sources) collectWaiting(set func(float64, ...string)) {
	forALimit := func(g *zoneNumbers) *atomic.Int64 { return &g.waitingForLimit }
	forASlot := func(g *zoneNumbers) *atomic.Int64 { return &g.waitingForSlot }
	s.collectRequests(set, func(f Features) bool { return f.Delay }, forALimit, forLimit)
	s.collectRequests(set, func(f Features) bool { return f.SlotWait }, forASlot, forSlot)
}

func (s Sources) collectRedisQueue(set func(float64, ...string)) {
	if sum, ok := s.Redis(); ok {
		set(float64(sum.Queued))
	}
}

func (s Sources) collectRedisConnections(set func(float64, ...string)) {
	if sum, ok := s.Redis(); ok {
		set(float64(sum.Idle), "idle")
		set(float64(sum.InUse), "in_use")
	}
}
