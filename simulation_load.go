package ratelimit

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
)

// newSimulation loads a configuration in Caddy's JSON for a simulation. Of the configuration it takes only
// the routes of the http app, and the rate_limit app. It provisions matchers, rate_limit handlers and
// the handlers that change requests. No app is started.
func newSimulation(config []byte) (simulate.Configuration, error) {
	var c struct {
		Apps map[string]json.RawMessage `json:"apps"`
	}
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, fmt.Errorf("the configuration is not JSON of Caddy: %w", err)
	}
	if c.Apps["http"] == nil {
		return nil, errors.New("the configuration has no http app, so it limits no requests: write a site with rate_limit")
	}
	app := new(caddyhttp.App) // never provisioned
	if err := json.Unmarshal(c.Apps["http"], app); err != nil {
		return nil, fmt.Errorf("the http app: %w", err)
	}
	if err := findNull(app); err != nil {
		return nil, err
	}
	l := &simulationLoader{notes: newSimulationNotes()}
	if err := l.loadApp(c.Apps["rate_limit"]); err != nil {
		return nil, err
	}
	defer func() { _ = l.app.Cleanup() }() // a simulation has its own store
	l.app.readPlaceholderSources(app)
	s := &simulation{
		httpPort:  uint(cmp.Or(app.HTTPPort, caddyhttp.DefaultHTTPPort)),
		httpsPort: uint(cmp.Or(app.HTTPSPort, caddyhttp.DefaultHTTPSPort)),
		notes:     l.notes, maxKeys: l.app.Memory.MaxKeys, statuses: make(map[int]bool),
	}
	s.walks.New = func() any { return newLoggedWalk() }
	l.zones = new(simulatedZones)
	for _, name := range slices.Sorted(maps.Keys(app.Servers)) {
		server, err := l.loadServer(name, app.Servers[name])
		if err != nil {
			return nil, fmt.Errorf("server %s: %w", name, err)
		}
		s.servers = append(s.servers, server)
	}
	*l.zones = *newSimulatedZones(l.handlers)
	if len(l.zones.all) == 0 {
		return nil, errors.New("the configuration limits no requests: write rate_limit with a zone in a site")
	}
	s.zones = l.zones
	if hosts := s.namedHosts(); len(hosts) == 1 && !strings.Contains(hosts[0], "*") {
		s.onlyHost = hosts[0]
		l.notes.withoutHost = "requests in the log have no host: they are assumed to be of " + s.onlyHost
	} else if len(hosts) > 0 {
		l.notes.withoutHost = "requests in the log have no host, so no matcher of a host matches them: use Caddy's access log in JSON"
	}
	for _, h := range l.handlers {
		for _, z := range h.zones {
			s.statuses[z.status] = true
		}
	}
	return s, nil
}

// findNull returns an error if a server or a named route is null in JSON.
func findNull(app *caddyhttp.App) error {
	for name, server := range app.Servers {
		if server == nil {
			return fmt.Errorf("server %s is null: write its routes, or leave it out", name)
		}
		for route, routes := range server.NamedRoutes {
			if routes == nil {
				return fmt.Errorf("server %s: named route %s is null: write its handlers, or leave it out", name, route)
			}
		}
	}
	return nil
}

// simulationLoader loads a configuration for a simulation.
type simulationLoader struct {
	ctx      caddy.Context
	app      *App
	options  Options // of the app, about its store
	zones    *simulatedZones
	handlers []*Handler
	notes    *simulationNotes
}

// provisioning is locked while Caddy provisions a configuration, because Caddy then sets variables of the process.
var provisioning sync.Mutex

// loadApp loads the rate_limit app into a separate context. The context has only this app, and the
// events app without handlers, which the rate_limit app needs. Its log shows no warnings.
func (l *simulationLoader) loadApp(raw json.RawMessage) error {
	options := make(map[string]json.RawMessage)
	if raw != nil {
		if err := json.Unmarshal(raw, &options); err != nil {
			return fmt.Errorf("the rate_limit app: %w", err)
		}
	}
	var err error
	if l.options, err = takeStoreOptions(options); err != nil {
		return fmt.Errorf("the rate_limit app: %w", err)
	}
	l.notes.readTexts(options)
	if raw, err = json.Marshal(options); err != nil {
		return err
	}
	quiet := &caddy.CustomLog{BaseLog: caddy.BaseLog{Level: "FATAL"}}
	provisioning.Lock()
	l.ctx, err = caddy.ProvisionContext(&caddy.Config{
		Logging: &caddy.Logging{Logs: map[string]*caddy.CustomLog{caddy.DefaultLoggerName: quiet}},
		AppsRaw: caddy.ModuleMap{"rate_limit": raw},
	})
	provisioning.Unlock()
	if err != nil {
		return err
	}
	app, err := l.ctx.App("rate_limit")
	if err == nil {
		l.app = app.(*App)
	}
	return err
}

// loadServer loads the routes of a server.
func (l *simulationLoader) loadServer(name string, configured *caddyhttp.Server) (*simulatedServer, error) {
	server := newSimulatedServer(name, configured)
	handlers := len(l.handlers)
	l.notes.leaveOutErrors(configured.Errors)
	routes := &routesOfSimulation{l, server}
	for _, name := range slices.Sorted(maps.Keys(configured.NamedRoutes)) {
		route, err := routes.compile(caddyhttp.RouteList{*configured.NamedRoutes[name]}, leaveRoutes)
		if err != nil {
			return nil, fmt.Errorf("named route %s: %w", name, err)
		}
		server.named[name] = route
	}
	var err error
	server.routes, err = routes.compile(configured.Routes, endOfWalk)
	server.limits = len(l.handlers) > handlers
	return server, err
}

// loadRateLimit loads a rate_limit handler without its Redis.
func (l *simulationLoader) loadRateLimit(options map[string]json.RawMessage) (caddyhttp.MiddlewareHandler, error) {
	own, err := takeStoreOptions(options)
	if err != nil {
		return nil, fmt.Errorf("rate_limit: %w", err)
	}
	l.notes.readTexts(options)
	loaded, err := l.loadHandler("rate_limit", options)
	if err != nil {
		return nil, err
	}
	h := loaded.(*Handler)
	own.inherit(l.options)
	redis := own.redisInUse()
	h.hashSecret = redis.hashSecret()
	for _, z := range h.zones {
		l.notes.readZone(z, redis != nil)
		z.runtimeOverrides = false // those in force are not known
	}
	l.handlers = append(l.handlers, h)
	return meetStep{h, l.zones}, nil
}

// takeStoreOptions takes the options that depend on the store out of the others.
func takeStoreOptions(options map[string]json.RawMessage) (taken Options, err error) {
	if raw := options["redis"]; raw != nil {
		err = json.Unmarshal(raw, &taken.Redis)
	}
	if raw := options["store"]; raw != nil {
		err = errors.Join(err, json.Unmarshal(raw, &taken.Store))
	}
	for _, name := range []string{"redis", "store", "on_store_error"} {
		delete(options, name)
	}
	return taken, err
}

// redisInUse returns the Redis that keeps the budgets, or nil if they are in memory.
func (o *Options) redisInUse() *Redis {
	if o.Store == "memory" {
		return nil
	}
	return o.Redis
}

// hashSecret returns the secret of hash_keys; empty without the option. If the secret is not known to this
// process, operators see keys as HMACs with a random secret.
func (c *Redis) hashSecret() string {
	if c == nil || c.HashKeys == nil {
		return ""
	}
	secret := *c.HashKeys
	if err := expandRedisOption("hash_keys", &secret); err != nil || secret == "" {
		return rand.Text()
	}
	return secret
}
