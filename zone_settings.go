package ratelimit

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// zoneSetting is a setting of a zone. Reading a Caddyfile, checks of single values, the
// comparison of zones of one name, and the admin API follow the list of [zoneSettings].
type zoneSetting struct {
	name  string // of the option in a Caddyfile, and of the field in JSON
	field string // of the field in JSON, if it has another name
	zoneValue

	identifies bool // zones of one name must have the same value
	shown      bool // the admin API shows the value
	ofMholt    bool // mholt's limiter has the setting, too
	ofLimits   bool // the setting means nothing in a zone without limits
	repeats    bool // the option may stand more than once

	// text returns the value for the comparison; nil stands for the configured value.
	text func(*zone) string
	// view returns the value for the admin API, or nil to show nothing; a nil view stands for
	// the configured value.
	view func(*zone) any
}

// zoneValue is the value of a setting.
type zoneValue struct {
	// value returns the configured value, or nil if the setting isn't set.
	value func(*Zone) any
	// read reads the option; nil if there is none.
	read func(*Zone, *caddyfile.Dispenser) error
	// check judges the value by itself; nil accepts every value.
	check func(*Zone) error
}

// plain returns the value in a field, which isn't set if it is zero.
func plain[T comparable](field func(*Zone) *T, read func(*caddyfile.Dispenser) (T, error), check func(T) error) zoneValue {
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

// as returns a reader of values like an example.
func as[T any](read func(*caddyfile.Dispenser, string) (T, error), example string) func(*caddyfile.Dispenser) (T, error) {
	return func(d *caddyfile.Dispenser) (T, error) { return read(d, example) }
}

// present reads an option without a value.
func present(d *caddyfile.Dispenser) (bool, error) { return true, noValue(d) }

// percent reads the value of enforce.
func percent(d *caddyfile.Dispenser) (*float64, error) {
	n, err := fraction(d, "25")
	return &n, err
}

// zoneSettings returns all settings of a zone, in the order in which errors list the options.
func zoneSettings() []zoneSetting {
	return []zoneSetting{
		{name: "match", ofMholt: true, repeats: true, zoneValue: zoneValue{
			value: func(c *Zone) any { return unlessZero(len(c.MatcherSetsRaw)) },
			read:  (*Zone).unmarshalMatch,
		}},
		{
			name: "key", ofMholt: true, identifies: true, shown: true,
			zoneValue: zoneValue{
				value: func(c *Zone) any { return unlessZero(len(c.Key)) },
				read:  (*Zone).unmarshalKey,
				check: func(c *Zone) error { return c.Key.check() },
			},
			text: func(z *zone) string { return fmt.Sprintf("%q", z.config.keys()) },
			view: func(z *zone) any { return z.config.keys() },
		},
		{name: "ipv4_prefix", ofMholt: true, identifies: true, shown: true, zoneValue: plain(
			func(c *Zone) *int { return &c.IPv4Prefix }, as(smallInteger, "24"),
			func(bits int) error { return checkPrefix("ipv4_prefix", bits, 32) },
		)},
		{name: "ipv6_prefix", ofMholt: true, identifies: true, shown: true, zoneValue: plain(
			func(c *Zone) *int { return &c.IPv6Prefix }, as(smallInteger, "64"),
			func(bits int) error { return checkPrefix("ipv6_prefix", bits, 128) },
		)},
		{
			name: "limits", identifies: true, shown: true, // a Caddyfile has options for each algorithm
			zoneValue: zoneValue{value: func(c *Zone) any { return unlessZero(len(c.Limits)) }},
			text:      func(z *zone) string { return z.defaultSet.describe() },
			view:      func(z *zone) any { return z.defaultSet.limitTexts() },
		},
		{name: "cost", ofLimits: true, zoneValue: plain(
			func(c *Zone) *Number { return &c.Cost },
			func(d *caddyfile.Dispenser) (Number, error) { return number(d, parseCost) },
			func(n Number) error { return n.check("cost", parseCost) },
		)},
		{
			name: "mode", identifies: true, shown: true, ofLimits: true,
			zoneValue: plain(func(c *Zone) *string { return &c.Mode }, as(value, "nary"), checkMode),
			text:      func(z *zone) string { return z.mode.String() },
			view:      func(z *zone) any { return z.mode.String() },
		},
		{
			name: "factor", identifies: true, shown: true, ofLimits: true,
			zoneValue: plain(
				func(c *Zone) *Number { return &c.Factor },
				func(d *caddyfile.Dispenser) (Number, error) { return number(d, parseFactor) },
				func(n Number) error { return n.check("factor", parseFactor) },
			),
			text: func(z *zone) string {
				if z.factor.varies() {
					return string(z.factor)
				}
				return fmt.Sprint(float64(z.config.fixedFactor()) / sameFactor)
			},
			view: func(z *zone) any { return unlessZero(string(z.config.Factor)) },
		},
		{name: "concurrency", identifies: true, shown: true, zoneValue: plain(
			func(c *Zone) *int64 { return &c.Concurrency }, as(integer, "10"), checkConcurrency,
		)},
		{name: "delay", ofLimits: true, zoneValue: plain(func(c *Zone) **Delay { return &c.Delay }, unmarshalDelay, nil)},
		{
			name: "override", identifies: true, shown: true, repeats: true,
			zoneValue: zoneValue{
				value: func(c *Zone) any { return unlessZero(len(c.Override)) },
				read:  (*Zone).unmarshalOverride,
			},
			text: func(z *zone) string { return describeLimitSets(z.overrides.all) },
			view: (*zone).overridesView,
		},
		{name: "runtime_overrides", identifies: true, shown: true, zoneValue: plain(
			func(c *Zone) *bool { return &c.RuntimeOverrides }, present, nil,
		)},
		{
			name: "plan", identifies: true, shown: true,
			zoneValue: plain(func(c *Zone) **Plan { return &c.Plan }, unmarshalPlan, nil),
			text:      (*zone).planText,
			view:      (*zone).planView,
		},
		{name: "settle", ofLimits: true, zoneValue: plain(func(c *Zone) **Settle { return &c.Settle }, unmarshalSettle, nil)},
		{name: "shadow", shown: true, zoneValue: plain(func(c *Zone) *bool { return &c.Shadow }, present, nil)},
		{name: "enforce", shown: true, zoneValue: plain(
			func(c *Zone) **float64 { return &c.Enforce }, percent,
			func(percent *float64) error { return checkEnforce(*percent) },
		)},
		{
			name: "ban", identifies: true, shown: true,
			zoneValue: plain(func(c *Zone) **Ban { return &c.Ban }, unmarshalBan, nil),
			text:      func(z *zone) string { return z.config.Ban.describe() },
			view: func(z *zone) any {
				if z.config.Ban == nil {
					return nil
				}
				return z.config.Ban.describe()
			},
		},
		{name: "status", zoneValue: plain(func(c *Zone) *int { return &c.Status }, as(smallInteger, "429"), checkStatus)},
		{name: "events", field: "max_events", ofMholt: true, zoneValue: plain(
			func(c *Zone) *int64 { return &c.MaxEvents }, as(integer, "10"), checkEvents,
		)},
		{name: "window", ofMholt: true, zoneValue: plain(
			func(c *Zone) *caddy.Duration { return &c.Window }, as(duration, "1m"), checkWindow,
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

// mayRepeat reports whether an option may stand more than once in a block.
func mayRepeat(option string) bool {
	return option == "zone" || slices.Contains(limitOptions, option) ||
		slices.ContainsFunc(zoneSettings(), func(s zoneSetting) bool { return s.repeats && s.name == option })
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

// checkValues judges each setting by itself.
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
		if !s.ofMholt && s.value(c) != nil {
			return false
		}
	}
	return c.MaxEvents > 0 && len(c.keys()) == 1
}

// identity is what zones of one name must agree on, as text.
type identity struct{ settings, store string }

// identify returns the identity of a zone that is kept in a store.
func (z *zone) identify(store string) identity {
	var settings []string
	for _, s := range zoneSettings() {
		if s.identifies {
			settings = append(settings, s.describe(z))
		}
	}
	return identity{strings.Join(settings, "\n"), store}
}

// difference returns the first setting on which two zones of one name disagree, and its values.
func (z *zone) difference(other *zone) (name, one, two string) {
	for _, s := range zoneSettings() {
		if one, two := s.describe(z), s.describe(other); s.identifies && one != two {
			return s.name, one, two
		}
	}
	return "store", z.identity.store, other.identity.store
}

// describe returns the value of the setting for the comparison.
func (s *zoneSetting) describe(z *zone) string {
	if s.text != nil {
		return s.text(z)
	}
	if value := s.value(z.config); value != nil {
		return fmt.Sprint(value)
	}
	return "not set"
}

// show returns the value of the setting for the admin API, or nil to show nothing.
func (s *zoneSetting) show(z *zone) any {
	if s.view != nil {
		return s.view(z)
	}
	return s.value(z.config)
}
