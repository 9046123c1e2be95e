package ratelimit

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/options"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/placeholder"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/shorthand"
)

func init() {
	httpcaddyfile.RegisterGlobalOption("rate_limit", parseGlobal)
	httpcaddyfile.RegisterHandlerDirective("rate_limit", parseDirective)
	httpcaddyfile.RegisterDirectiveOrder("rate_limit", httpcaddyfile.Before, "basic_auth")
}

func parseDirective(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	handler := new(Handler)
	if err := handler.UnmarshalCaddyfile(h.Dispenser); err != nil {
		return nil, err
	}
	h.Reset()
	h.Next() // the directive, whose line the error names
	app := adaptedApp(h)
	err := handler.checkSharedZones(slices.Sorted(maps.Keys(app.sharedZones)))
	if err == nil {
		// Named routes are read first. Caddy drops those that nothing invokes.
		err = handler.checkInCaddyfile(app, h.Option("named_routes") != nil)
	}
	if err != nil {
		return nil, options.WithPosition(h.Dispenser, err)
	}
	return handler, nil
}

// UnmarshalCaddyfile reads the directive. docs/caddyfile.md has its grammar.
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the directive
	h.Zones = d.RemainingArgs()
	if err := checkSharedZoneNames(h.Zones); err != nil {
		return options.WithPosition(d, err)
	}
	zone := options.Option{Name: "zone", Example: "api", Repeatable: true, Read: func(d *caddyfile.Dispenser) error {
		return unmarshalZone(d, &h.RateLimits, h.Zones)
	}}
	return readBlock(d, "rate_limit", append([]options.Option{zone}, h.blockOptions()...), nil)
}

// parseGlobal reads the global option, which holds shared zones, and defaults for all directives:
//
//	rate_limit {
//		zone <name> {
//			...                 # as in the directive
//		}
//		memory {
//			max_keys <number>
//		}
//		...                     # any other option of the directive
//	}
func parseGlobal(d *caddyfile.Dispenser, existing any) (any, error) {
	d.Next() // the option
	if existing != nil {
		return nil, d.Err("the global option rate_limit is given twice: write all zones and defaults in one")
	}
	app := new(App)
	zone := options.Option{Name: "zone", Example: "api", Repeatable: true, Read: func(d *caddyfile.Dispenser) error {
		return unmarshalZone(withShorthands(d), &app.RateLimits, nil)
	}}
	memory := options.Made("memory", "", &app.Memory, func(d *caddyfile.Dispenser) (*MemoryOptions, error) {
		m := new(MemoryOptions)
		return m, readBlock(d, "memory", m.blockOptions(), nil)
	}, nil)
	err := readBlock(d, "the global option rate_limit", append([]options.Option{zone, memory}, app.blockOptions()...), nil)
	return httpcaddyfile.App{Name: "rate_limit", Value: caddyconfig.JSON(app, nil)}, err
}

// blockOptions returns the options of the block memory.
func (m *MemoryOptions) blockOptions() []options.Option {
	return []options.Option{options.Single("max_keys", "1000000", &m.MaxKeys, options.Integer, options.Above0)}
}

// withShorthands returns the option at d, with its block, and with the full names of its
// placeholders. Caddy does this for sites, but not for global options.
func withShorthands(d *caddyfile.Dispenser) *caddyfile.Dispenser {
	option := d.NextSegment()
	shorthand.Apply(&option)
	d = caddyfile.NewDispenser(option)
	d.Next()
	return d
}

// unmarshalZone reads a zone into zones. Its errors begin with the zone's name. The zone can't have
// the name of a shared zone that the directive uses.
func unmarshalZone(d *caddyfile.Dispenser, zones *map[string]*Zone, shared []string) error {
	name, err := options.Value(d)
	if err == nil {
		err = checkZoneName(name)
	}
	if err != nil {
		return err
	}
	if _, there := (*zones)[name]; there {
		return fmt.Errorf("zone %q is given twice in one rate_limit: write its options together, or give one another name", name)
	}
	if slices.Contains(shared, name) {
		return ownAndSharedError(name)
	}
	if *zones == nil {
		*zones = make(map[string]*Zone)
	}
	z, at := new(Zone), options.Position(d)
	(*zones)[name] = z
	all := z.options()
	for i, o := range all {
		if o.Read != nil {
			all[i].Read = func(d *caddyfile.Dispenser) error {
				if err := o.Read(d); err != nil {
					return err
				}
				_, err := placeholder.Check(z.placeholderTexts())
				return err
			}
		}
	}
	err = readBlock(d, "a zone", all, func() error {
		if reflect.ValueOf(*z).IsZero() {
			return fmt.Errorf("it has no limit: write at least one, such as token_bucket 10 1s, "+
				"or, for a shared zone of this name, rate_limit %s without the line zone", name)
		}
		return z.checkLimits()
	})
	if err != nil {
		return inZone(name, err)
	}
	z.position = at
	return nil
}

// readLimits returns the options that add a limit.
func readLimits(limits *[]Limit) (all []options.Option) {
	for _, name := range limitOptions {
		read := func(d *caddyfile.Dispenser) error {
			l, err := unmarshalLimit(d, name)
			*limits = append(*limits, l)
			return err
		}
		all = append(all, options.Option{Name: name, Example: algorithms.ExampleOf(name), Repeatable: true, Read: read})
	}
	return all
}

// unmarshalLimit reads a limit: <algorithm> <events> <window> [<burst>] { <options> }. A calendar has a period
// instead of the window, and can have a time zone.
func unmarshalLimit(d *caddyfile.Dispenser, name string) (l Limit, err error) {
	if name == "legacy" {
		return unmarshalLegacy(d)
	}
	algorithm, err := algorithms.Lookup(name)
	if err != nil {
		return l, err
	}
	if l, err = parseLimit(algorithm, d.RemainingArgs()); err != nil {
		return l, err
	}
	err = readBlock(d, name, l.options(algorithm), func() error {
		if _, err := l.compile(); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
	return l, err
}

// parseLimit parses the values of a limit. The error for values that can't be read has those that were probably meant.
func parseLimit(algorithm *algorithms.Algorithm, args []string) (l Limit, err error) {
	form, maxValues := "events and window", 2
	switch {
	case algorithm.Calendar:
		form, maxValues = "events, a period and optionally a time zone", 3
	case algorithm.Burst:
		form, maxValues = "events, window and optionally a burst", 3
	}
	l.Algorithm = algorithm.Name
	text := strings.Join(args, " ")
	if len(args) >= 2 && len(args) <= maxValues {
		var err2, err3 error
		l.Events, err = options.Integer(args[0])
		if algorithm.Calendar {
			l.Period, l.TimeZone = args[1], strings.Join(args[2:], "")
		} else {
			l.Window, err2 = options.Duration(args[1])
			if len(args) == 3 {
				l.Burst, err3 = options.Integer(args[2])
				err3 = cmp.Or(err3, options.Above0(l.Burst))
			}
		}
		if err == nil && err2 == nil && err3 == nil {
			return l, nil
		}
	}
	events, window, burst := options.MeantLimit(text)
	instead := fmt.Sprintf("%s %s %s", l.Algorithm, events, window)
	switch {
	case events == "" || algorithm.Calendar:
		instead = "for example " + l.Algorithm + " " + algorithms.ExampleOf(l.Algorithm)
	case algorithm.Burst && burst != "" && burst != "0":
		instead += " " + burst
	case window == "30d":
		instead += fmt.Sprintf(", or calendar %s month", events)
	}
	return l, fmt.Errorf("%s takes %s, not %q: write %s", l.Algorithm, form, text, instead)
}

// unmarshalLegacy reads legacy <max> <duration> [<min_interval>], the limit of an older limiter. It
// returns the leaky_bucket that stands for this limit.
func unmarshalLegacy(d *caddyfile.Dispenser) (l Limit, err error) {
	args := d.RemainingArgs()
	wrong := fmt.Errorf("legacy takes max, duration and optionally min_interval, not %q: write for example legacy 10 5s 1s",
		strings.Join(args, " "))
	if len(args) < 2 || len(args) > 3 {
		return l, wrong
	}
	calls, err := options.Integer(args[0])
	duration, err2 := options.Duration(args[1])
	interval, err3 := options.Duration(append(args, "0")[2])
	if err != nil || err2 != nil || err3 != nil {
		return l, wrong
	}
	q, err := algorithms.Legacy(calls, time.Duration(duration).Microseconds(), time.Duration(interval).Microseconds())
	if err != nil {
		return l, fmt.Errorf("legacy: %w", err)
	}
	return Limit{
		Algorithm: q.Algorithm, Events: q.Events, Window: caddy.Duration(time.Duration(q.Window) * time.Microsecond), Burst: q.Burst,
	}, nil
}
