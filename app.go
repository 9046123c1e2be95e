package ratelimit

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/admin"
	_ "github.com/caddy-rate-limit/caddy-rate-limit/internal/budgets" // the handler rate_limit_budget
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/denials"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/options"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/telemetry"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/throttle"
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

	// The stores and denied keys that this configuration has acquired from the pool. They live as long as any
	// configuration uses them, so reloads keep budgets and connections.
	memory   memory // for zones without Redis
	standIn  memory // the local budgets, for when a Redis fails
	backends map[redisstore.Options]*redisBackend
	poolKeys []any // their keys in the pool, to be released

	sharedZones     map[string]*zoneSource
	memoryZones     int                    // the number of zone names with budgets in memory
	sweepEvery      time.Duration          // the shortest sweep_interval of the handlers; 0: the default
	unsure          []unsurePlaceholder    // to be looked for in the routes
	needed          []string               // names of zones that handlers of budgets need
	zonesByName     map[string][]*liveZone // usually one zone per name
	denials         *denials.Log
	events          *denials.Events
	failureThrottle *throttle.Throttle // of log messages about failures of a store
	shedThrottle    *throttle.Throttle // of log messages about requests that were shed
	fullThrottles   *sync.Map          // zone → *throttle.Throttle, of log messages about full memory

	simulated bool // see [App.Simulate]

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

// CaddyModule returns the Caddy module information. The events app calls it for each event, so it must not
// copy the App, whose fields Cleanup may change during the call.
func (*App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "rate_limit",
		New: func() caddy.Module { return new(App) },
	}
}

// UnmarshalJSON implements [json.Unmarshaler], like the method of [Handler].
func (a *App) UnmarshalJSON(data []byte) error {
	type plain App
	return options.DecodeStrictly(data, (*plain)(a))
}

// Provision prepares the app for its handlers, which Caddy provisions later.
func (a *App) Provision(ctx caddy.Context) error {
	a.ctx, a.logger = ctx, ctx.Logger()
	a.backends = make(map[redisstore.Options]*redisBackend)
	a.zonesByName = make(map[string][]*liveZone)
	a.failureThrottle, a.shedThrottle, a.fullThrottles = new(throttle.Throttle), new(throttle.Throttle), new(sync.Map)
	a.warn(a.logger)
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
	ofActive := func() *denials.Events { return ofActiveApp(func(a *App) *denials.Events { return a.events }) }
	if a.events, err = denials.NewEvents(ctx, events.(*caddyevents.App), ofActive); err != nil {
		return err
	}
	a.denials = denials.NewLog(a.events)
	if err := telemetry.Register(ctx.GetMetricsRegistry(), metricSources); err != nil {
		a.logger.Warn("metrics are not available", zap.Error(err))
	}
	return a.provisionSharedZones(ctx)
}

// Validate checks the default options and the options of the store in memory.
func (a *App) Validate() error {
	return errors.Join(a.check(), checkSet(a.Memory.blockOptions())) // handlers check that there is a Redis
}

// Start begins to sweep the stores in memory, and to check every Redis once. It also begins to keep the counts of the
// last hour. All of this ends with the configuration. All handlers have been provisioned by then.
func (a *App) Start() error {
	for _, name := range a.needed {
		if len(a.zonesByName[name]) == 0 {
			return fmt.Errorf("rate_limit_budget: %w", a.forAdmin().UnknownZone(name))
		}
	}
	a.warnOfUnusedZones()
	a.warnOfRoutes()
	if len(a.countedZones()) > 0 {
		go telemetry.KeepHistory(a.ctx)
	}
	if a.memory.shared != nil || a.standIn.shared != nil {
		go a.sweep()
	}
	for _, b := range a.backends {
		b.outageLog.events.Store(a.events)
		go a.checkRedis(b)
	}
	return nil
}

// Stop does nothing, because requests may still be in flight.
func (a *App) Stop() error { return nil }

// Cleanup releases exactly what was acquired from the pool.
func (a *App) Cleanup() error {
	if a.denials != nil {
		a.denials.Close()
	}
	var errs []error
	for _, key := range a.poolKeys {
		_, err := storePool.Delete(key)
		errs = append(errs, err)
	}
	a.poolKeys = nil
	return errors.Join(errs...)
}

// registerZone adds a zone to those of the configuration.
func (a *App) registerZone(z *liveZone) {
	known := a.zonesByName[z.Name]
	if len(known) > 0 {
		z.DeniedKeys = known[0].DeniedKeys
	} else if z.Identity.Store == "memory" {
		a.memoryZones++
	}
	a.zonesByName[z.Name] = append(known, z)
}

// checkAgreement returns an error if the zone disagrees with an earlier zone of the same name. Only
// settings that decide the budget of a request, or its size, have to agree. If mholt's limiter
// accepts both zones, checkAgreement only warns, so that such configurations stay valid.
func (a *App) checkAgreement(z *liveZone) error {
	before := a.zonesByName[z.Name]
	before = before[:slices.Index(before, z)]
	if len(before) == 0 || slices.ContainsFunc(before, func(same *liveZone) bool { return same.Identity == z.Identity }) {
		return nil
	}
	d := before[0].disagreementWith(z)
	if before[0].source == z.source {
		return fmt.Errorf("used with two stores, %s and %s: write redis and store in the global option rate_limit, where they apply to all sites",
			d.one, d.other)
	}
	if before[0].config.mholtCompatible() && z.config.mholtCompatible() {
		a.logger.Warn("a zone is defined twice with different settings, so it is two zones with separate budgets",
			zap.String("zone", z.Name), zap.String("setting", d.setting), zap.String("one", d.one), zap.String("other", d.other))
		return nil
	}
	if at := before[0].source.position; at != "" {
		d.one += " (at " + at + ")"
	}
	return fmt.Errorf("defined twice with different settings: %s is %s and %s; make them agree, or give one zone another name",
		d.setting, d.one, d.other)
}

// reportFailure logs that Redis failed, or that requests were shed, each at most once every ten seconds.
func (a *App) reportFailure(err error) {
	const interval = 10 * time.Second
	if !store.IsBusy(err) {
		if n := a.failureThrottle.Due(interval); n > 0 {
			a.logger.Error("a call to Redis failed", zap.Error(err), zap.Int64("requests", n))
		}
	} else if n := a.shedThrottle.Due(interval); n > 0 {
		a.logger.Error("requests were shed", zap.Error(err), zap.Int64("requests", n))
	}
}

// NeedZone has the start of the app fail if no handler has a zone of this name.
func (a *App) NeedZone(name string) { a.needed = append(a.needed, name) }

// ZonesNamed returns the zones of a name. It is called when all handlers are provisioned.
func (a *App) ZonesNamed(name string) (zones []*admin.Zone) {
	for _, z := range a.zonesByName[name] {
		zones = append(zones, z.forAdmin())
	}
	return zones
}

// Simulate has the handlers that are provisioned later keep their budgets in memory, without their Redis. It is for
// the command simulate, like the next method.
func (a *App) Simulate() { a.simulated = true }

// MaxKeys returns how many keys the memory has space for.
func (a *App) MaxKeys() int64 { return a.Memory.MaxKeys }

// Interface guards
var (
	_ caddy.App          = (*App)(nil)
	_ caddy.Provisioner  = (*App)(nil)
	_ caddy.Validator    = (*App)(nil)
	_ caddy.CleanerUpper = (*App)(nil)
)
