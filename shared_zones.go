package ratelimit

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/options"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/placeholder"
)

// A shared zone is a zone of the app: in a Caddyfile, of the global option rate_limit. Any number of
// handlers can use it. They have one name and one configuration, so they share their budgets.

// zoneSource is a zone of the configuration, of a handler or of the app. Hundreds of handlers can
// have a shared zone, with thousands of overrides. So a zoneSource keeps all that they can have in
// common.
type zoneSource struct {
	name   string
	config *Zone
	shared bool
	// position is the file and line of the zone in the Caddyfile that is being adapted, or "".
	position string

	limitSets   map[limiter.StoreErrorPolicy]*limiter.LimitSets // by the on_store_error of the handlers
	keyWarnings *limiter.KeyWarnings
	settings    string // as text for the comparison of zones of one name
	used        bool   // a handler has the zone
	warned      bool   // of a placeholder that has no value yet
	warnedOfKey bool   // that clients make up
}

func newZoneSource(name string, config *Zone, shared bool) *zoneSource {
	s := &zoneSource{name: name, config: config, shared: shared, limitSets: make(map[limiter.StoreErrorPolicy]*limiter.LimitSets)}
	if config != nil {
		s.position = config.position
	}
	return s
}

// inSource adds the name of the zone to an error, and its position if it is known.
func (s *zoneSource) inSource(err error) error {
	err = inZone(s.name, err)
	if s.shared {
		err = fmt.Errorf("shared %w", err)
	}
	return options.AtPosition(s.position, err)
}

// provision returns the zone, checked and compiled for a handler, with its matchers.
func (s *zoneSource) provision(ctx caddy.Context, h *limiter.Limiter) (*liveZone, error) {
	z, err := s.compile(h)
	if err != nil {
		return nil, err
	}
	if err := s.config.loadMatchers(ctx, z.Zone); err != nil {
		return nil, s.inSource(err)
	}
	return z, nil
}

// compile returns the zone, checked and compiled for a handler, without its matchers.
func (s *zoneSource) compile(h *limiter.Limiter) (*liveZone, error) {
	if s.config == nil {
		return nil, s.inSource(errors.New("it is null: write an object with key and limits"))
	}
	z, err := s.config.compile(s.name, h, s)
	if err != nil {
		return nil, s.inSource(err)
	}
	return z, nil
}

// checkUse checks the placeholders of the zone, when the first handler uses the zone. It reports whether this
// handler is the first.
func (s *zoneSource) checkUse(a *App) (first bool, err error) {
	if s.used {
		return false, nil
	}
	s.used = true
	unsure, err := placeholder.Check(s.config.placeholderTexts())
	if err != nil {
		return true, s.inSource(err)
	}
	for _, use := range unsure {
		a.unsure = append(a.unsure, unsurePlaceholder{s.name, use})
	}
	return true, nil
}

// limitSetsFor returns the limits of a zone of this source.
func (s *zoneSource) limitSetsFor(z *limiter.Zone, factor int64, outage limiter.StoreErrorPolicy) (*limiter.LimitSets, error) {
	if sets := s.limitSets[outage]; sets != nil {
		return sets, nil
	}
	sets, err := s.config.compileSets(factor, outage)
	if err != nil {
		return nil, err
	}
	for _, set := range sets.Sets() {
		set.NameBudgets(z.Name, z.Keys)
	}
	s.limitSets[outage] = sets
	return sets, nil
}

// warningsFor returns the state of the warnings about a zone of this source.
func (s *zoneSource) warningsFor(z *limiter.Zone) *limiter.KeyWarnings {
	if s.keyWarnings == nil {
		s.keyWarnings = limiter.NewKeyWarnings(z.Keys, s.config.decidingPlaceholders())
	}
	return s.keyWarnings
}

// settingsText returns the settings on which zones of one name must agree.
func (s *zoneSource) settingsText(z *liveZone) string {
	if s.settings == "" {
		s.settings = z.identifyingSettings()
	}
	return s.settings
}

// adaptedApp returns the app of the Caddyfile that is being adapted. It checks the directives of this
// Caddyfile, and is never provisioned.
func adaptedApp(h httpcaddyfile.Helper) *App {
	const known = "rate_limit.app"
	if a, ok := h.State[known].(*App); ok {
		return a
	}
	a := &App{logger: zap.NewNop(), zonesByName: make(map[string][]*liveZone)}
	a.sharedZones = make(map[string]*zoneSource)
	if global, ok := h.Option("rate_limit").(httpcaddyfile.App); ok {
		_ = json.Unmarshal(global.Value, a) // made by parseGlobal
	}
	for name, config := range a.RateLimits {
		a.sharedZones[name] = newZoneSource(name, config, true)
	}
	h.State[known] = a
	return a
}

// checkInCaddyfile makes the checks that don't need the rest of the Caddyfile: of the store, and of the work
// of the zones. If agree is true, it also checks that the zones agree with those of earlier directives. It
// doesn't check zones that other limiters accept, because for these the order of all zones matters.
func (h *Handler) checkInCaddyfile(app *App, agree bool) error {
	provisioned := *h // the JSON is that of h
	h = &provisioned
	h.app, h.logger = app, app.logger
	h.inherit(app.Options)
	err := checkStore(h.Store, h.Redis != nil)
	if err == nil {
		h.limiter, err = h.newLimiter()
	}
	if err != nil {
		return err
	}
	sources, err := h.zoneSources()
	if err != nil {
		return err
	}
	var zones []*liveZone
	for _, source := range sources {
		z, err := source.compile(h.limiter)
		if err != nil {
			return err
		}
		zones = append(zones, z)
	}
	if err := boundWork(zones); err != nil {
		return err
	}
	for _, z := range zones {
		if !agree || z.config.mholtCompatible() {
			continue
		}
		z.Identity = z.identify(h.storeName()) // loading also compares which Redis
		app.registerZone(z)
		if err := app.checkAgreement(z); err != nil {
			return z.source.inSource(err)
		}
	}
	return nil
}

// checkSharedZones returns an error if the handler names a shared zone that the Caddyfile doesn't declare.
func (h *Handler) checkSharedZones(names []string) error {
	for i, name := range h.Zones {
		switch {
		case slices.Contains(names, name):
		case name == "zone" && i == 0 && len(h.Zones) > 1:
			return fmt.Errorf("rate_limit takes names of shared zones without the word zone: write rate_limit %s, "+
				"and if the zone is in another rate_limit, move it into the global option rate_limit", strings.Join(h.Zones[1:], " "))
		default:
			return unknownZoneError(name, names, "the global option rate_limit has",
				"declare it in the global options, at the beginning of the Caddyfile, or write a zone into this rate_limit, as in\n"+exampleDirective)
		}
	}
	return nil
}

// provisionSharedZones checks the shared zones, also those that no handler uses.
func (a *App) provisionSharedZones(ctx caddy.Context) error {
	a.sharedZones = make(map[string]*zoneSource)
	for _, name := range slices.Sorted(maps.Keys(a.RateLimits)) {
		a.sharedZones[name] = newZoneSource(name, a.RateLimits[name], true)
		l := &limiter.Limiter{Logger: a.logger, StoreErrorPolicy: limiter.StoreErrorPolicy{Mode: "local", Num: 1, Den: 1}, CountsRequests: true}
		z, err := a.sharedZones[name].provision(ctx, l)
		if err != nil {
			return err
		}
		if err := boundWork([]*liveZone{z}); err != nil {
			return z.source.inSource(err)
		}
	}
	return nil
}

// warnOfUnusedZones warns about shared zones that no handler uses.
func (a *App) warnOfUnusedZones() {
	for _, name := range slices.Sorted(maps.Keys(a.sharedZones)) {
		if !a.sharedZones[name].used {
			a.logger.Warn("a shared zone limits nothing, because no rate_limit uses it: write its name after rate_limit in a site, or remove it",
				zap.String("zone", name))
		}
	}
}

// zoneSources returns the zones of the handler: its own and the shared ones that it names. A handler
// with neither uses all shared zones.
func (h *Handler) zoneSources() ([]*zoneSource, error) {
	if err := h.checkZoneNames(); err != nil {
		return nil, err
	}
	sources := make(map[string]*zoneSource)
	for name, config := range h.RateLimits {
		sources[name] = newZoneSource(name, config, false)
	}
	for i, name := range h.Zones {
		shared := h.app.sharedZones[name]
		if shared == nil {
			err := unknownZoneError(name, slices.Sorted(maps.Keys(h.app.sharedZones)),
				"apps.rate_limit.rate_limits has", "write it into apps.rate_limit.rate_limits")
			return nil, fmt.Errorf("zones[%d]: %w", i, err)
		}
		sources[name] = shared
	}
	if len(sources) == 0 {
		sources = h.app.sharedZones
	}
	var sorted []*zoneSource
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		sorted = append(sorted, sources[name])
	}
	return sorted, nil
}

// checkZoneNames checks that each zone of the handler has another name.
func (h *Handler) checkZoneNames() error {
	for i, name := range h.Zones {
		if slices.Contains(h.Zones[:i], name) {
			return fmt.Errorf("the shared zone %q is named twice: write it once", name)
		}
		if _, there := h.RateLimits[name]; there {
			return ownAndSharedError(name)
		}
	}
	return nil
}

// ownAndSharedError returns the error for a zone of a handler that names a shared zone of this name.
func ownAndSharedError(name string) error {
	return fmt.Errorf("zone %q has the name of a shared zone that this rate_limit uses, too: give it another name", name)
}

// unknownZoneError returns the error for the name of a shared zone that doesn't exist. declares
// begins the list of the existing zones. If there is none, remedy says how to declare the zone.
func unknownZoneError(name string, names []string, declares, remedy string) error {
	if len(names) == 0 {
		return fmt.Errorf("there is no shared zone %q: %s", name, remedy)
	}
	meant := ""
	if near := options.Suggest(name, names); near != "" {
		meant = fmt.Sprintf(" (did you mean %s?)", near)
	}
	return fmt.Errorf("there is no shared zone %q%s: %s %s", name, meant, declares, strings.Join(names, ", "))
}

// checkSharedZoneNames returns an error with the correction if the values after rate_limit can't
// be names of zones.
func checkSharedZoneNames(args []string) error {
	for _, arg := range args {
		if arg != "" && strings.Contains("@/*", arg[:1]) {
			return fmt.Errorf("rate_limit takes one matcher, which comes before the zones: write for example rate_limit %.100s api", arg)
		}
		if checkZoneName(arg) != nil {
			return fmt.Errorf("rate_limit takes no value %.100q here: write keys and limits in a zone, as in\n%s",
				keys.Shorten(arg), exampleDirective)
		}
	}
	return nil
}

// exampleDirective is a directive to copy.
const exampleDirective = "rate_limit {\n\tzone api {\n\t\tkey {client_ip}\n\t\tipv6_prefix 64\n\t\ttoken_bucket 10 1s\n\t}\n}"
