package ratelimit

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keyhash"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
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

// The values of labels. A trace has those of "for", too.
const (
	forLimit = "limit"
	forSlot  = "slot"

	fromConfig  = "config"
	fromRuntime = "runtime"

	connectionIdle  = "idle"
	connectionInUse = "in_use"
)

// newGauges returns all gauges with labels, and those that depend on the configuration.
func newGauges(name func(name, help string) prometheus.Opts) []prometheus.Collector {
	set := func(o prometheus.Opts, collect func(func(float64, ...string)), labels ...string) prometheus.Collector {
		return gaugeSet{prometheus.NewDesc(prometheus.BuildFQName(o.Namespace, o.Subsystem, o.Name), o.Help, labels, nil), collect}
	}
	return []prometheus.Collector{
		set(name("bans", "Bans in force that began on this instance, by denials or by operators."), collectBans, "zone"),
		set(name("overrides", "Overrides in force, by origin: config (in the configuration), or runtime "+
			"(set at run time; with Redis, as far as this instance knows them)."), collectOverrides, "zone", "from"),
		set(name("in_flight", "Requests of this instance that hold a slot of concurrency."), collectInFlight, "zone"),
		set(name("waiting", "Delayed requests, by what they wait for: limit, or slot (of concurrency)."), collectWaiting, "zone", "for"),
		set(name("redis_queue", "Requests and corrections of charges that wait to be sent to Redis."), collectRedisQueue),
		set(name("redis_connections", "Connections to Redis, by state: idle or in_use."), collectRedisConnections, "state"),
	}
}

// zoneGauges are the present numbers of a zone's requests and bans. All zones of one name share
// them. They outlive configurations, because requests do.
type zoneGauges struct {
	inFlight, waitingForLimit, waitingForSlot atomic.Int64

	bans bansInForce
}

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

// endBan uncounts the ban of a key.
func endBan(zone, key string) {
	if g, ok := processGauges.Load(zone); ok {
		g.(*zoneGauges).bans.end(key)
	}
}

// countedZones returns the zones of the configuration in force whose metrics are counted, by name.
func countedZones() map[string][]*zone {
	app, err := caddy.ActiveContext().AppIfConfigured("rate_limit")
	if err != nil {
		return nil
	}
	counted := make(map[string][]*zone)
	for name, zones := range app.(*App).zonesByName {
		for _, z := range zones {
			if !z.metrics.disabled {
				counted[name] = append(counted[name], z)
			}
		}
	}
	return counted
}

// collectRequests calls set with a number of the requests of each zone that has an option. A zone that
// has left the configuration is shown until its last request has ended.
func collectRequests(has func(*zone) bool, number func(*zoneGauges) int64, set func(value float64, zone string)) {
	values := make(map[string]int64)
	for name, zones := range countedZones() {
		if slices.ContainsFunc(zones, has) {
			values[name] = 0
		}
	}
	processGauges.Range(func(name, g any) bool {
		value, zone := number(g.(*zoneGauges)), name.(string)
		if _, shown := values[zone]; shown || value != 0 {
			values[zone] = value
		}
		return true
	})
	for zone, value := range values {
		set(float64(value), zone)
	}
}

func (z *zone) hasConcurrency() bool { return z.config.Concurrency > 0 }

func (z *zone) hasDelay() bool { return z.delay != nil }

func collectInFlight(set func(float64, ...string)) {
	collectRequests((*zone).hasConcurrency, func(g *zoneGauges) int64 { return g.inFlight.Load() },
		func(value float64, zone string) { set(value, zone) })
}

func collectWaiting(set func(float64, ...string)) {
	canWaitForSlot := func(z *zone) bool { return z.hasDelay() && z.hasConcurrency() }
	collectRequests((*zone).hasDelay, func(g *zoneGauges) int64 { return g.waitingForLimit.Load() },
		func(value float64, zone string) { set(value, zone, forLimit) })
	collectRequests(canWaitForSlot, func(g *zoneGauges) int64 { return g.waitingForSlot.Load() },
		func(value float64, zone string) { set(value, zone, forSlot) })
}

func collectBans(set func(float64, ...string)) {
	for name, zones := range countedZones() {
		if slices.ContainsFunc(zones, func(z *zone) bool { return z.config.Ban != nil }) {
			n := 0
			if g, ok := processGauges.Load(name); ok {
				n = g.(*zoneGauges).bans.count()
			}
			set(float64(n), name)
		}
	}
}

func collectOverrides(set func(float64, ...string)) {
	var inMemory map[string]int // by zone; nil until it is needed
	for name, zones := range countedZones() {
		if n := len(zones[0].overrides.all); n > 0 { // zones of one name agree about overrides
			set(float64(n), name, fromConfig)
		}
		if !zones[0].runtimeOverrides {
			continue
		}
		known := make(map[keyhash.Hash]bool)
		n := 0
		for _, z := range zones {
			if z.handler.backend != nil {
				z.knownOverrides.addTo(known)
				continue
			}
			if inMemory == nil {
				inMemory = z.handler.app.sharedMemory.OverrideCounts()
			}
			n = inMemory[name]
		}
		set(float64(n+len(known)), name, fromRuntime)
	}
}

func collectRedisQueue(set func(float64, ...string)) {
	if stats, ok := statsOfRedis(); ok {
		set(float64(stats.Queued))
	}
}

func collectRedisConnections(set func(float64, ...string)) {
	if stats, ok := statsOfRedis(); ok {
		set(float64(stats.Idle), connectionIdle)
		set(float64(stats.InUse), connectionInUse)
	}
}

// statsOfRedis returns the sums over all Redis, and whether there is any.
func statsOfRedis() (sum redisstore.Stats, any bool) {
	for _, b := range openBackends() {
		stats := b.redis.Stats()
		sum.Queued += stats.Queued
		sum.Idle += stats.Idle
		sum.InUse += stats.InUse
		any = true
	}
	return sum, any
}

// openBackends returns the Redis that configurations use.
func openBackends() (all []*backend) {
	storePool.Range(func(_, value any) bool {
		if b, ok := value.(*backend); ok {
			all = append(all, b)
		}
		return true
	})
	return all
}

// addTo adds the hashes of the keys whose overrides are in force, as far as this instance knows.
func (k *knownOverrides) addTo(all map[keyhash.Hash]bool) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	now := utcNow()
	for hash, known := range k.byKey {
		if known.until.IsZero() || known.until.After(now) {
			all[hash] = true
		}
	}
}
