package ratelimit

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/options"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/timezones"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Limit is an algorithm with its quota.
type Limit struct {
	// The algorithm: calendar, fixed_window, gcra, leaky_bucket, sliding_log,
	// sliding_window, smooth or token_bucket.
	Algorithm string `json:"algorithm,omitempty"`

	// How many events one window allows: a number above 0. For a sliding_log without buckets the
	// maximum is 200000.
	Events int64 `json:"events,omitempty"`

	// The time in which the limit allows that many events: a duration such as "1m", at least 1µs. A calendar has a
	// period instead.
	Window caddy.Duration `json:"window,omitempty"`

	// How many events can be taken at once: a number above 0. The algorithms gcra, leaky_bucket,
	// token_bucket, and smooth without warm_up have a burst. A smooth limit allows one more
	// (default: events).
	Burst int64 `json:"burst,omitempty" algorithm:"token_bucket" zero:"as many as events"`

	// The least time between two charged requests of a sliding_log, at any cost; at least 1µs
	// (default: none).
	MinInterval caddy.Duration `json:"min_interval,omitempty" algorithm:"sliding_log"`

	// The number of parts into which a sliding_log divides a window, 1 to 2000. The log then
	// remembers one number for each part instead of every event. An event counts up to one part
	// longer (default: every event is remembered).
	Buckets int64 `json:"buckets,omitempty" algorithm:"sliding_log"`

	// How many events a new budget holds, 0 to burst, for token_bucket and smooth without
	// warm_up (default: burst).
	Initial *int64 `json:"initial,omitempty" algorithm:"token_bucket"`

	// How long a smooth limit takes from cold to its full rate; at least 1µs. The limit is cold
	// at first, and after it was idle for that time (default: it is never cold).
	WarmUp caddy.Duration `json:"warm_up,omitempty" algorithm:"smooth"`

	// The cost of an event when a smooth limit with warm_up is cold. It is a multiple of the
	// usual cost: 1 to 1000, with up to three decimals (default 3).
	ColdFactor float64 `json:"cold_factor,omitempty" algorithm:"smooth" zero:"3"`

	// The beginning of the windows of a fixed_window. With "first", a window begins with the
	// first charged event. With "clock", windows begin at multiples of window since the Unix
	// epoch, UTC (default "first").
	Align string `json:"align,omitempty" algorithm:"fixed_window"`

	// The period of a calendar: "day", "week", "month" or "year".
	Period string `json:"period,omitempty" algorithm:"calendar"`

	// The time zone in which the periods of a calendar begin: a name in the time zone database, such
	// as "Europe/Berlin" (default: UTC).
	TimeZone string `json:"time_zone,omitempty" algorithm:"calendar" zero:"UTC"`

	// The day on which the months or weeks of a calendar begin: 1 to 28, or "monday" to "sunday" (default: 1 and
	// "monday").
	StartDay Number `json:"start_day,omitempty" algorithm:"calendar" zero:"1, or monday"`

	compiled *algorithms.Limit // the result of compile; nil before
}

// options returns the options in the block of a limit.
func (l *Limit) options(algorithm *algorithms.Algorithm) []options.Option {
	all := []options.Option{
		options.Single("min_interval", "", &l.MinInterval, options.Duration, options.AtLeast(time.Microsecond)),
		options.Single("buckets", "", &l.Buckets, options.Integer, options.Above0),
		options.Single("initial", "", &l.Initial, options.Pointer(options.Integer), nil),
		options.Single("warm_up", "", &l.WarmUp, options.Duration, options.AtLeast(time.Microsecond)),
		options.Single("cold_factor", "", &l.ColdFactor, options.Number, options.Above0),
		options.Single("align", "", &l.Align, options.Text, nil),
		options.Single("start_day", "", &l.StartDay, parseNumber, nil),
	}
	all = slices.DeleteFunc(all, func(o options.Option) bool { return !algorithm.Takes(o.Name) })
	for i := range all {
		all[i].Example = algorithm.Option(all[i].Name).Example
	}
	return all
}

// compileLimits compiles limits. Two equal limits are an error.
func compileLimits(configured []Limit) (limits []*algorithms.Limit, err error) {
	for i := range configured {
		limit, err := configured[i].compile()
		if err != nil {
			return nil, fmt.Errorf("limit %d (%s): %w", i+1, configured[i].Algorithm, err)
		}
		for j, other := range limits {
			if other.String() == limit.String() {
				return nil, fmt.Errorf("limits %d and %d are the same, %v: remove one", j+1, i+1, limit)
			}
		}
		limits = append(limits, limit)
	}
	return limits, nil
}

// compile checks the limit, and returns it ready to be evaluated. Later calls return the same
// result.
func (l *Limit) compile() (*algorithms.Limit, error) {
	if l.compiled != nil {
		return l.compiled, nil
	}
	var err error
	micros := func(option string, d caddy.Duration) algorithms.Micros {
		if span := time.Duration(d); span%time.Microsecond != 0 && err == nil {
			err = fmt.Errorf("%s must be a whole number of microseconds, not %v: write for example %v",
				option, span, span.Truncate(time.Microsecond)+time.Microsecond)
		}
		return time.Duration(d).Microseconds()
	}
	cold := math.Round(l.ColdFactor * 1000)
	if !(math.Abs(cold-l.ColdFactor*1000) <= 1e-6 && math.Abs(cold) <= 1e9) || cold == 0 && l.ColdFactor != 0 {
		err = fmt.Errorf("cold_factor must be from 1 to 1000, with up to three decimals, not %v: write for example 3 or 2.5", l.ColdFactor)
	}
	if l.TimeZone != "" && err == nil {
		err = timezones.Check(l.TimeZone)
	}
	startDay := int64(0)
	if l.StartDay != "" && err == nil {
		startDay, err = algorithms.ParseStartDay(string(l.StartDay))
	}
	quota := algorithms.Quota{
		Algorithm: l.Algorithm, Events: l.Events, Window: micros("window", l.Window), Burst: l.Burst,
		Align: l.Align, MinInterval: micros("min_interval", l.MinInterval), Buckets: l.Buckets, Initial: l.Initial,
		WarmUp: micros("warm_up", l.WarmUp), ColdFactor: int64(cold),
		Period: l.Period, TimeZone: l.TimeZone, StartDay: startDay,
	}
	if err != nil {
		return nil, err
	}
	l.compiled, err = algorithms.NewLimit(quota)
	return l.compiled, err
}

// checkEvents checks max_events without its window.
func checkEvents(events int64) error {
	_, err := (&Limit{Algorithm: "sliding_log", Events: min(events, algorithms.MaxLogged), Window: caddy.Duration(time.Second)}).compile()
	return err
}

// checkWindow checks the window of max_events without the events.
func checkWindow(window caddy.Duration) error {
	_, err := (&Limit{Algorithm: "sliding_log", Events: 1, Window: window}).compile()
	return err
}

// LimitSet holds the limits of some keys, or leaves these keys unlimited.
type LimitSet struct {
	// No limit in this zone. The zone's concurrency and ban still apply. This excludes limits
	// (default false).
	Unlimited bool `json:"unlimited,omitempty"`

	// The limits. Equal limits of a zone share their budgets (default: none, which needs
	// unlimited).
	Limits []Limit `json:"limits,omitempty"`
}

// checkLimits checks the limits of all keys, and whether they go together with the other
// settings.
func (c *Zone) checkLimits() error {
	_, err := c.compileSets(limiter.UnitFactor, limiter.StoreErrorPolicy{Num: 1, Den: 1})
	return err
}

// compileSets checks and compiles the limits of all keys. factor divides the bursts; see
// [Zone.fixedFactor].
func (c *Zone) compileSets(factor int64, outage limiter.StoreErrorPolicy) (*limiter.LimitSets, error) {
	if err := c.checkLimitSets(); err != nil {
		return nil, err
	}
	if err := c.checkSettleMax(); err != nil {
		return nil, err
	}
	sets, standard := new(limiter.LimitSets), &LimitSet{Limits: c.allLimits()}
	if c.Plan != nil {
		sets.PlanBy = keys.NewTemplate(c.Plan.By)
		if c.Plan.Default != nil {
			standard = c.Plan.Default
		}
	}
	compile := standard.compile
	if c.Plan == nil && (c.Concurrency > 0 || c.Hold != nil) {
		compile = standard.compileOptional // the zone may have concurrency alone
	}
	var err error
	if sets.DefaultSet, err = compile(c, factor, outage); err != nil {
		if c.Plan != nil && c.Plan.Default != nil {
			return nil, fmt.Errorf("default of plan: %w", err)
		}
		return nil, err
	}
	all, err := compileValues("override", c.overrides(), c, factor, outage)
	if err != nil {
		return nil, err
	}
	sets.Overrides = limiter.NewOverrides(all)
	if c.Plan != nil {
		if sets.PlanSets, err = compileValues("plan", c.Plan.Values, c, factor, outage); err != nil {
			return nil, err
		}
	}
	if len(c.Notify) > 0 && !slices.ContainsFunc(sets.Sets(), func(set limiter.NamedSet) bool { return set.HasCalendar() }) {
		return nil, errors.New("notify needs a calendar, because only its periods have a count: write for example calendar 100000 month")
	}
	return sets, nil
}

func compileValues(
	option string, all map[string]*LimitSet, c *Zone, factor int64, outage limiter.StoreErrorPolicy,
) (map[string]*limiter.LimitSet, error) {
	made := make(map[string]*limiter.LimitSet, len(all))
	for _, key := range slices.Sorted(maps.Keys(all)) {
		set, err := all[key].compile(c, factor, outage)
		if err != nil {
			return nil, fmt.Errorf("%s %q: %w", option, key, err)
		}
		made[key] = set
	}
	return made, nil
}

// errNoLimit is the error for a limit set that is empty.
var errNoLimit = errors.New("it has no limit: write at least one, such as token_bucket 10 1s, or unlimited")

// compile checks the set, and returns it ready to be evaluated. The set must have a limit, or be
// unlimited.
func (set *LimitSet) compile(c *Zone, factor int64, outage limiter.StoreErrorPolicy) (*limiter.LimitSet, error) {
	if set == nil || !set.Unlimited && len(set.Limits) == 0 {
		return nil, errNoLimit
	}
	if set.Unlimited {
		if len(set.Limits) > 0 {
			return nil, errors.New("unlimited and limits don't go together: write one of the two")
		}
		made := &limiter.LimitSet{Unlimited: true}
		return made, c.addSlotsAndBan(made, anyLimits, outage) // which apply to these keys, too
	}
	return set.compileOptional(c, factor, outage)
}

// compileOptional is like compile, but the set may be empty.
func (set *LimitSet) compileOptional(c *Zone, factor int64, outage limiter.StoreErrorPolicy) (*limiter.LimitSet, error) {
	limits, err := compileLimits(set.Limits)
	if err == nil {
		err = c.checkCompatible(limits)
	}
	if err != nil {
		return nil, err
	}
	made := new(limiter.LimitSet)
	for _, l := range limits {
		if factor > 0 {
			l = l.Scaled(factor)
		}
		if c.Delay != nil {
			if err := l.CheckDelay(c.Delay.maxWait()); err != nil {
				return nil, fmt.Errorf("delay: %w", err)
			}
		}
		made.Limits = append(made.Limits, l)
		if outage.Num < outage.Den {
			part, err := l.Share(outage.Num, outage.Den)
			if err != nil {
				return nil, fmt.Errorf("the share of on_store_error: %w", err)
			}
			made.Shares = append(made.Shares, part)
		}
	}
	return made, c.addSlotsAndBan(made, made.Limits, outage)
}

// addSlotsAndBan adds the slots of the zone, and its ban, whose window is the longest one of limits.
func (c *Zone) addSlotsAndBan(set *limiter.LimitSet, limits []*algorithms.Limit, outage limiter.StoreErrorPolicy) (err error) {
	if c.Concurrency > 0 {
		set.Slots = &store.Slots{Limit: c.Concurrency, Share: outage.SlotShare(c.Concurrency)}
	}
	set.Ban, err = c.compileBan(limits)
	return err
}

// unmarshalLimitSet reads unlimited, or a block of limits.
func unmarshalLimitSet(d *caddyfile.Dispenser, of string) (*LimitSet, error) {
	set := new(LimitSet)
	if d.NextArg() {
		if d.Val() != "unlimited" || d.NextArg() {
			return nil, fmt.Errorf("it takes unlimited, or limits in braces, not %q", d.Val())
		}
		if d.NextBlock(d.Nesting()) {
			return nil, errors.New("unlimited and limits don't go together: write unlimited, or limits in braces")
		}
		set.Unlimited = true
		return set, nil
	}
	err := readBlock(d, of, readLimits(&set.Limits), func() error {
		if len(set.Limits) == 0 {
			return errNoLimit
		}
		_, err := compileLimits(set.Limits)
		return err
	})
	return set, err
}

// anyLimits are limits for a ban whose limits are unknown and don't matter.
var anyLimits = []*algorithms.Limit{{Quota: algorithms.Quota{Window: 1}}}

// One script call decides a request, even if the request belongs to several zones. So the work of
// the limits of all zones of a handler together has a bound: see [algorithms.MaxWork]. The bound
// also holds in memory, so that a configuration that is valid for one store is valid for the other.

// lighten is the advice for limits that take too long.
const lighten = "write sliding_window, which only counts, or sliding_log with fewer events or buckets, or fewer limits; " +
	"or divide the zones among several rate_limit handlers, because each handler has its own call"

// work returns the maximum work of a request with these limits.
func (z *liveZone) work(set *limiter.LimitSet) (work int64) {
	cost := z.MaxChargedCost()
	for _, l := range set.Limits {
		work += l.WorstWork(cost)
	}
	hasOverride := z.RuntimeOverrides && len(set.Limits) == 0 // a limit's work includes an override
	return work + algorithms.ExtraWork(z.Settle != nil, set.Ban != nil, set.Slots != nil, hasOverride)
}

// boundWork sets maxWork of the zones, or returns an error if they are too much work for one
// request. It divides the rest of the bound among the zones with runtime_overrides.
func boundWork(zones []*liveZone) error {
	all, overridable := int64(0), int64(0)
	for _, z := range zones {
		z.maxWork = 0
		for _, set := range z.Sets() {
			z.maxWork = max(z.maxWork, z.work(set.LimitSet))
		}
		if all += z.maxWork; z.RuntimeOverrides {
			overridable++
		}
	}
	if all > algorithms.MaxWork {
		return errors.New("the limits of all zones together take too long to decide in one call: " + lighten)
	}
	for _, z := range zones {
		if z.RuntimeOverrides {
			z.maxWork += (algorithms.MaxWork - all) / overridable
		}
	}
	return nil
}

// checkWork returns an error if a runtime override is too much work.
func (z *liveZone) checkWork(set *limiter.LimitSet) error {
	if z.work(set) > z.maxWork {
		return errors.New("its limits and those of the other zones take too long to decide in one call: " + lighten)
	}
	return nil
}
