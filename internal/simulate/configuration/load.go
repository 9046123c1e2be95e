package configuration

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/routes"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
)

// Load loads a configuration in Caddy's JSON for a simulation. Of the configuration it takes only
// the routes of the http app, and the rate_limit app. It provisions matchers, rate_limit handlers and
// the handlers that change requests. No app is started. The zones with the names in without are left out.
func Load(config []byte, without ...string) (simulate.Configuration, error) {
	s, err := load(config)
	if err != nil {
		return nil, err
	}
	return s, s.exclude(without)
}

func load(config []byte) (*configuration, error) {
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
	l := &loader{notes: newNotes()}
	if err := l.loadApp(c.Apps["rate_limit"]); err != nil {
		return nil, err
	}
	defer func() { _ = l.app.Cleanup() }() // a simulation has its own store
	s := &configuration{
		httpPort:  uint(cmp.Or(app.HTTPPort, caddyhttp.DefaultHTTPPort)),
		httpsPort: uint(cmp.Or(app.HTTPSPort, caddyhttp.DefaultHTTPSPort)),
		notes:     l.notes, maxKeys: l.app.MaxKeys(), statuses: make(map[int]bool),
	}
	s.walks.New = func() any { return newLoggedWalk(s) }
	for _, name := range slices.Sorted(maps.Keys(app.Servers)) {
		server, err := l.loadServer(name, app.Servers[name])
		if err != nil {
			return nil, fmt.Errorf("server %s: %w", name, err)
		}
		s.servers = append(s.servers, server)
	}
	if s.zones = newZones(l.handlers); len(s.zones.all) == 0 {
		return nil, errors.New("the configuration limits no requests: write rate_limit with a zone in a site")
	}
	if hosts := s.namedHosts(); len(hosts) == 1 && !strings.Contains(hosts[0], "*") {
		s.onlyHost = hosts[0]
		l.notes.withoutHost = "requests in the log have no host: they are assumed to be for " + s.onlyHost
	} else if len(hosts) > 0 {
		l.notes.withoutHost = "requests in the log have no host, so no host matcher matches them: log the host, too, such as $host of nginx"
	}
	s.leftOut = make([]*leftOut, len(s.zones.all))
	for _, h := range l.handlers {
		for _, z := range h.Zones {
			s.statuses[z.Status] = true
			s.leftOut[s.zones.index[z]] = newLeftOut(z)
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

// limitApp is the rate_limit app.
type limitApp interface {
	// Simulate has the handlers that are provisioned later keep their budgets in memory, without their Redis.
	Simulate()
	// MaxKeys returns how many keys the memory has space for.
	MaxKeys() int64
	Cleanup() error
}

// zoneMatchers are the matchers of a zone in JSON.
type zoneMatchers struct {
	Match  []caddy.ModuleMap `json:"match"`
	Exempt []caddy.ModuleMap `json:"exempt"`
}

// loader loads a configuration for a simulation.
type loader struct {
	ctx      caddy.Context
	app      limitApp
	matchers map[string]zoneMatchers // of the shared zones
	handlers []*limiter.Limiter
	notes    *notes

	changesHeader bool // a handler of the server may change header fields of requests
}

// provisioning is locked while Caddy provisions a configuration, because Caddy then sets variables of the process.
var provisioning sync.Mutex

// loadApp loads the rate_limit app into a separate context. The context has only this app, and the
// events app without handlers, which the rate_limit app needs. Its log shows no warnings.
func (l *loader) loadApp(raw json.RawMessage) error {
	if raw == nil {
		raw = json.RawMessage("{}")
	}
	var err error
	if l.matchers, err = l.readOptions(raw); err != nil {
		return fmt.Errorf("the rate_limit app: %w", err)
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
		l.app = app.(limitApp)
		l.app.Simulate()
	}
	return err
}

// loadServer loads the routes of a server.
func (l *loader) loadServer(name string, configured *caddyhttp.Server) (*server, error) {
	server, handlers := newServer(name, configured), len(l.handlers)
	l.changesHeader = false
	l.notes.leaveOutErrors(configured.Errors)
	for _, name := range slices.Sorted(maps.Keys(configured.NamedRoutes)) {
		route := caddyhttp.RouteList{*configured.NamedRoutes[name]}
		if err := l.loadRoutes(route); err != nil {
			return nil, fmt.Errorf("named route %s: %w", name, err)
		}
		configured.NamedRoutes[name] = &route[0]
	}
	err := l.loadRoutes(configured.Routes)
	if err == nil {
		server.routes, err = routes.Compile(l.ctx, configured)
	}
	server.limits, server.changesHeader = len(l.handlers) > handlers, l.changesHeader
	return server, err
}

// loadRoutes loads the matchers of routes, and the handlers that walks run or meet.
func (l *loader) loadRoutes(routes caddyhttp.RouteList) error {
	for i := range routes {
		if err := l.loadRoute(&routes[i]); err != nil {
			return fmt.Errorf("route %d: %w", i, err)
		}
	}
	return nil
}

func (l *loader) loadRoute(route *caddyhttp.Route) error {
	for _, set := range route.MatcherSetsRaw {
		l.notes.readMatchers(set)
	}
	if err := route.ProvisionMatchers(l.ctx); err != nil {
		return err
	}
	for i, raw := range route.HandlersRaw {
		h, err := l.loadHandler(raw)
		if err != nil {
			return fmt.Errorf("handler %d: %w", i, err)
		}
		route.Handlers = append(route.Handlers, h)
	}
	return nil
}

// loadHandler loads a handler. It provisions only the handlers that run or limit requests.
func (l *loader) loadHandler(raw json.RawMessage) (h caddyhttp.MiddlewareHandler, err error) {
	var options map[string]json.RawMessage
	var name string
	if err := json.Unmarshal(raw, &options); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(options["handler"], &name); err != nil {
		return nil, fmt.Errorf("the name of the handler: %w", err)
	}
	delete(options, "handler")
	switch {
	case name == "rate_limit":
		return l.loadRateLimit(options)
	case name == "subroute":
		h = new(caddyhttp.Subroute)
	case name == "invoke":
		h = new(caddyhttp.Invoke)
	case name == "static_response":
		h = new(caddyhttp.StaticResponse)
	case routes.Runs(name):
		l.changesHeader = l.changesHeader || name == "headers"
		l.notes.readTexts(options)
		return l.provisionHandler(name, options)
	default:
		l.notes.addHandler(name)
		return &routes.Unloaded{Name: name, Options: options}, nil
	}
	if err := json.Unmarshal(raw, h); err != nil {
		return nil, err
	}
	if subroute, is := h.(*caddyhttp.Subroute); is {
		l.notes.leaveOutErrors(subroute.Errors)
		err = l.loadRoutes(subroute.Routes)
	}
	return h, err
}

// loadRateLimit loads a rate_limit handler without its Redis.
func (l *loader) loadRateLimit(options map[string]json.RawMessage) (caddyhttp.MiddlewareHandler, error) {
	raw, err := json.Marshal(options)
	if err != nil {
		return nil, err
	}
	matchers, err := l.readOptions(raw)
	if err != nil {
		return nil, fmt.Errorf("rate_limit: %w", err)
	}
	handler, err := l.provisionHandler("rate_limit", options)
	if err != nil {
		return nil, err
	}
	h := handler.(routes.RateLimit).Limiter()
	for _, z := range h.Zones {
		own, there := matchers[z.Name]
		if !there {
			own = l.matchers[z.Name]
		}
		l.notes.readZone(z, own, h.InRedis)
		z.RuntimeOverrides = false // those in force are not known
	}
	l.handlers = append(l.handlers, h)
	return handler, nil
}

// provisionHandler loads a handler from its options, as Caddy does.
func (l *loader) provisionHandler(name string, options map[string]json.RawMessage) (caddyhttp.MiddlewareHandler, error) {
	raw, err := json.Marshal(options)
	if err != nil {
		return nil, err
	}
	module, err := l.ctx.LoadModuleByID("http.handlers."+name, raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return module.(caddyhttp.MiddlewareHandler), nil
}

// readOptions reads what the options of the app or of a handler depend on. It returns the matchers of their zones.
func (l *loader) readOptions(raw json.RawMessage) (map[string]zoneMatchers, error) {
	var options map[string]json.RawMessage
	if err := json.Unmarshal(raw, &options); err != nil {
		return nil, err
	}
	for _, ofStore := range []string{"redis", "store", "on_store_error"} {
		delete(options, ofStore)
	}
	l.notes.readTexts(options)
	matchers := make(map[string]zoneMatchers)
	_ = json.Unmarshal(options["rate_limits"], &matchers) // loading the zones reports the error
	return matchers, nil
}
