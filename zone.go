package ratelimit

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// Zone is a named rule: which requests, whose budget, how much.
type Zone struct {
	// Which requests belong to the zone: those any of these matcher sets
	// matches (default: all).
	MatcherSetsRaw caddyhttp.RawMatcherSets `json:"match,omitempty" caddy:"namespace=http.matchers"`

	// Whose budget a request is charged to: text with placeholders, such as
	// {http.vars.client_ip}, by their full names. A placeholder that nothing provides is an
	// error, or a warning where a plugin may provide it. Of several values the first counts
	// in which no placeholder is empty, or else the last. An address from an address
	// placeholder is written in one way, 198.51.100.1 for ::ffff:198.51.100.1 (default "":
	// one budget for all).
	Key Key `json:"key,omitempty"`

	// How many bits of a key that is an IPv4 address count, 1 to 32, so that a
	// network shares one budget (default 0: the address counts as it is).
	IPv4Prefix int `json:"ipv4_prefix,omitempty"`

	// How many bits of a key that is an IPv6 address count, 1 to 128; 56 or 64
	// is what one customer usually has (default 0: the address counts as it is).
	IPv6Prefix int `json:"ipv6_prefix,omitempty"`

	// How many events pass in any window: with Window, short for a first limit
	// with the algorithm sliding_log.
	MaxEvents int64 `json:"max_events,omitempty"`

	// The window of MaxEvents.
	Window caddy.Duration `json:"window,omitempty"`

	// The limits. A request passes when all have room for it.
	Limits []Limit `json:"limits,omitempty"`

	// How many events a request is worth: a number from 0, or text with
	// placeholders. Fractions are rounded up, and more than 2147483647 counts
	// as that. If a placeholder gives no number, or a negative one, the request
	// costs 1 (default 1).
	Cost Number `json:"cost,omitempty"`

	// What the zone grants at the edge of its limits: "binary", all of the cost or
	// nothing; "nary", as much of the cost as there is room for; "uniform", as
	// binary, but refused requests are charged, too; or "force", everything,
	// charging as much as there is room for (default binary).
	Mode string `json:"mode,omitempty"`

	// What the bursts of the limits are divided by, rounding up to at least 1: a
	// number above 0, or 0, which lets the request pass uncharged; or text with
	// placeholders. If a placeholder gives no such number, the factor is 1
	// (default 1). It needs limits with a burst.
	Factor Number `json:"factor,omitempty"`

	// How many requests of a key may be in flight at the same time, 1 to 10000000; a request
	// is until its response has ended. Further ones are refused (default: any number).
	Concurrency int64 `json:"concurrency,omitempty"`

	// Hold requests back until there is room for them, instead of refusing them.
	// It needs mode binary, and limits of the algorithms fixed_window, gcra,
	// leaky_bucket, smooth or token_bucket (default: requests are never held).
	Delay *Delay `json:"delay,omitempty"`

	// Other limits for some keys, by key. An override of an address or a network, such as
	// 203.0.113.0/24, is for all addresses in it that come from an address placeholder:
	// {http.vars.client_ip}, {http.request.remote.host} or {http.request.remote.host/24,64}.
	// Of several networks the smallest counts (default: none).
	Override map[string]*LimitSet `json:"override,omitempty"`

	// Look in the store, too, whether a key has an override that was set at run time, over
	// the admin API; it goes before all others (default false).
	RuntimeOverrides bool `json:"runtime_overrides,omitempty"`

	// Limits by a value, such as a customer's plan; an override goes before it (default:
	// none).
	Plan *Plan `json:"plan,omitempty"`

	// Correct what a request was charged once its response is known. It needs mode binary
	// (default: the charge stays).
	Settle *Settle `json:"settle,omitempty"`

	// Decide, charge, count and log requests, but never refuse nor hold one, and tell
	// clients nothing of the zone: to see what it would do (default false).
	Shadow bool `json:"shadow,omitempty"`

	// The share of keys that are refused anything, in percent, 0 to 100; all others
	// are as with Shadow. A key is among them or not in all instances and after
	// restarts alike, and stays when the share grows (default 100).
	Enforce *float64 `json:"enforce,omitempty"`

	// Refuse everything of a key for a while that the limits keep refusing (default:
	// nobody is banned).
	Ban *Ban `json:"ban,omitempty"`

	// The status of refused requests, 400 to 599 (default 429).
	Status int `json:"status,omitempty"`
}

// zone is a Zone made ready: request handling only reads it.
type zone struct {
	name       string
	matchers   caddyhttp.MatcherSets
	keys       []keyTemplate
	defaultSet *limitSet // what a key gets
	overrides  overrides // for keys that get something else
	// overridable tells that there are overrides in the store, too. known are those known of,
	// and ready makes others ready.
	overridable     bool
	knownOverrides  knownOverrides
	compileOverride func(*LimitSet) (*limitSet, error)
	planBy          keyTemplate
	planSets        map[string]*limitSet // by what planBy gives
	mode            algorithms.Mode
	cost            Number
	oneCost         int64  // what every request costs, if it is the same for all
	factor          Number // if it isn't the same for all
	unlimited       bool
	delay           *delayPolicy // nil: requests are never held
	maxWork         int64        // the most work of its terms; see [boundWork]
	settle          *Settle      // nil: charges stay
	enforce         float64      // the share of keys, in percent
	status          int

	metrics    zoneMetrics
	deniedKeys *deniedKeys // of all zones of this name

	handler         *Handler
	config          *Zone
	identity        identity
	mholtCompatible bool // uses only the fields other limiters have too

	keyWarnings
	warnedOfCost   atomic.Bool
	warnedOfFactor atomic.Bool
	logger         *zap.Logger
}

// provision makes the zone ready. Its errors don't repeat the zone's name.
func (c *Zone) provision(ctx caddy.Context, name string, h *Handler) (*zone, error) {
	if c == nil {
		return nil, errors.New("it is null: write an object with key and limits")
	}
	if err := c.check(name); err != nil {
		return nil, err
	}
	if err := c.checkLimits(); err != nil {
		return nil, err
	}
	if err := c.checkPlaceholders(name, h.app.configNames(ctx), h.logger); err != nil {
		return nil, err
	}
	mode, _ := algorithms.ParseMode(c.Mode) // checked above
	z := &zone{
		name: name, mode: mode, cost: c.Cost, oneCost: 1, status: cmp.Or(c.Status, http.StatusTooManyRequests), settle: c.Settle,
		enforce: 100, metrics: zoneMetrics{zone: name, disabled: h.DisableMetrics}, logger: h.logger,
		handler: h, config: c, deniedKeys: newDeniedKeys(),
	}
	if c.Shadow {
		z.enforce = 0
	} else if c.Enforce != nil {
		z.enforce = *c.Enforce
	}
	if c.MatcherSetsRaw != nil {
		matchers, err := ctx.LoadModule(c, "MatcherSetsRaw")
		if err != nil {
			return nil, fmt.Errorf("match: %w", err)
		}
		if err := z.matchers.FromInterface(matchers); err != nil {
			return nil, fmt.Errorf("match: %w", err)
		}
	}
	if c.Cost != "" && !c.Cost.varies() {
		z.oneCost, _ = parseCost(string(c.Cost)) // checked above
	}
	keys := c.keys()
	z.identity = identity{key: fmt.Sprintf("%q", keys), prefixes: fmt.Sprintf("[ipv4 %d ipv6 %d]", c.IPv4Prefix, c.IPv6Prefix), limits: (&LimitSet{Limits: c.allLimits()}).describe(), override: describeLimitSets(c.Override), overrides: fmt.Sprint(c.RuntimeOverrides), plan: c.Plan.describe(), concurrency: fmt.Sprint(c.Concurrency), mode: mode.String(), ban: c.Ban.describe()}
	z.mholtCompatible = c.MaxEvents > 0 && len(c.Limits) == 0 && len(keys) == 1 && c.Cost == "" && c.Status == 0 && c.Mode == "" && c.Factor == "" && c.Concurrency == 0 && c.Delay == nil && c.Override == nil && !c.RuntimeOverrides && c.Plan == nil && c.Settle == nil && c.Ban == nil && !c.Shadow && c.Enforce == nil
	z.keys = c.keyTemplates()
	if c.Delay != nil {
		oneKey := !slices.ContainsFunc(z.keys, func(k keyTemplate) bool { return !k.plain })
		z.delay = &delayPolicy{zone: name, maxWait: c.Delay.maxWait(), maxHeld: cmp.Or(c.Delay.Held, defaultHeld), singleKey: oneKey}
	}
	z.prepareWarnings(c)
	factor := int64(sameFactor)
	if c.Factor.varies() {
		z.factor = c.Factor
	} else if c.Factor != "" {
		factor, _ = parseFactor(string(c.Factor)) // checked above
	}
	z.identity.factor = cmp.Or(string(z.factor), fmt.Sprint(float64(factor)/sameFactor))
	z.unlimited = factor == 0
	if err := z.compilePolicy(c, factor, h.storeErrorPolicy); err != nil {
		return nil, err
	}
	z.eachLimitSet(func(t *limitSet) {
		if !t.unlimited {
			t.nameBudgets(z.name, z.keys)
		}
	})
	z.overridable = c.RuntimeOverrides
	z.compileOverride = func(t *LimitSet) (*limitSet, error) {
		made, err := t.compile(c, factor, h.storeErrorPolicy)
		if err == nil {
			err = z.checkWork(made)
		}
		if err == nil && !made.unlimited {
			made.nameBudgets(z.name, z.keys)
		}
		return made, err
	}
	return z, nil
}

// check judges the zone's settings except its limits.
func (c *Zone) check(name string) error {
	var enforce, concurrency error
	if c.Enforce != nil {
		enforce = checkEnforce(*c.Enforce)
	}
	if c.Concurrency != 0 {
		concurrency = checkConcurrency(c.Concurrency)
	}
	return errors.Join(
		enforce,
		concurrency,
		checkZoneName(name),
		checkMode(c.Mode),
		checkPrefix("ipv4_prefix", c.IPv4Prefix, 32),
		checkPrefix("ipv6_prefix", c.IPv6Prefix, 128),
		checkStatus(cmp.Or(c.Status, http.StatusTooManyRequests)),
		c.Key.check(),
		c.Cost.check("cost", parseCost),
		c.Factor.check("factor", parseFactor),
	)
}

func checkZoneName(name string) error {
	ok := len(name) >= 1 && len(name) <= 64
	for _, c := range []byte(name) {
		ok = ok && c >= ' ' && c <= '~' && !strings.ContainsRune(`{}"\/`, rune(c))
	}
	if !ok {
		return fmt.Errorf(`%.100q is no name for a zone: write 1 to 64 printable ASCII characters without { } " \ /`, name)
	}
	return nil
}

func checkMode(mode string) error {
	_, err := algorithms.ParseMode(mode)
	return err
}

func checkPrefix(option string, bits, most int) error {
	if bits < 0 || bits > most {
		return fmt.Errorf("%s must be from 1 to %d, not %d, or 0 for none", option, most, bits)
	}
	return nil
}

func checkStatus(status int) error {
	if status < 400 || status > 599 {
		return fmt.Errorf("status must be from 400 to 599, not %d: write for example 429, the default", status)
	}
	return nil
}

// allLimits are the zone's limits; max_events and window are the first.
func (c *Zone) allLimits() []Limit {
	if c.MaxEvents == 0 && c.Window == 0 {
		return c.Limits
	}
	first := Limit{Algorithm: "sliding_log", Events: c.MaxEvents, Window: c.Window}
	return append([]Limit{first}, c.Limits...)
}

// checkLimits judges the zone's limits, its overrides and its plan.
func (c *Zone) checkLimits() error {
	if (c.MaxEvents == 0) != (c.Window == 0) {
		return fmt.Errorf("max_events (events in a Caddyfile) and window go together, not %d and %v: write both, or a limit such as sliding_log 10 1m", c.MaxEvents, time.Duration(c.Window))
	}
	if c.Ban != nil { // also where nothing is limited
		if _, err := c.Ban.compile(anyLimits); err != nil {
			return err
		}
	}
	configured := c.allLimits()
	if c.Plan != nil {
		if err := c.Plan.check(len(configured) > 0); err != nil {
			return err
		}
	} else if len(configured) == 0 && c.Concurrency == 0 {
		return errors.New("it has no limit: write at least one, such as token_bucket 10 1s")
	} else if len(configured) == 0 {
		if err := c.checkConcurrencyOnly(); err != nil {
			return err
		}
	}
	if err := c.checkOverrideKeys(); err != nil {
		return err
	}
	return new(zone).compilePolicy(c, sameFactor, storeErrorPolicy{num: 1, den: 1})
}

// checkTogether judges which of the zone's settings go together.
func (c *Zone) checkTogether(limits []*algorithms.Limit) error {
	mode, err := algorithms.ParseMode(c.Mode)
	if err != nil {
		return err
	}
	for _, l := range limits {
		if l.Algorithm().BinaryOnly && mode != algorithms.Binary {
			return fmt.Errorf("%s and mode %v don't go together: it serves any cost, on account of the next request, so there is no part to grant and no debt to make; leave out mode, or write another limit", l.Algorithm().Name, mode)
		}
		if c.Factor.varies() && l.Initial != nil {
			return fmt.Errorf("a factor that differs between requests and initial don't go together: what a budget lacks at first depends on its burst; leave out one of the two")
		}
		if c.Factor != "" && !l.Scalable() {
			return fmt.Errorf("factor and %v don't go together: factor divides the burst, and it has none; write a limit with a burst, such as token_bucket", l)
		}
	}
	if c.Settle != nil {
		if err := c.Settle.check(mode, limits); err != nil {
			return err
		}
	}
	if c.Shadow && c.Enforce != nil {
		return fmt.Errorf("shadow and enforce %v don't go together: shadow refuses nobody anything; leave out one of the two", *c.Enforce)
	}
	if c.Delay != nil {
		return c.Delay.check(mode, limits)
	}
	return nil
}

// identity is what zones of one name must agree on.
type identity struct{ key, prefixes, limits, override, overrides, plan, concurrency, mode, factor, ban, store string }

// difference names the first setting that differs, and its two values.
func (i identity) difference(other identity) (what, one, two string) {
	for _, s := range [][3]string{
		{"key", i.key, other.key},
		{"prefixes", i.prefixes, other.prefixes},
		{"limits", i.limits, other.limits},
		{"override", i.override, other.override},
		{"runtime_overrides", i.overrides, other.overrides},
		{"plan", i.plan, other.plan},
		{"concurrency", i.concurrency, other.concurrency},
		{"mode", i.mode, other.mode},
		{"factor", i.factor, other.factor},
		{"ban", i.ban, other.ban},
		{"store", i.store, other.store},
	} {
		if s[1] != s[2] {
			return s[0], s[1], s[2]
		}
	}
	return "", "", ""
}

// matches tells whether a request belongs to the zone.
func (z *zone) matches(r *http.Request) (bool, error) {
	if z.unlimited {
		return false, nil
	}
	if len(z.matchers) == 0 {
		return true, nil
	}
	return z.matchers.AnyMatchWithError(r)
}

// costOf returns what a request is worth, in events.
func (z *zone) costOf(repl *caddy.Replacer) int64 {
	if z.cost.varies() {
		return z.cost.evaluate(repl, "cost", parseCost, z, &z.warnedOfCost)
	}
	return z.oneCost
}

// factorOf returns what the bursts are divided by for a request, in millionths.
func (z *zone) factorOf(repl *caddy.Replacer) int64 {
	if z.factor.varies() {
		return z.factor.evaluate(repl, "factor", parseFactor, z, &z.warnedOfFactor)
	}
	return sameFactor
}
