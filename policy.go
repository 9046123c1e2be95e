package ratelimit

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// LimitSet holds the limits of some keys, or leaves these keys unlimited.
type LimitSet struct {
	// No limit in this zone. The zone's concurrency and ban still apply. This excludes limits
	// (default false).
	Unlimited bool `json:"unlimited,omitempty"`

	// The limits. Equal limits of a zone share their budgets (default: none, which needs
	// unlimited).
	Limits []Limit `json:"limits,omitempty"`
}

// limitSet is a [LimitSet], checked and compiled.
type limitSet struct {
	unlimited  bool
	limitsText string // the limits as configured, before factor divides their bursts
	limits     []*algorithms.Limit
	shares     []*algorithms.Limit // of this instance while Redis fails; nil: the limits themselves
	slots      *store.Slots        // without ID; nil: any number of requests may be in flight
	ban        *algorithms.Ban     // nil: no key is banned
	budgets    []budgets           // one for each of the zone's alternative keys

	// The names and items in header fields.
	labels      []string // one per limit
	slotLabel   string
	policyItems string // of RateLimit-Policy
}

// budgets holds the limits, slots and ban of a store request, for one of the zone's alternative
// keys. Each alternative has budgets of its own, so a client can't spend the budget of another
// alternative by choosing its text.
type budgets struct {
	limits []store.Limit
	slots  *store.Slots
	ban    *store.Ban
}

// limitSetFor returns the limits of a request's key, and the override that the store has for the
// key, as far as this instance knows. The override is nil if the store need not look one up.
func (z *zone) limitSetFor(key requestKey, repl *caddy.Replacer) (*limitSet, *store.Override) {
	if !z.mayHaveRuntimeOverride(key) {
		return z.configuredLimitSet(key, repl), nil
	}
	known := z.knownOverrides.lookup(z.shortKey(key.text))
	if known.limitSet != nil {
		return known.limitSet, known.Override
	}
	return z.configuredLimitSet(key, repl), known.Override
}

// configuredLimitSet returns the limits that the configuration has for a key: those of an
// override, else of the plan, else of the zone.
func (z *zone) configuredLimitSet(key requestKey, repl *caddy.Replacer) *limitSet {
	if set := z.overrides.lookup(key.text, key.network); set != nil {
		return set
	}
	if z.planSets != nil {
		value, _ := z.planBy.expand(repl)
		if set := z.planSets[value]; set != nil {
			return set
		}
	}
	return z.defaultSet
}

// policy holds the limits of all keys of a zone, as configured. It doesn't change after it is
// compiled, so all handlers of a shared zone can have the same.
type policy struct {
	defaultSet *limitSet // for keys without an override, and values that plan doesn't list
	overrides  overrides
	planBy     keyTemplate
	planSets   map[string]*limitSet // by the value of planBy
}

// eachLimitSet calls do for all limit sets of the configuration.
func (p *policy) eachLimitSet(do func(*limitSet)) {
	do(p.defaultSet)
	for _, sets := range []map[string]*limitSet{p.overrides.all, p.planSets} {
		for _, set := range sets {
			do(set)
		}
	}
}

// checkLimits checks the limits of all keys, and whether they go together with the other
// settings.
func (c *Zone) checkLimits() error {
	_, err := c.compilePolicy(unitFactor, storeErrorPolicy{num: 1, den: 1})
	return err
}

// compilePolicy checks and compiles the limits of all keys. factor divides the bursts; see
// [Zone.fixedFactor].
func (c *Zone) compilePolicy(factor int64, outage storeErrorPolicy) (*policy, error) {
	if err := c.checkPolicy(); err != nil {
		return nil, err
	}
	p, standard := new(policy), &LimitSet{Limits: c.allLimits()}
	if c.Plan != nil {
		p.planBy = newKeyTemplate(c.Plan.By)
		if c.Plan.Default != nil {
			standard = c.Plan.Default
		}
	}
	compile := standard.compile
	if c.Plan == nil && c.Concurrency > 0 {
		compile = standard.compileOptional // the zone may have concurrency alone
	}
	var err error
	if p.defaultSet, err = compile(c, factor, outage); err != nil {
		if c.Plan != nil && c.Plan.Default != nil {
			return nil, fmt.Errorf("default of plan: %w", err)
		}
		return nil, err
	}
	all, err := compileLimitSets("override", c.overrides(), c, factor, outage)
	if err != nil {
		return nil, err
	}
	p.overrides = newOverrides(all)
	if c.Plan == nil {
		return p, nil
	}
	p.planSets, err = compileLimitSets("plan", c.Plan.Values, c, factor, outage)
	return p, err
}

func compileLimitSets(
	option string, all map[string]*LimitSet, c *Zone, factor int64, outage storeErrorPolicy,
) (map[string]*limitSet, error) {
	made := make(map[string]*limitSet, len(all))
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
func (set *LimitSet) compile(c *Zone, factor int64, outage storeErrorPolicy) (*limitSet, error) {
	if set == nil || !set.Unlimited && len(set.Limits) == 0 {
		return nil, errNoLimit
	}
	if set.Unlimited {
		if len(set.Limits) > 0 {
			return nil, errors.New("unlimited and limits don't go together: write one of the two")
		}
		return c.compileUnlimited(outage)
	}
	return set.compileOptional(c, factor, outage)
}

// compileOptional is like compile, but the set may be empty.
func (set *LimitSet) compileOptional(c *Zone, factor int64, outage storeErrorPolicy) (*limitSet, error) {
	limits, err := compileLimits(set.Limits)
	if err == nil {
		err = c.checkCompatible(limits)
	}
	if err != nil {
		return nil, err
	}
	made := &limitSet{limitsText: fmt.Sprint(limits)}
	for _, l := range limits {
		if factor > 0 {
			l = l.Scaled(factor)
		}
		if c.Delay != nil {
			if err := l.CheckDelay(c.Delay.maxWait()); err != nil {
				return nil, fmt.Errorf("delay: %w", err)
			}
		}
		made.limits = append(made.limits, l)
		if outage.num < outage.den {
			part, err := l.Share(outage.num, outage.den)
			if err != nil {
				return nil, fmt.Errorf("the share of on_store_error: %w", err)
			}
			made.shares = append(made.shares, part)
		}
	}
	return made, made.addSlotsAndBan(c, made.limits, outage)
}

// compileUnlimited returns the set of keys without a limit. Slots and bans apply to them, too.
func (c *Zone) compileUnlimited(outage storeErrorPolicy) (*limitSet, error) {
	made := &limitSet{unlimited: true}
	return made, made.addSlotsAndBan(c, anyLimits, outage)
}

// addSlotsAndBan adds the slots of the zone, and its ban, whose window is the longest one of limits.
func (set *limitSet) addSlotsAndBan(c *Zone, limits []*algorithms.Limit, outage storeErrorPolicy) (err error) {
	if c.Concurrency > 0 {
		set.slots = &store.Slots{Limit: c.Concurrency, Share: outage.slotShare(c.Concurrency)}
	}
	if c.Ban != nil {
		set.ban, err = c.Ban.compile(limits)
	}
	return err
}

// nameBudgets fills in the names of the budgets, for each of the zone's alternative keys.
func (set *limitSet) nameBudgets(zone string, keys []keyTemplate) {
	set.budgets = nil
	for i := range keys {
		var b budgets
		for n, l := range set.limits {
			b.limits = append(b.limits, store.NewLimit(zone, keys[i].identity(), l))
			if set.shares != nil {
				b.limits[n].Share = set.shares[n]
			}
		}
		if set.slots != nil {
			b.slots = &store.Slots{ID: store.SlotsID(zone, variantOf(i)), Limit: set.slots.Limit, Share: set.slots.Share}
		}
		if set.ban != nil {
			b.ban = &store.Ban{Ban: set.ban, ID: store.BanID(zone, variantOf(i))}
		}
		set.budgets = append(set.budgets, b)
	}
	labels := limitLabels(zone, len(set.limits)+1)
	set.labels, set.slotLabel = labels[:len(set.limits)], labels[len(set.limits)]
	set.policyItems = set.formatPolicyItems(set.budgets[0].limits)
}

// variantOf returns the variant in the IDs of the slots and bans of one of the zone's alternative
// keys. The variant is the index of the key, so a change of the key's text frees no slot and ends
// no ban.
func variantOf(alternative int) string {
	if alternative == 0 {
		return ""
	}
	return fmt.Sprint(alternative + 1)
}

// describe returns the limits as configured, as text for the comparison of zones of one name.
func (set *limitSet) describe() string {
	if set.unlimited {
		return "unlimited"
	}
	return set.limitsText
}

func describeLimitSets(all map[string]*limitSet) string {
	var texts []string
	for _, key := range slices.Sorted(maps.Keys(all)) {
		texts = append(texts, fmt.Sprintf("%q %s", key, all[key].describe()))
	}
	return "[" + strings.Join(texts, ", ") + "]"
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
	err := readBlock(d, of, limitOptions, func(option string) error {
		l, err := unmarshalLimit(d, option)
		set.Limits = append(set.Limits, l)
		return err
	})
	if err == nil && len(set.Limits) == 0 {
		err = errNoLimit
	}
	if err == nil {
		_, err = compileLimits(set.Limits)
	}
	return set, err
}
