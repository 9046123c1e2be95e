package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

func init() {
	caddy.RegisterModule(new(App))
}

// App holds the state that all rate_limit handlers of one configuration share: options, stores, and the
// zones by name. It works without configuration.
type App struct {
	// The shared zones, by name. A handler names the shared zones that it uses in its field zones.
	// A handler without rate_limits and zones uses all of them. All handlers that use a shared zone
	// share its budgets (default: none).
	RateLimits map[string]*Zone `json:"rate_limits,omitempty"`

	Options

	// Settings of the store in memory (default: the defaults of its fields).
	Memory *MemoryOptions `json:"memory,omitempty"`

	// The stores that this configuration has acquired from the pool. They live as long as any
	// configuration uses them, so reloads keep budgets and connections.
	sharedMemory  *store.SharedMemory // for zones without Redis
	sharedStandIn *store.SharedMemory // the local budgets, for when a Redis fails
	backends      map[redisstore.Options]*backend
	poolKeys      []any // the keys of these stores in the pool, to be released

	// The stores in memory with max_keys of this configuration; nil until a handler needs them.
	boundedMemory  *store.Memory
	boundedStandIn *store.Memory

	sharedZones     map[string]*zoneSource
	memoryZones     int                 // the number of zone names with budgets in memory
	sweepEvery      time.Duration       // the shortest sweep_interval of the handlers; 0: the default
	cachedSources   *placeholderSources // nil until a handler needs them
	zonesByName     map[string][]*zone  // usually one zone per name
	denials         *denialLog
	events          *eventQueue
	failureThrottle *throttle // of log messages about failures of a store
	shedThrottle    *throttle // of log messages about requests that were shed
	fullThrottles   *sync.Map // zone → *throttle, of log messages about full memory

	ctx    caddy.Context
	logger *zap.Logger
}

// MemoryOptions are the settings of the store in memory.
type MemoryOptions struct {
	// The maximum number of keys in the store, over all zones; at least 1. A sliding log counts
	// as one more key for every 64 events that it has room for. When the store is full, new keys
	// share one budget per limit. 1000000 keys of any length need about 200 MB of memory, or at
	// most 1.4 GB with sliding logs (default 1000000).
	MaxKeys int64 `json:"max_keys,omitempty" zero:"1000000"`
}

const (
	defaultMaxKeys       = 1_000_000
	defaultSweepInterval = time.Minute
)

// storePool holds the stores of all configurations in this process. The key of a store in memory is
// a memoryKey. The key of a Redis is its redisstore.Options.
var storePool = caddy.NewUsagePool()

// memoryKey names one of the two stores in memory: the one for zones without Redis, and the one
// with the local budgets of an outage.
type memoryKey string

const (
	ownMemory     memoryKey = "own"
	standInMemory memoryKey = "stand-in"
)

// CaddyModule returns the Caddy module information. The events app calls it for each event, so it must not
// copy the App, whose fields Cleanup may change meanwhile.
func (*App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "rate_limit",
		New: func() caddy.Module { return new(App) },
	}
}

// Provision prepares the app for its handlers, which Caddy provisions later.
func (a *App) Provision(ctx caddy.Context) error {
	a.ctx, a.logger = ctx, ctx.Logger()
	a.backends = make(map[redisstore.Options]*backend)
	a.zonesByName = make(map[string][]*zone)
	a.failureThrottle, a.shedThrottle, a.fullThrottles = new(throttle), new(throttle), new(sync.Map)
	a.warnOfIgnored(a.logger)
	if a.Memory == nil {
		a.Memory = new(MemoryOptions)
	}
	if a.Memory.MaxKeys == 0 {
		a.Memory.MaxKeys = defaultMaxKeys
	}
	events, err := ctx.App("events")
	if err != nil {
		return err
	}
	if a.events, err = newEventQueue(ctx, events.(*caddyevents.App)); err != nil {
		return err
	}
	a.denials = newDenialLog(a.reportDenial, &processDenials)
	if err := registerMetrics(ctx.GetMetricsRegistry()); err != nil {
		a.logger.Warn("metrics are not available", zap.Error(err))
	}
	return a.provisionSharedZones(ctx)
}

// Validate checks the default options and the options of the store in memory.
func (a *App) Validate() error {
	return errors.Join(a.check(), checkMaxKeys(a.Memory.MaxKeys)) // handlers check that there is a Redis
}

func checkMaxKeys(n int64) error {
	if n < 1 {
		return fmt.Errorf("max_keys must be above 0, not %d: write how many keys may be held, or leave it out for %d", n, defaultMaxKeys)
	}
	return nil
}

// Start begins to sweep the stores in memory, to check every Redis once, and to watch which share of
// their requests the zones deny. All of this ends with the configuration. All handlers have been
// provisioned by then.
func (a *App) Start() error {
	a.warnOfUnusedZones()
	a.warnOfLateUsers()
	if zones := a.countedZones(); len(zones) > 0 {
		processShares.join(a, zones, time.Now())
		go a.watchShares()
	}
	if a.sharedMemory != nil || a.sharedStandIn != nil {
		go a.sweep()
	}
	for _, b := range a.backends {
		b.outageLog.setModes(a, a.outageModes(b))
		go a.checkRedis(b)
	}
	return nil
}

// outageModes returns the modes of on_store_error of the handlers that use a Redis.
func (a *App) outageModes(b *backend) map[string]bool {
	modes := make(map[string]bool)
	for _, zones := range a.zonesByName {
		for _, z := range zones {
			if z.handler.backend == b {
				modes[z.handler.storeErrorPolicy.mode] = true
			}
		}
	}
	return modes
}

// Stop does nothing, because requests may still be in flight.
func (a *App) Stop() error { return nil }

// Cleanup releases exactly the stores that were acquired.
func (a *App) Cleanup() error {
	if a.denials != nil {
		a.denials.close()
	}
	for _, b := range a.backends {
		b.outageLog.setModes(a, nil)
	}
	var errs []error
	for _, key := range a.poolKeys {
		_, err := storePool.Delete(key)
		errs = append(errs, err)
	}
	a.poolKeys = nil
	return errors.Join(errs...)
}

// sweep drops expired budgets from memory at intervals, until the configuration ends.
func (a *App) sweep() {
	ticker := time.NewTicker(cmp.Or(a.sweepEvery, defaultSweepInterval))
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			for _, m := range []*store.SharedMemory{a.sharedMemory, a.sharedStandIn} {
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
func (a *App) checkRedis(b *backend) {
	ctx, cancel := context.WithTimeout(a.ctx, 5*time.Second)
	defer cancel()
	if err := b.redis.Check(ctx); err != nil && a.ctx.Err() == nil {
		a.logger.Warn("Redis did not pass the check at the start: until it does, "+describeModes(a.outageModes(b)),
			zap.String("address", b.redis.Address()), zap.Error(err))
		return
	}
	if policy, bounded, err := b.redis.EvictionPolicy(ctx); err == nil && bounded && policy != "noeviction" {
		a.logger.Warn("when the memory of this Redis is full, it drops budgets, and their keys get full budgets: set maxmemory-policy noeviction",
			zap.String("address", b.redis.Address()), zap.String("maxmemory_policy", policy))
	}
}

// storeFor returns the store of a handler, and a text that identifies its budgets.
func (a *App) storeFor(ctx caddy.Context, h *Handler) (s store.Store, id string, err error) {
	o := &h.Options
	if err := checkStore(o.Store, o.Redis != nil); err != nil {
		return nil, "", err
	}
	if o.storeName() == "redis" {
		options, err := o.Redis.expandedOptions(ctx.Logger())
		if err != nil {
			return nil, "", atPosition(o.Redis.Position, err)
		}
		h.hashSecret = options.HashKeys
		b, err := a.acquireBackend(options)
		if err != nil {
			return nil, "", atPosition(o.Redis.Position, err)
		}
		h.backend = b
		if h.storeErrorPolicy.mode != "local" {
			return b, b.redis.String(), nil
		}
		a.sharedStandIn, err = a.acquireMemory(standInMemory, a.sharedStandIn)
		if a.boundedStandIn == nil && err == nil {
			a.boundedStandIn = a.sharedStandIn.Bounded(a.Memory.MaxKeys, func() int { return len(a.zonesByName) }, a.reportFull)
		}
		return store.NewFailover(b, a.boundedStandIn, h.reportStoreFailure), b.redis.String(), err
	}
	if every := time.Duration(o.SweepInterval); every > 0 && (a.sweepEvery == 0 || every < a.sweepEvery) {
		a.sweepEvery = every
	}
	s, err = a.memoryStore()
	return s, "memory", err
}

// memoryStore returns the store in memory for zones without Redis.
func (a *App) memoryStore() (_ store.Store, err error) {
	a.sharedMemory, err = a.acquireMemory(ownMemory, a.sharedMemory)
	if a.boundedMemory == nil && err == nil {
		a.boundedMemory = a.sharedMemory.Bounded(a.Memory.MaxKeys, func() int { return a.memoryZones }, a.reportFull)
	}
	return a.boundedMemory, err
}

// acquireMemory returns known, or the store in memory from the pool if known is nil.
func (a *App) acquireMemory(key memoryKey, known *store.SharedMemory) (*store.SharedMemory, error) {
	if known != nil {
		return known, nil
	}
	m, _, err := storePool.LoadOrNew(key, func() (caddy.Destructor, error) { return pooledMemory{store.NewSharedMemory()}, nil })
	if err != nil {
		return nil, err
	}
	a.poolKeys = append(a.poolKeys, key)
	return m.(pooledMemory).SharedMemory, nil
}

// pooledMemory lets a [store.SharedMemory] live in the pool. It has nothing to close.
type pooledMemory struct{ *store.SharedMemory }

func (pooledMemory) Destruct() error { return nil }

// acquireBackend returns the Redis with these options from the pool.
func (a *App) acquireBackend(o redisstore.Options) (*backend, error) {
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
	a.backends[o] = b.(*backend)
	return a.backends[o], nil
}

// activeLogger returns the logger of handlers in the configuration in force. A backend outlives its
// configuration, and so can't use the logger of that configuration. Caddy's default logger would
// not do: it leaves out what the configuration sends to another log.
func activeLogger() *zap.Logger {
	if ctx := caddy.ActiveContext(); ctx.Context != nil {
		return ctx.Logger(Handler{})
	}
	return caddy.Log().Named("http.handlers.rate_limit") // no configuration is in force
}

// registerZone adds a zone to those of the configuration.
func (a *App) registerZone(z *zone) {
	known := a.zonesByName[z.name]
	if len(known) > 0 {
		z.deniedKeys = known[0].deniedKeys
	} else if z.identity.store == "memory" {
		a.memoryZones++
	}
	a.zonesByName[z.name] = append(known, z)
}

// checkAgreement returns an error if the zone disagrees with an earlier zone of the same name. Only
// settings that decide the budget of a request, or its size, have to agree. If mholt's limiter
// accepts both zones, checkAgreement only warns, so that such configurations stay valid.
func (a *App) checkAgreement(z *zone) error {
	before := a.zonesByName[z.name]
	before = before[:slices.Index(before, z)]
	if len(before) == 0 || slices.ContainsFunc(before, func(same *zone) bool { return same.identity == z.identity }) {
		return nil
	}
	setting, one, other := before[0].difference(z)
	if before[0].source == z.source {
		return fmt.Errorf("used with two stores, %s and %s: write redis and store in the global option rate_limit, where they are for all sites",
			one, other)
	}
	if before[0].config.mholtCompatible() && z.config.mholtCompatible() {
		a.logger.Warn("a zone is defined twice with different settings, so it is two zones with separate budgets",
			zap.String("zone", z.name), zap.String("setting", setting), zap.String("one", one), zap.String("other", other))
		return nil
	}
	if at := before[0].source.position; at != "" {
		one += " (at " + at + ")"
	}
	return fmt.Errorf("defined twice with different settings: %s is %s and %s; make them agree, or give one zone another name",
		setting, one, other)
}

// reportFull warns that the memory is full for new keys of a zone, at most once a minute.
func (a *App) reportFull(zone string) {
	t, ok := a.fullThrottles.Load(zone)
	if !ok {
		t, _ = a.fullThrottles.LoadOrStore(zone, new(throttle))
	}
	if n := t.(*throttle).due(time.Minute); n > 0 {
		a.logger.Warn("the memory store is full: new keys share one budget until others expire; raise max_keys, or limit who can make up keys",
			zap.String("zone", zone), zap.Int64("max_keys", a.Memory.MaxKeys), zap.Int64("requests", n))
	}
}

// reportFailure logs a failure of a store, at most once every ten seconds.
func (a *App) reportFailure(err error) {
	if n := a.failureThrottle.due(10 * time.Second); n > 0 {
		a.logger.Error("a call to Redis failed", zap.Error(err), zap.Int64("requests", n))
	}
}

// reportShed logs that a request was shed, at most once every ten seconds.
func (a *App) reportShed(err error) {
	if n := a.shedThrottle.due(10 * time.Second); n > 0 {
		a.logger.Error("requests were shed", zap.Error(err), zap.Int64("requests", n))
	}
}

// Interface guards
var (
	_ caddy.App          = (*App)(nil)
	_ caddy.Provisioner  = (*App)(nil)
	_ caddy.Validator    = (*App)(nil)
	_ caddy.CleanerUpper = (*App)(nil)
)
