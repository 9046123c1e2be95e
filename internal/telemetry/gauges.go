package telemetry

import (
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Gauges say how things are now. Their values are collected when somebody asks, so a request costs at
// most an addition.

// gaugeSet is a [prometheus.Collector] of the gauges with one name.
type gaugeSet struct {
	*prometheus.Desc
	// collect calls set for each gauge, with the values of its labels.
	collect func(set func(value float64, labels ...string))
}

// Describe implements [prometheus.Collector].
func (g gaugeSet) Describe(ch chan<- *prometheus.Desc) { ch <- g.Desc }

// Collect implements [prometheus.Collector].
func (g gaugeSet) Collect(ch chan<- prometheus.Metric) {
	g.collect(func(value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(g.Desc, prometheus.GaugeValue, value, labels...)
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
	set := func(o prometheus.Opts, collect func(func(float64, ...string)), labels ...string) prometheus.Collector {
		return gaugeSet{prometheus.NewDesc(prometheus.BuildFQName(o.Namespace, o.Subsystem, o.Name), o.Help, labels, nil), collect}
	}
	return []prometheus.Collector{
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

// zoneGauges are the present numbers of a zone's requests. All zones of one name share them. They outlive
// configurations, because requests do.
type zoneGauges struct{ inFlight, waitingForLimit, waitingForSlot atomic.Int64 }

var processGauges sync.Map // zone name → *zoneGauges

// gaugesOf returns the gauges of the zones with a name. They stay until the process ends, as the
// counters do.
func gaugesOf(zone string) *zoneGauges {
	g, ok := processGauges.Load(zone)
	if !ok {
		g, _ = processGauges.LoadOrStore(zone, new(zoneGauges))
	}
	return g.(*zoneGauges)
}

// collectRequests calls set with a number of the requests of each zone that has a feature, and with further labels. A
// zone that has left the configuration is shown until its last request has ended.
func (s Sources) collectRequests(
	set func(float64, ...string), has func(Features) bool, number func(*zoneGauges) *atomic.Int64, labels ...string,
) {
	values := make(map[string]int64)
	for name, features := range s.Zones() {
		if has(features) {
			values[name] = 0
		}
	}
	processGauges.Range(func(name, g any) bool {
		value, zone := number(g.(*zoneGauges)).Load(), name.(string)
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
	s.collectRequests(set, func(f Features) bool { return f.Concurrency }, func(g *zoneGauges) *atomic.Int64 { return &g.inFlight })
}

func (s Sources) collectWaiting(set func(float64, ...string)) {
	forALimit := func(g *zoneGauges) *atomic.Int64 { return &g.waitingForLimit }
	forASlot := func(g *zoneGauges) *atomic.Int64 { return &g.waitingForSlot }
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
