package ratelimit

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/admin"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/denials"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/lines"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/telemetry"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/throttle"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// redisBackend is a Redis with its circuit breaker and its cache of denials. It stays open while a
// configuration uses it. Afterwards requests in flight still correct their charges, by connections of their own.
type redisBackend struct {
	*store.DenyCache
	redis     redisstore.Redis
	keyPrefix string
	health    admin.HealthLog
	outageLog outageLog
	slotLines *lines.SlotLines
}

// newBackend returns a backend that opens no connection yet. It calls logger for each message,
// because the backend can outlive a configuration and its loggers.
func newBackend(o redisstore.Options, logger func() *zap.Logger) (*redisBackend, error) {
	b := &redisBackend{keyPrefix: o.KeyPrefix, health: admin.NewHealthLog()}
	var err error
	b.redis, err = redisstore.Open(o, redisstore.Hooks{
		ClockStepped: func(back time.Duration) {
			telemetry.CountClockStep()
			logger().Warn("the clock of Redis stepped back: budgets continue from its new time", zap.Duration("by", back))
		},
		SharingDenied: func(address string, err error) {
			logger().Warn("a node denies script calls for several hash slots, so each hash slot has its own call, which costs the nodes more: "+
				"write declare_keys if that is intended",
				zap.String("address", address), zap.Error(err))
		},
		RoundTrip: telemetry.CountRoundTrip,
		HealthChanged: func(address string, failure error) {
			failure = withAdvice(failure, o.KeyPrefix)
			stats := b.redis.Stats()
			b.health.Observe(stats.Servers, stats.Failing, failure)
			b.outageLog.log(logger(), address, failure)
		},
	})
	if err != nil {
		return nil, err
	}
	b.DenyCache, b.slotLines = store.NewDenyCache(b.redis), lines.NewSlotLines(lines.SharedPause, b.redis.EndLine)
	return b, nil
}

func (b *redisBackend) IsCluster() bool {
	_, is := b.redis.(*redisstore.Cluster)
	return is
}

func (b *redisBackend) DecidedWithout() *limiter.OutageCounts { return &b.outageLog.OutageCounts }

func (b *redisBackend) Failing() int { return b.redis.Stats().Failing }

// Destruct implements [caddy.Destructor]. Caddy calls it when no configuration uses the backend any
// more.
func (b *redisBackend) Destruct() error { return b.redis.Close() }

// The events of a Redis.
const (
	eventStoreDown = "rate_limit_store_down"
	eventStoreUp   = "rate_limit_store_up"
)

// outageLog counts the requests that are decided while a Redis fails, for the log.
type outageLog struct {
	limiter.OutageCounts

	events  atomic.Pointer[denials.Events] // of the last configuration that started with the Redis; until then, that of the first
	mu      sync.Mutex
	outages map[string]outage // the outages that last, by address
}

// outage holds the beginning of an outage, and the counts of [outageLog] at that time.
type outage struct {
	at                     time.Time
	local, allowed, denied int64
}

// log logs that the Redis at an address fails or, if failure is nil, works again.
func (o *outageLog) log(logger *zap.Logger, address string, failure error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := outage{time.Now(), o.Local.Load(), o.Allowed.Load(), o.Denied.Load()}
	if failure != nil {
		if o.outages == nil {
			o.outages = make(map[string]outage)
		}
		o.outages[address] = now
		logger.Warn("Redis is failing, and Caddy won't ask it until it recovers: meanwhile on_store_error decides, which is local by default",
			zap.String("address", address), zap.Error(failure))
		o.events.Load().Add(eventStoreDown, map[string]any{"address": address, "error": failure.Error()})
		return
	}
	began, known := o.outages[address]
	if !known {
		began = now
	}
	delete(o.outages, address)
	length := now.at.Sub(began.at)
	local, allowed, denied := now.local-began.local, now.allowed-began.allowed, now.denied-began.denied
	logger.Warn("Redis works again", zap.String("address", address), zap.Duration("outage", length),
		zap.Int64("requests_decided_locally", local),
		zap.Int64("requests_passed_unlimited", allowed),
		zap.Int64("requests_answered_503", denied))
	o.events.Load().Add(eventStoreUp, map[string]any{
		"address": address, "outage": length,
		"requests_decided_locally": local, "requests_passed_unlimited": allowed, "requests_answered_503": denied,
	})
}

// status returns the state of the Redis for the admin API.
func (b *redisBackend) status() adminapi.Redis {
	stats := b.redis.Stats()
	health := b.health.Observe(stats.Servers, stats.Failing, nil)
	return adminapi.Redis{
		Address: b.redis.Address(), State: health.State, Since: health.Since, FailingNodes: stats.Failing, Error: health.Failure,
		PerSlotNodes: stats.PerSlot, Queued: stats.Queued, Connections: stats.InUse + stats.Idle,
	}
}

// metricSources are the sources of the gauges. They concern the whole process, and so serve all configurations.
var metricSources = telemetry.Sources{
	Zones:            func() []*telemetry.ZoneMetrics { return ofActiveApp((*App).countedZones) },
	Redis:            stateOfRedis,
	MemoryKeys:       func() float64 { return sumOfMemoryStores((*store.SharedMemory).Keys) },
	MemoryOverflowed: func() float64 { return sumOfMemoryStores((*store.SharedMemory).Overflowed) },
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

// stateOfRedis returns the sums over all Redis that configurations use, and whether there is any.
func stateOfRedis() (sum telemetry.RedisState, found bool) {
	storePool.Range(func(_, value any) bool {
		if b, ok := value.(*redisBackend); ok {
			stats := b.redis.Stats()
			sum.Failing += stats.Failing
			sum.Queued += stats.Queued
			sum.Idle += stats.Idle
			sum.InUse += stats.InUse
			found = true
		}
		return true
	})
	return sum, found
}

// countedZones returns the metrics of the zones whose requests are counted.
func (a *App) countedZones() (counted []*telemetry.ZoneMetrics) {
	for _, zones := range a.zonesByName {
		for _, z := range zones {
			if !z.Metrics.Disabled {
				counted = append(counted, &z.Metrics)
			}
		}
	}
	return counted
}

// storePool holds what survives reloads: the stores and the denied keys of all configurations in this process. The key
// of a store in memory is a memoryKey. The key of a Redis is its redisstore.Options.
var storePool = caddy.NewUsagePool()

// memoryKey names one of the two stores in memory: the one for zones without Redis, and the one
// with the local budgets of an outage.
type memoryKey string

const (
	ownMemory     memoryKey = "own"
	standInMemory memoryKey = "stand-in"
)

// sweep drops expired budgets from memory at intervals, until the configuration ends.
func (a *App) sweep() {
	ticker := time.NewTicker(cmp.Or(a.sweepEvery, defaultSweepInterval))
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			for _, m := range []*store.SharedMemory{a.memory.shared, a.standIn.shared} {
				if m != nil {
					m.Sweep()
				}
			}
		case <-a.ctx.Done():
			return
		}
	}
}

// checkRedis checks a Redis, and warns if it fails. Then no request is sent to this Redis until it
// passes a check. The configuration is in force in any case.
func (a *App) checkRedis(b *redisBackend) {
	ctx, cancel := context.WithTimeout(a.ctx, 5*time.Second)
	defer cancel()
	if err := b.redis.Check(ctx); err != nil && a.ctx.Err() == nil {
		a.logger.Warn("Redis failed its first check: until it passes one, on_store_error decides, which is local by default",
			zap.String("address", b.redis.Address()), zap.Error(withAdvice(err, b.keyPrefix)))
		return
	}
	if policy, bounded, err := b.redis.EvictionPolicy(ctx); err == nil && bounded && policy != "noeviction" {
		a.logger.Warn("when the memory of this Redis is full, it drops budgets, and their keys get full budgets: set maxmemory-policy noeviction",
			zap.String("address", b.redis.Address()), zap.String("maxmemory_policy", policy))
	}
}

// openStore gives a limiter the store that its handler's options name. It returns a text that identifies the budgets.
func (a *App) openStore(ctx caddy.Context, o *Options, l *limiter.Limiter) (id string, err error) {
	if err := checkStore(o.Store, o.Redis != nil); err != nil {
		return "", err
	}
	l.InRedis = o.storeName() == "redis"
	if every := time.Duration(o.SweepInterval); !l.InRedis && every > 0 && (a.sweepEvery == 0 || every < a.sweepEvery) {
		a.sweepEvery = every
	}
	if l.InRedis && a.simulated {
		l.HashSecret = o.Redis.simulatedSecret()
	}
	if !l.InRedis || a.simulated {
		l.Store, err = a.openMemory(&a.memory, ownMemory, func() int { return a.memoryZones })
		return "memory", err
	}
	expanded, err := o.Redis.expandedOptions(ctx.Logger())
	if err != nil {
		return "", err
	}
	l.HashSecret = expanded.HashKeys
	b, err := a.acquireBackend(expanded)
	if err != nil {
		return "", err
	}
	l.Backend, l.Store, l.SlotLines = b, b, b.slotLines
	if l.StoreErrorPolicy.Mode == "local" {
		local, err := a.openMemory(&a.standIn, standInMemory, func() int { return len(a.zonesByName) })
		if err != nil {
			return "", err
		}
		l.Store = store.NewFailover(b, local, l.ReportStoreFailure)
	}
	return b.redis.String(), nil
}

// memory is a store in memory, as one configuration uses it. It is zero until a handler needs it.
type memory struct {
	shared  *store.SharedMemory // of all configurations
	bounded *store.Memory       // the same with max_keys of this configuration
}

// openMemory returns a store in memory, from the pool if it isn't open yet. zones returns the number of zone names with
// budgets there.
func (a *App) openMemory(m *memory, key memoryKey, zones func() int) (*store.Memory, error) {
	if m.bounded == nil {
		pooled, _, err := storePool.LoadOrNew(key, func() (caddy.Destructor, error) { return pooledMemory{store.NewSharedMemory()}, nil })
		if err != nil {
			return nil, err
		}
		a.poolKeys = append(a.poolKeys, key)
		m.shared = pooled.(pooledMemory).SharedMemory
		m.bounded = m.shared.Bounded(a.Memory.MaxKeys, zones, a.reportFull)
	}
	return m.bounded, nil
}

// pooledMemory lets a [store.SharedMemory] live in the pool. It has nothing to close.
type pooledMemory struct{ *store.SharedMemory }

func (pooledMemory) Destruct() error { return nil }

// topKeys names the denied keys of a zone in the pool. They are shown as their HMACs if there is a secret.
type topKeys struct{ zone, hashSecret string }

// openTopKeys returns the denied keys of a zone, from the pool if another configuration has the zone.
func (a *App) openTopKeys(z *liveZone) *denials.TopKeys {
	key := topKeys{z.Name, z.HashSecret}
	pooled, _, _ := storePool.LoadOrNew(key, func() (caddy.Destructor, error) { return denials.NewTopKeys(), nil })
	a.poolKeys = append(a.poolKeys, key)
	return pooled.(*denials.TopKeys)
}

// acquireBackend returns the Redis with these options from the pool.
func (a *App) acquireBackend(o redisstore.Options) (*redisBackend, error) {
	o, err := o.Normalized()
	if err != nil {
		return nil, err
	}
	if known := a.backends[o]; known != nil {
		return known, nil
	}
	warnOfConnection(o, a.logger)
	b, _, err := storePool.LoadOrNew(o, func() (caddy.Destructor, error) {
		return newBackend(o, activeLogger)
	})
	if err != nil {
		return nil, err
	}
	a.poolKeys = append(a.poolKeys, o)
	a.backends[o] = b.(*redisBackend)
	a.backends[o].outageLog.events.CompareAndSwap(nil, a.events)
	return a.backends[o], nil
}

// activeLogger returns the logger of handlers in the configuration in force. A backend outlives its
// configuration, and so can't use the logger of that configuration. Caddy's default logger would
// not do: it omits what the configuration sends to another log.
func activeLogger() *zap.Logger {
	if ctx := caddy.ActiveContext(); ctx.Context != nil {
		return ctx.Logger(Handler{})
	}
	return caddy.Log().Named("http.handlers.rate_limit") // no configuration is in force
}

// reportFull warns that the memory is full for new keys of a zone, at most once a minute.
func (a *App) reportFull(zone string) {
	t, ok := a.fullThrottles.Load(zone)
	if !ok {
		t, _ = a.fullThrottles.LoadOrStore(zone, new(throttle.Throttle))
	}
	if n := t.(*throttle.Throttle).Due(time.Minute); n > 0 {
		a.logger.Warn("the memory store is full: new keys share one budget until others expire; raise max_keys, or limit who can make up keys",
			zap.String("zone", zone), zap.Int64("max_keys", a.Memory.MaxKeys), zap.Int64("requests", n))
	}
}
