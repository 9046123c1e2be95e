package ratelimit

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

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

// zoneValue is the value of a setting of one zone.
type zoneValue struct {
	value any                              // as configured; nil if the setting isn't set
	read  func(*caddyfile.Dispenser) error // the option; nil if there is none
	check func() error                     // of the value by itself; nil accepts every value
}

// fieldValue returns the value of a setting that is one field of a [Zone]. The setting isn't set if
// the field is zero, or an empty list.
func fieldValue[T any](field *T, read func(*caddyfile.Dispenser) (T, error), check func(T) error) zoneValue {
	v := zoneValue{value: unlessZero(*field), read: fieldOption("", field, read, check).read}
	if check != nil {
		v.check = func() error { return check(*field) }
	}
	return v
}

// unlessZero returns nil for a value that is zero, or an empty list or map.
func unlessZero(v any) any {
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Slice, reflect.Map:
		if r.Len() == 0 {
			return nil
		}
	default:
		if r.IsZero() {
			return nil
		}
	}
	return v
}

// zoneSettings returns all settings of a zone, in the order in which errors list the options.
func zoneSettings() []zoneSetting { return new(Zone).settings() }

// settings returns the settings of the zone, with their present values.
func (c *Zone) settings() []zoneSetting {
	return []zoneSetting{
		{name: "match", inMholt: true, repeatable: true, zoneValue: zoneValue{unlessZero(c.MatcherSetsRaw), c.unmarshalMatch, nil}},
		{name: "exempt", repeatable: true, zoneValue: zoneValue{unlessZero(c.ExemptRaw), c.unmarshalExempt, c.checkExempt}},
		{
			name: "key", inMholt: true, identifies: true, shown: true,
			zoneValue: fieldValue(&c.Key, readKey, func(k Key) error { return k.check(true) }),
			text:      func(z *liveZone) string { return fmt.Sprintf("%q", z.config.keys()) },
			view:      func(z *liveZone) any { return z.config.keys() },
		},
		{name: "ipv4_prefix", inMholt: true, identifies: true, shown: true, zoneValue: fieldValue(
			&c.IPv4Prefix, withExample(options.SmallInteger, "24"),
			func(bits int) error { return checkPrefix("ipv4_prefix", bits, 32) },
		)},
		{name: "ipv6_prefix", inMholt: true, identifies: true, shown: true, zoneValue: fieldValue(
			&c.IPv6Prefix, withExample(options.SmallInteger, "64"),
			func(bits int) error { return checkPrefix("ipv6_prefix", bits, 128) },
		)},
		{name: "key_case", identifies: true, shown: true, zoneValue: fieldValue(&c.KeyCase, withExample(options.Value, "lower"), checkKeyCase)},
		{
			name: "limits", identifies: true, shown: true, // a Caddyfile has options for each algorithm
			zoneValue: zoneValue{value: unlessZero(c.Limits)},
			text:      func(z *liveZone) string { return z.DefaultSet.Describe() },
			view:      func(z *liveZone) any { return z.DefaultSet.LimitTexts() },
		},
		{name: "cost", needsLimits: true, zoneValue: fieldValue(
			&c.Cost,
			func(d *caddyfile.Dispenser) (Number, error) { return readCost(d, costSum) }, nil, // compile checks it
		)},
		{
			name: "mode", identifies: true, shown: true, needsLimits: true,
			zoneValue: fieldValue(&c.Mode, withExample(options.Value, "nary"), checkMode),
			text:      func(z *liveZone) string { return z.Mode.String() },
			view:      func(z *liveZone) any { return z.Mode.String() },
		},
		{
			name: "factor", identifies: true, shown: true, needsLimits: true,
			zoneValue: fieldValue(&c.Factor, readFactor, checkFactor),
			text: func(z *liveZone) string {
				if z.Factor != "" {
					return z.Factor
				}
				return fmt.Sprint(float64(z.config.fixedFactor()) / limiter.UnitFactor)
			},
			view: func(z *liveZone) any { return unlessZero(string(z.config.Factor)) },
		},
		{name: "concurrency", identifies: true, shown: true, zoneValue: fieldValue(
			&c.Concurrency, withExample(options.Integer, "10"), checkConcurrency,
		)},
		{name: "delay", zoneValue: fieldValue(&c.Delay, unmarshalDelay, nil)},
		{
			name: "override", identifies: true, shown: true, repeatable: true,
			zoneValue: zoneValue{unlessZero(c.Override), c.unmarshalOverride, nil},
			text:      func(z *liveZone) string { return describeLimitSets(z.Overrides.All) },
			view:      (*liveZone).overridesView,
		},
		{name: "runtime_overrides", identifies: true, shown: true, zoneValue: fieldValue(&c.RuntimeOverrides, presence, nil)},
		{
			name: "plan", identifies: true, shown: true,
			zoneValue: fieldValue(&c.Plan, unmarshalPlan, nil),
			text:      (*liveZone).planText,
			view:      (*liveZone).planView,
		},
		{name: "settle", needsLimits: true, zoneValue: fieldValue(&c.Settle, unmarshalSettle, nil)},
		{name: "shadow", shown: true, zoneValue: fieldValue(&c.Shadow, presence, nil)},
		{
			name: "notify", identifies: true, shown: true, needsLimits: true,
			zoneValue: fieldValue(&c.Notify, readNotify, checkNotify),
			text:      func(z *liveZone) string { return fmt.Sprint(z.Notify) },
		},
		{name: "enforce", shown: true, zoneValue: fieldValue(&c.Enforce, pointer(withExample(options.Fraction, "25")), checkEnforce)},
		{
			name: "ban", identifies: true, shown: true,
			zoneValue: fieldValue(&c.Ban, unmarshalBan, nil),
			text:      func(z *liveZone) string { return z.config.Ban.describe() },
			view: func(z *liveZone) any {
				if z.config.Ban == nil {
					return nil
				}
				return z.config.Ban.describe()
			},
		},
		{name: "max_body", zoneValue: fieldValue(&c.MaxBody, unmarshalMaxBody, checkMaxBody)},
		{name: "body_timeout", zoneValue: fieldValue(&c.BodyTimeout, withExample(options.Duration, "5s"), checkBodyTimeout)},
		{name: "status", zoneValue: fieldValue(&c.Status, withExample(options.SmallInteger, "429"), checkStatus)},
		{name: "events", field: "max_events", inMholt: true, zoneValue: fieldValue(
			&c.MaxEvents, withExample(options.Integer, "10"), checkEvents,
		)},
		{name: "window", inMholt: true, zoneValue: fieldValue(&c.Window, withExample(options.Duration, "1m"), checkWindow)},
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
	for _, s := range c.settings() {
		if s.name == option && s.read != nil {
			return s.read(d)
		}
	}
	l, err := unmarshalLimit(d, option)
	c.Limits = append(c.Limits, l)
	return err
}

// checkValues checks each setting by itself.
func (c *Zone) checkValues() error {
	var errs []error
	for _, s := range c.settings() {
		if s.check != nil && s.value != nil {
			errs = append(errs, s.check())
		}
	}
	return errors.Join(errs...)
}

// mholtCompatible reports whether the zone has only settings that mholt's limiter has, too.
func (c *Zone) mholtCompatible() bool {
	for _, s := range c.settings() {
		if !s.inMholt && s.value != nil {
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
	if s.value != nil {
		return fmt.Sprint(s.value)
	}
	return "not set"
}

// shownSettings returns the settings that operators see.
func (z *liveZone) shownSettings() (shown options.Object) {
	for _, s := range z.config.settings() {
		value := s.value
		if s.view != nil {
			value = s.view(z)
		}
		if s.shown && value != nil {
			shown = append(shown, options.Field{Name: s.name, Value: value})
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
	return unlessZero(v)
}
