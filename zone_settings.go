package ratelimit

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/options"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/routes"
)

// zoneSetting describes a setting of a zone. The list of [zoneSettings] is the only place
// that describes a setting. It says how a Caddyfile is read, and how the value is checked. It
// also says how zones of one name are compared, and what the admin API shows.
type zoneSetting struct {
	options.Option
	field string // of the field in JSON, if it has another name

	identifies  bool // zones of one name must have the same value
	shown       bool // the admin API shows the value
	inMholt     bool // mholt's limiter has the setting, too
	needsLimits bool // the setting means nothing in a zone without limits

	// view returns the value for the admin API and for the comparison, or nil if there is none; a nil view stands for
	// the configured value.
	view func(*liveZone) any
}

// zoneSettings returns all settings of a zone, in the order in which errors list the options.
func zoneSettings() []zoneSetting { return new(Zone).settings() }

// settings returns the settings of the zone, with their present values.
func (c *Zone) settings() []zoneSetting {
	return []zoneSetting{
		{inMholt: true, Option: routes.Matchers("match", "path /api/*", &c.MatcherSetsRaw, nil)},
		{Option: routes.Matchers("exempt", "client_ip 203.0.113.0/24", &c.ExemptRaw, checkExempt)},
		{
			inMholt: true, identifies: true, shown: true,
			Option: c.keyOption(),
			view:   func(z *liveZone) any { return z.config.keys() },
		},
		{
			inMholt: true, identifies: true, shown: true,
			Option: options.Single("ipv4_prefix", "24", &c.IPv4Prefix, options.SmallInteger, options.Within(0, 32)),
		},
		{
			inMholt: true, identifies: true, shown: true,
			Option: options.Single("ipv6_prefix", "64", &c.IPv6Prefix, options.SmallInteger, options.Within(0, 128)),
		},
		{identifies: true, shown: true, Option: options.Single("key_case", "lower", &c.KeyCase, options.Text, options.OneOf("lower"))},
		{needsLimits: true, Option: options.Made("cost", "{http.request.header.X-Cost}", &c.Cost, readSum, checkSum("cost"))},
		{
			identifies: true, shown: true, needsLimits: true,
			Option: options.Single("mode", "nary", &c.Mode, options.Text, checkMode),
			view:   func(z *liveZone) any { return z.Mode.String() },
		},
		{
			identifies: true, shown: true, needsLimits: true,
			Option: options.Single("factor", "2", &c.Factor, parseNumber, checkFactor),
			view: func(z *liveZone) any {
				if fixed := z.config.fixedFactor(); z.Factor == "" && fixed != limiter.UnitFactor {
					return fmt.Sprint(float64(fixed) / limiter.UnitFactor)
				}
				return options.UnlessZero(z.Factor)
			},
		},
		{
			identifies: true, shown: true, // a Caddyfile has options for each algorithm; behind factor, which divides them
			Option: options.Option{Name: "limits", Value: options.UnlessZero(c.Limits)},
			view:   func(z *liveZone) any { return z.DefaultSet.LimitTexts() },
		},
		{
			identifies: true, shown: true,
			Option: options.Made("concurrency", "10", &c.Concurrency, c.readConcurrency, options.Within[int64](1, maxConcurrency)),
		},
		{identifies: true, shown: true, Option: options.Option{Name: "share", Value: options.UnlessZero(c.Share)}},
		{Option: options.Made("delay", "2s 100", &c.Delay, unmarshalDelay, nil)},
		{
			identifies: true, shown: true, needsLimits: true,
			Option: options.Option{
				Name: "override", Example: "203.0.113.7 unlimited", Repeatable: true,
				Value: options.UnlessZero(c.Override), Read: c.unmarshalOverride,
			},
			view: (*liveZone).overridesView,
		},
		{identifies: true, shown: true, Option: options.Flag("runtime_overrides", &c.RuntimeOverrides)},
		{
			identifies: true, shown: true,
			Option: options.Made("plan", "{http.auth.user.plan}", &c.Plan, unmarshalPlan, nil),
			view:   (*liveZone).planView,
		},
		{needsLimits: true, Option: options.Made("settle", "{ match status 401 403 }", &c.Settle, unmarshalSettle, nil)},
		{shown: true, Option: options.Flag("shadow", &c.Shadow)},
		{
			identifies: true, shown: true, needsLimits: true,
			Option: options.List("notify", "80% 100%", &c.Notify, parsePercent, checkNotify),
		},
		{shown: true, Option: options.Single("enforce", "25", &c.Enforce, options.Pointer(options.Number), checkEnforce)},
		{
			identifies: true, shown: true,
			Option: options.Made("ban", "1h after 5 max 24h", &c.Ban, unmarshalBan, nil),
			view:   func(z *liveZone) any { return options.UnlessZero(z.config.Ban.describe()) },
		},
		{identifies: true, shown: true, Option: options.Made("hold", "status 429 503 max 10m", &c.Hold, unmarshalHold, nil)},
		{Option: options.Made("max_body", "64KiB", &c.MaxBody, unmarshalMaxBody, checkMaxBody)},
		{Option: options.Single("body_timeout", "5s", &c.BodyTimeout, options.Duration, options.AtLeast(time.Millisecond))},
		{Option: options.Single("headers", "off", &c.Headers, options.Text, options.OneOf("off"))},
		{Option: options.Single("status", "429", &c.Status, options.SmallInteger, options.Within(400, 599))},
		{field: "max_events", inMholt: true, Option: options.Single("events", "10", &c.MaxEvents, options.Integer, checkEvents)},
		{inMholt: true, Option: options.Single("window", "1m", &c.Window, options.Duration, checkWindow)},
	}
}

// options returns the options of the zone, and its limits.
func (c *Zone) options() (all []options.Option) {
	for _, s := range c.settings() {
		all = append(all, s.Option)
	}
	return append(all, readLimits(&c.Limits)...)
}

// zoneOptions returns the names of the options of a zone, in the order in which errors list them.
func zoneOptions() []string { return options.Names(new(Zone).options()) }

// checkValues checks each setting by itself.
func (c *Zone) checkValues() error { return checkSet(c.options()) }

// mholtCompatible reports whether the zone has only settings that mholt's limiter has, too.
func (c *Zone) mholtCompatible() bool {
	for _, s := range c.settings() {
		if !s.inMholt && s.Value != nil {
			return false
		}
	}
	return c.MaxEvents > 0 && len(c.keys()) == 1
}

// identify returns the identity of a zone that is kept in a store.
func (z *liveZone) identify(store string) limiter.Identity {
	return limiter.Identity{Settings: z.source.settingsText(z), Store: store}
}

// identifyingSettings returns the settings on which zones of one name must agree, as text.
func (z *liveZone) identifyingSettings() string {
	var settings []string
	for _, s := range z.config.settings() {
		if s.identifies {
			settings = append(settings, s.describe(z))
		}
	}
	return strings.Join(settings, "\n")
}

// disagreement is a setting on which two zones of one name disagree, with its two values.
type disagreement struct{ setting, one, other string }

// disagreementWith returns the first setting on which two zones of one name disagree.
func (z *liveZone) disagreementWith(other *liveZone) disagreement {
	others := other.config.settings()
	for i, s := range z.config.settings() {
		if !s.identifies {
			continue
		}
		if one, two := s.describe(z), others[i].describe(other); one != two {
			return disagreement{s.Name, one, two}
		}
	}
	return disagreement{"store", z.Identity.Store, other.Identity.Store}
}

// of returns the value of the setting for operators, or nil.
func (s *zoneSetting) of(z *liveZone) any {
	if s.view != nil {
		return s.view(z)
	}
	return s.Value
}

// describe returns the value of the setting for the comparison.
func (s *zoneSetting) describe(z *liveZone) string {
	value := s.of(z)
	if value == nil {
		return "not set"
	}
	text, _ := options.ReadableJSON(value) // all values have JSON
	return string(text)
}

// shownSettings returns the settings that operators see.
func (z *liveZone) shownSettings() (shown options.Object) {
	for _, s := range z.config.settings() {
		if value := s.of(z); s.shown && value != nil {
			shown = append(shown, options.Field{Name: s.Name, Value: value})
		}
	}
	return shown
}

// planView returns the plan of the zone as operators see it.
func (z *liveZone) planView() any {
	if z.config.Plan == nil {
		return nil
	}
	v := adminapi.Plan{By: z.config.Plan.By, Values: make(map[string][]string)}
	for value, set := range z.PlanSets {
		v.Values[value] = set.LimitTexts()
	}
	return v
}

// overridesView returns the limits by key, which is percent-encoded or hashed.
func (z *liveZone) overridesView() any {
	v := make(map[string][]string)
	for key, set := range z.Overrides.All {
		v[keys.Encoded(z.HashSecret, key)] = set.LimitTexts()
	}
	return options.UnlessZero(v)
}

// The option exempt names requests of the zone that pass unlimited. It comes before everything else
// that the zone does with a request: the zone doesn't even make the key.

// checkExempt returns an error for a matcher set that exempts all requests.
func checkExempt(sets caddyhttp.RawMatcherSets) error {
	for _, set := range sets {
		if len(set) == 0 {
			return errors.New(`exempt has a matcher set without matchers, which would exempt all requests: ` +
				`write for example {"client_ip": {"ranges": ["203.0.113.0/24"]}}, or leave it out`)
		}
	}
	return nil
}

// A zone with the option shadow decides, charges, counts and logs requests, but it never denies
// or delays one, and sends no header fields. With the option enforce this applies to a part of
// the keys.

// checkEnforce checks the share of keys that are not in shadow mode, in percent.
func checkEnforce(percent *float64) error { return options.Within(0., 100)(*percent) }

// parsePercent parses a share of the option notify.
func parsePercent(text string) (int64, error) { return options.Integer(strings.TrimSuffix(text, "%")) }

// checkNotify checks the shares of notify.
func checkNotify(shares []int64) error {
	for i, percent := range shares {
		if percent < 1 || percent > 100 {
			return options.Must("must be from 1%% to 100%%, not %d", percent)
		}
		if i > 0 && percent <= shares[i-1] {
			return options.Must("has shares that do not grow: %d%% follows %d%%", percent, shares[i-1])
		}
	}
	return nil
}

// A request takes a slot of its key in every zone with the option concurrency, and gives it back
// when its response has ended. The store takes the slots in the same call as the charges. If an
// instance is killed, the store frees the slots of its requests.

// maxConcurrency is the largest value of the option concurrency.
const maxConcurrency = 10_000_000

// checkWithoutLimits checks a zone that has only concurrency or hold. It rejects options that need a limit, unless an
// override may have one.
func (c *Zone) checkWithoutLimits() error {
	for _, set := range c.Override {
		if set != nil && !set.Unlimited {
			return nil
		}
	}
	for _, s := range c.settings() {
		if s.needsLimits && s.Value != nil && !c.RuntimeOverrides {
			return fmt.Errorf("%s needs a limit, but the zone has only concurrency or hold: "+
				"leave it out, or write a limit, such as token_bucket 10 1s; exempt lets requests pass without a slot", s.Name)
		}
	}
	return nil
}
