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
	ForLimit    = "limit"
	ForSlot     = "slot"
	ForReserved = "reserved"
	ForBan      = "ban" // that a response has begun
)

// Sources are the functions that gauges ask for their values. They can be called at the same time.
type Sources struct {
	// Zones returns the zones of the configuration in force whose requests are counted.
	Zones func() []*ZoneMetrics
	// Redis returns the sums over all Redis. ok is false if there is none.
	Redis func() (sum RedisState, ok bool)
	// MemoryKeys and MemoryOverflowed return the sums over the stores in memory.
	MemoryKeys, MemoryOverflowed func() float64
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
	ofZones := func(
		kind prometheus.ValueType, o prometheus.Opts, has func(*ZoneMetrics) bool, number func(*zoneNumbers) *atomic.Int64,
	) metricSet {
		m := set(o, func(set func(float64, ...string)) { s.collectNumbers(set, has, number) }, "zone")
		m.kind = kind
		return m
	}
	hasSettle := func(z *ZoneMetrics) bool { return z.HasSettle }
	requests := set(name("requests_total",
		"Requests, by zone and outcome: allowed, delayed, denied, banned (denied by a ban that was in force), "+
			"shadow_denied (denied in shadow mode, so the zone let it pass), overridden (without a limit), "+
			"exempt (by a matcher of exempt), bad_body (denied because its body could not be read), "+
			"denied_elsewhere (denied by another zone, while this zone had room), "+
			"or error (the store could not decide)"), collectOutcomes, "zone", "outcome")
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
		ofZones(prometheus.CounterValue, name("deny_cache_hits_total",
			"Requests denied without asking Redis, because Redis had just denied similar ones, by the zone that denied them."),
			func(z *ZoneMetrics) bool { _, had := processZones.Load(z.Name); return had }, // a request
			func(n *zoneNumbers) *atomic.Int64 { return &n.denyCacheHits }),
		ofZones(prometheus.CounterValue, name("bans_total", "Bans that began on this instance, by denials, operators or responses."),
			func(z *ZoneMetrics) bool { return z.HasBan }, func(n *zoneNumbers) *atomic.Int64 { return &n.bansBegun }),
		ofZones(prometheus.CounterValue, name("reserved_events_total",
			"Events that requests of zones with settle were charged when they came. A request counts when it has ended."),
			hasSettle, func(n *zoneNumbers) *atomic.Int64 { return &n.reservedEvents }),
		ofZones(prometheus.CounterValue, name("settled_events_total",
			"Events that the same requests were charged in the end: their true cost, or what they reserved if it is unknown."),
			hasSettle, func(n *zoneNumbers) *atomic.Int64 { return &n.settledEvents }),
		ofZones(prometheus.GaugeValue, name("in_flight", "Requests of this instance that hold a slot of concurrency."),
			func(z *ZoneMetrics) bool { return z.HasSlots }, func(n *zoneNumbers) *atomic.Int64 { return &n.inFlight }),
		set(name("waiting", "Delayed requests, by what they wait for: limit, slot (of concurrency), reserved (events), ban (of a hold)."),
			s.collectWaiting, "zone", "for"),
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

// collectNumbers calls set with a number of each zone that has an option, and with more labels. Of other zones, such
// as those that were removed from the configuration, it omits 0.
func (s Sources) collectNumbers(
	set func(float64, ...string), has func(*ZoneMetrics) bool, number func(*zoneNumbers) *atomic.Int64, labels ...string,
) {
	values := make(map[string]int64)
	for _, z := range s.Zones() {
		if has(z) {
			values[z.Name] = 0
		}
	}
	processZones.Range(func(name, n any) bool {
		value, zone := number(n.(*zoneNumbers)).Load(), name.(string)
		if _, shown := values[zone]; shown || value != 0 {
			values[zone] = value
		}
		return true
	})
	for zone, value := range values {
		set(float64(value), append([]string{zone}, labels...)...)
	}
}

func (s Sources) collectWaiting(set func(float64, ...string)) {
	forALimit := func(n *zoneNumbers) *atomic.Int64 { return &n.waitingForLimit }
	forASlot := func(n *zoneNumbers) *atomic.Int64 { return &n.waitingForSlot }
	s.collectNumbers(set, func(z *ZoneMetrics) bool { return z.HasDelay }, forALimit, ForLimit)
	s.collectNumbers(set, func(z *ZoneMetrics) bool { return z.HasDelay && z.HasSlots }, forASlot, ForSlot)
	forReserved := func(n *zoneNumbers) *atomic.Int64 { return &n.waitingForReserved }
	s.collectNumbers(set, func(z *ZoneMetrics) bool { return z.HasReservedWait }, forReserved, ForReserved)
	forABan := func(n *zoneNumbers) *atomic.Int64 { return &n.waitingForBan }
	s.collectNumbers(set, func(z *ZoneMetrics) bool { return z.HasDelay && z.HasHold }, forABan, ForBan)
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
