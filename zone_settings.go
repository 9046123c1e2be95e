package ratelimit

import (
	"errors"
	"fmt"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/admin"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/options"
)

// zoneSetting describes a setting of a zone. The list of [zoneSettings] is the only place
// that describes a setting. It says how a Caddyfile is read, and how the value is checked. It
// also says how zones of one name are compared, and what the admin API shows.
type zoneSetting struct {
	name  string // of the option in a Caddyfile, and of the field in JSON
	field string // of the field in JSON, if it has another name
	zoneValue

	identifies  bool // zones of one name must have the same value
	shown       bool // the admin API shows the value
	inMholt     bool // mholt's limiter has the setting, too
	needsLimits bool // the setting means nothing in a zone without limits
	repeatable  bool // the option may stand more than once

	// text returns the value for the comparison; nil stands for the configured value.
	text func(*liveZone) string
	// view returns the value for the admin API, or nil to show nothing; a nil view stands for
	// the configured value.
	view func(*liveZone) any
}

// zoneValue is the value of a setting.
type zoneValue struct {
	// value returns the configured value, or nil if the setting isn't set.
	value func(*Zone) any
	// read reads the option; nil if there is none.
	read func(*Zone, *caddyfile.Dispenser) error
	// check checks the value by itself; nil accepts every value.
	check func(*Zone) error
}

// fieldValue returns the value of a setting that is one field of [Zone]. The setting isn't set if
// the field is zero.
func fieldValue[T comparable](field func(*Zone) *T, read func(*caddyfile.Dispenser) (T, error), check func(T) error) zoneValue {
	v := zoneValue{value: func(c *Zone) any { return unlessZero(*field(c)) }}
	if check != nil {
		v.check = func(c *Zone) error { return check(*field(c)) }
	}
	v.read = func(c *Zone, d *caddyfile.Dispenser) (err error) {
		if *field(c), err = read(d); err == nil && check != nil {
			err = v.check(c)
		}
		return err
	}
	return v
}

// unlessZero returns nil for a value that is zero.
func unlessZero[T comparable](v T) any {
	var zero T
	if v == zero {
		return nil
	}
	return v
}

// withExample returns read with its example filled in. Errors show the example.
func withExample[T any](read func(*caddyfile.Dispenser, string) (T, error), example string) func(*caddyfile.Dispenser) (T, error) {
	return func(d *caddyfile.Dispenser) (T, error) { return read(d, example) }
}

// presence reads an option without a value.
func presence(d *caddyfile.Dispenser) (bool, error) { return true, options.NoValue(d) }

// percent reads the value of enforce.
func percent(d *caddyfile.Dispenser) (*float64, error) {
	n, err := options.Fraction(d, "25")
	return &n, err
}

// zoneSettings returns all settings of a zone, in the order in which errors list the options.
func zoneSettings() []zoneSetting {
	return []zoneSetting{
		{name: "match", inMholt: true, repeatable: true, zoneValue: zoneValue{
			value: func(c *Zone) any { return unlessZero(len(c.MatcherSetsRaw)) },
			read:  (*Zone).unmarshalMatch,
		}},
		{name: "exempt", repeatable: true, zoneValue: zoneValue{
			value: func(c *Zone) any { return unlessZero(len(c.ExemptRaw)) },
			read:  (*Zone).unmarshalExempt,
			check: (*Zone).checkExempt,
		}},
		{
			name: "key", inMholt: true, identifies: true, shown: true,
			zoneValue: zoneValue{
				value: func(c *Zone) any { return unlessZero(len(c.Key)) },
				read:  (*Zone).unmarshalKey,
				check: func(c *Zone) error { return c.Key.check(true) },
			},
			text: func(z *liveZone) string { return fmt.Sprintf("%q", z.config.keys()) },
			view: func(z *liveZone) any { return z.config.keys() },
		},
		{name: "ipv4_prefix", inMholt: true, identifies: true, shown: true, zoneValue: fieldValue(
			func(c *Zone) *int { return &c.IPv4Prefix }, withExample(options.SmallInteger, "24"),
			func(bits int) error { return checkPrefix("ipv4_prefix", bits, 32) },
		)},
		{name: "ipv6_prefix", inMholt: true, identifies: true, shown: true, zoneValue: fieldValue(
			func(c *Zone) *int { return &c.IPv6Prefix }, withExample(options.SmallInteger, "64"),
			func(bits int) error { return checkPrefix("ipv6_prefix", bits, 128) },
		)},
		{name: "key_case", identifies: true, shown: true, zoneValue: fieldValue(
			func(c *Zone) *string { return &c.KeyCase }, withExample(options.Value, "lower"), checkKeyCase,
		)},
		{
			name: "limits", identifies: true, shown: true, // a Caddyfile has options for each algorithm
			zoneValue: zoneValue{value: func(c *Zone) any { return unlessZero(len(c.Limits)) }},
			text:      func(z *liveZone) string { return z.DefaultSet.Describe() },
			view:      func(z *liveZone) any { return z.DefaultSet.LimitTexts() },
		},
		{name: "cost", needsLimits: true, zoneValue: fieldValue(
			func(c *Zone) *Number { return &c.Cost },
			func(d *caddyfile.Dispenser) (Number, error) { return readCost(d, costSum) }, nil, // compile checks it
		)},
		{
			name: "mode", identifies: true, shown: true, needsLimits: true,
			zoneValue: fieldValue(func(c *Zone) *string { return &c.Mode }, withExample(options.Value, "nary"), checkMode),
			text:      func(z *liveZone) string { return z.Mode.String() },
			view:      func(z *liveZone) any { return z.Mode.String() },
		},
		{
			name: "factor", identifies: true, shown: true, needsLimits: true,
			zoneValue: fieldValue(
				func(c *Zone) *Number { return &c.Factor },
				readFactor, checkFactor,
			),
			text: func(z *liveZone) string {
				if z.Factor != "" {
					return z.Factor
				}
				return fmt.Sprint(float64(z.config.fixedFactor()) / limiter.UnitFactor)
			},
			view: func(z *liveZone) any { return unlessZero(string(z.config.Factor)) },
		},
		{name: "concurrency", identifies: true, shown: true, zoneValue: fieldValue(
			func(c *Zone) *int64 { return &c.Concurrency }, withExample(options.Integer, "10"), checkConcurrency,
		)},
		{name: "delay", zoneValue: fieldValue(func(c *Zone) **Delay { return &c.Delay }, unmarshalDelay, nil)},
		{
			name: "override", identifies: true, shown: true, repeatable: true,
			zoneValue: zoneValue{
				value: func(c *Zone) any { return unlessZero(len(c.Override)) },
				read:  (*Zone).unmarshalOverride,
			},
			text: func(z *liveZone) string { return describeLimitSets(z.Overrides.All) },
			view: (*liveZone).overridesView,
		},
		{name: "runtime_overrides", identifies: true, shown: true, zoneValue: fieldValue(
			func(c *Zone) *bool { return &c.RuntimeOverrides }, presence, nil,
		)},
		{
			name: "plan", identifies: true, shown: true,
			zoneValue: fieldValue(func(c *Zone) **Plan { return &c.Plan }, unmarshalPlan, nil),
			text:      (*liveZone).planText,
			view:      (*liveZone).planView,
		},
		{name: "settle", needsLimits: true, zoneValue: fieldValue(func(c *Zone) **Settle { return &c.Settle }, unmarshalSettle, nil)},
		{name: "shadow", shown: true, zoneValue: fieldValue(func(c *Zone) *bool { return &c.Shadow }, presence, nil)},
		{name: "notify", identifies: true, shown: true, needsLimits: true, zoneValue: zoneValue{
			value: func(c *Zone) any { return unlessZero(len(c.Notify)) },
			read:  (*Zone).unmarshalNotify,
			check: (*Zone).checkNotify,
		}, text: func(z *liveZone) string { return fmt.Sprint(z.Notify) }, view: (*liveZone).notifyView},
		{name: "enforce", shown: true, zoneValue: fieldValue(
			func(c *Zone) **float64 { return &c.Enforce }, percent,
			func(percent *float64) error { return checkEnforce(*percent) },
		)},
		{
			name: "ban", identifies: true, shown: true,
			zoneValue: fieldValue(func(c *Zone) **Ban { return &c.Ban }, unmarshalBan, nil),
			text:      func(z *liveZone) string { return z.config.Ban.describe() },
			view: func(z *liveZone) any {
				if z.config.Ban == nil {
					return nil
				}
				return z.config.Ban.describe()
			},
		},
		{name: "max_body", zoneValue: fieldValue(func(c *Zone) **MaxBody { return &c.MaxBody }, unmarshalMaxBody, checkMaxBody)},
		{name: "body_timeout", zoneValue: fieldValue(
			func(c *Zone) *caddy.Duration { return &c.BodyTimeout }, withExample(options.Duration, "5s"), checkBodyTimeout,
		)},
		{name: "status", zoneValue: fieldValue(func(c *Zone) *int { return &c.Status }, withExample(options.SmallInteger, "429"), checkStatus)},
		{name: "position", inMholt: true, zoneValue: zoneValue{ // a Caddyfile has no such option
			value: func(c *Zone) any { return unlessZero(c.Position) },
		}},
		{name: "events", field: "max_events", inMholt: true, zoneValue: fieldValue(
			func(c *Zone) *int64 { return &c.MaxEvents }, withExample(options.Integer, "10"), checkEvents,
		)},
		{name: "window", inMholt: true, zoneValue: fieldValue(
			func(c *Zone) *caddy.Duration { return &c.Window }, withExample(options.Duration, "1m"), checkWindow,
		)},
	}
}

// zoneOptions returns the names of the options of a zone, in the order in which errors list them.
func zoneOptions() (names []string) {
	for _, s := range zoneSettings() {
		if s.read != nil {
			names = append(names, s.name)
		}
	}
	return append(names, limitOptions...)
}

// unmarshalOption reads an option of the zone, or a limit.
func (c *Zone) unmarshalOption(d *caddyfile.Dispenser, option string) error {
	for _, s := range zoneSettings() {
		if s.name == option && s.read != nil {
			return s.read(c, d)
		}
	}
	l, err := unmarshalLimit(d, option)
	c.Limits = append(c.Limits, l)
	return err
}

// checkValues checks each setting by itself.
func (c *Zone) checkValues() error {
	var errs []error
	for _, s := range zoneSettings() {
		if s.check != nil && s.value(c) != nil {
			errs = append(errs, s.check(c))
		}
	}
	return errors.Join(errs...)
}

// mholtCompatible reports whether the zone has only settings that mholt's limiter has, too.
func (c *Zone) mholtCompatible() bool {
	for _, s := range zoneSettings() {
		if !s.inMholt && s.value(c) != nil {
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
	for _, s := range zoneSettings() {
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
	for _, s := range zoneSettings() {
		if !s.identifies {
			continue
		}
		if one, two := s.describe(z), s.describe(other); one != two {
			return disagreement{s.name, one, two}
		}
	}
	return disagreement{"store", z.Identity.Store, other.Identity.Store}
}

// describe returns the value of the setting for the comparison.
func (s *zoneSetting) describe(z *liveZone) string {
	if s.text != nil {
		return s.text(z)
	}
	if value := s.value(z.config); value != nil {
		return fmt.Sprint(value)
	}
	return "not set"
}

// show returns the value of the setting for the admin API, or nil to show nothing.
func (s *zoneSetting) show(z *liveZone) any {
	if s.view != nil {
		return s.view(z)
	}
	return s.value(z.config)
}

// shownSettings returns the settings that operators see.
func (z *liveZone) shownSettings() (shown []admin.Setting) {
	for _, s := range zoneSettings() {
		if !s.shown {
			continue
		}
		if value := s.show(z); value != nil {
			shown = append(shown, admin.Setting{Name: s.name, Value: value})
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
	if len(v) == 0 {
		return nil
	}
	return v
}
