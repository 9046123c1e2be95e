package ratelimit

import (
	"errors"
	"net/http"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/admin"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
)

func init() {
	caddy.RegisterModule(AdminAPI{})
}

// AdminAPI shows zones and keys, and changes the state of keys, at Caddy's admin endpoint:
//
//	GET           /rate_limit/status                            the instance and its stores
//	POST          /rate_limit/explain                           how a described request would be decided
//	GET           /rate_limit/history                           the counts of the last hour
//	GET           /rate_limit/zones                             all zones
//	GET           /rate_limit/zones/<zone>                      one zone
//	GET           /rate_limit/zones/<zone>/top                  the keys denied most often in recent minutes
//	GET           /rate_limit/zones/<zone>/bans                 the bans in force
//	GET           /rate_limit/zones/<zone>/overrides            the overrides
//	GET, DELETE   /rate_limit/zones/<zone>/keys?key=<key>       inspect a key, or reset it
//	PUT, DELETE   /rate_limit/zones/<zone>/override?key=<key>   limits at run time
//	PUT, DELETE   /rate_limit/zones/<zone>/ban?key=<key>        deny all requests
//
// Zones and keys are percent-encoded.
//
// AdminAPI has no state: Caddy creates the admin endpoint of a configuration before it accepts
// the configuration. So each request looks up the configuration in force.
type AdminAPI struct{}

// CaddyModule returns the Caddy module information.
func (AdminAPI) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "admin.api.rate_limit",
		New: func() caddy.Module { return new(AdminAPI) },
	}
}

// Routes implements [caddy.AdminRouter].
func (a *AdminAPI) Routes() []caddy.AdminRoute {
	return []caddy.AdminRoute{{Pattern: admin.Path, Handler: a}}
}

// ServeHTTP implements [caddy.AdminHandler].
func (*AdminAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) error {
	return admin.Serve(w, r, func() (*admin.Configuration, error) {
		app, err := activeApp()
		if err != nil {
			return nil, err
		}
		return app.forAdmin(), nil
	})
}

// activeApp returns the app of the configuration in force.
func activeApp() (*App, error) {
	app, err := caddy.ActiveContext().AppIfConfigured("rate_limit")
	if errors.Is(err, caddy.ErrNotConfigured) {
		return nil, admin.Error(http.StatusNotFound, "the configuration in force has no rate_limit: write at least one zone")
	}
	if err != nil {
		return nil, err
	}
	return app.(*App), nil
}

// ofActiveApp returns a part of the app of the configuration in force, or zero if there is none. A caller
// that needs two parts reads both in one call, because a reload can remove the app at any moment.
func ofActiveApp[T any](read func(*App) T) (part T) {
	if app, err := activeApp(); err == nil {
		part = read(app)
	}
	return part
}

// forAdmin returns the configuration as the admin API needs it.
func (a *App) forAdmin() *admin.Configuration {
	c := &admin.Configuration{
		Zones: make(map[string][]*admin.Zone), Redis: a.redisStates, ParseOverride: parseOverride,
		Memory: func() *adminapi.Memory { return a.memoryState(a.memory) },
		Local:  func() *adminapi.Memory { return a.memoryState(a.standIn) },
		CheckBan: func(lasts caddy.Duration) error {
			_, err := (&Ban{Duration: lasts}).compile(anyLimits)
			return err
		},
	}
	for name, zones := range a.zonesByName {
		for _, z := range zones {
			c.Zones[name] = append(c.Zones[name], z.forAdmin())
		}
	}
	return c
}

// forAdmin returns the zone as the admin API needs it.
func (z *liveZone) forAdmin() *admin.Zone {
	return &admin.Zone{Zone: z.Zone, Limiter: z.handler, Source: z.source, Settings: z.shownSettings}
}

// redisStates returns the state of each Redis.
func (a *App) redisStates() (all []adminapi.Redis) {
	for _, b := range a.backends {
		all = append(all, b.status())
	}
	return all
}

// memoryState returns the state of a store in memory, or nil if the configuration doesn't use it.
func (a *App) memoryState(m memory) *adminapi.Memory {
	if m.shared == nil {
		return nil
	}
	return &adminapi.Memory{Keys: m.shared.Keys(), MaxKeys: a.Memory.MaxKeys, Overflowed: m.shared.Overflowed()}
}

// Interface guards
var (
	_ caddy.AdminRouter  = (*AdminAPI)(nil)
	_ caddy.AdminHandler = (*AdminAPI)(nil)
)
