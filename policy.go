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

// LimitSet holds the limits of some keys, or none.
type LimitSet struct {
	// Requests pass, and are charged to nothing of this zone.
	Unlimited bool `json:"unlimited,omitempty"`

	// The limits. Equal limits of a zone share their budgets.
	Limits []Limit `json:"limits,omitempty"`
}

// limitSet is a LimitSet, checked and compiled.
type limitSet struct {
	unlimited  bool
	configured string // the limits, before factor
	limits     []*algorithms.Limit
	shares     []*algorithms.Limit // of this instance while Redis fails; nil: the limits
	slots      *store.Slots        // without a name; nil: any number of requests may be in flight
	ban        *algorithms.Ban     // nil: no key is banned
	budgets    []budgets           // for each of the zone's keys
	labels     []string            // of the limits
	slotLabel  string
	policy     string // the items of RateLimit-Policy
}

// budgets holds what a request asks a store about, for one of the zone's alternative keys. Each
// alternative has budgets of its own, so that a client can't spend one budget through another.
type budgets struct {
	limits []store.Limit
	slots  *store.Slots
	ban    *store.Ban
}

// limitSetFor returns the limits for a key of a request, and the override that the store has for the
// key, as far as known. The override is nil if the store need not look one up.
func (z *zone) limitSetFor(key requestKey, repl *caddy.Replacer) (*limitSet, *store.Override) {
	if !z.looksUp(key) {
		return z.configuredLimitSet(key, repl), nil
	}
	known := z.knownOverrides.lookup(key.text)
	if known.limitSet != nil {
		return known.limitSet, known.Override
	}
	return z.configuredLimitSet(key, repl), known.Override
}

func (z *zone) configuredLimitSet(key requestKey, repl *caddy.Replacer) *limitSet {
	if t := z.overrides.lookup(key.text, key.network); t != nil {
		return t
	}
	if z.planSets != nil {
		value, _ := z.planBy.expand(repl)
		if t := z.planSets[value]; t != nil {
			return t
		}
	}
	return z.defaultSet
}

// eachLimitSet calls do for all limit sets of the configuration.
func (z *zone) eachLimitSet(do func(*limitSet)) {
	do(z.defaultSet)
	for _, set := range []map[string]*limitSet{z.overrides.all, z.planSets} {
		for _, t := range set {
			do(t)
		}
	}
}

// checkLimits judges the limits of all keys, and whether they go together with the other
// settings.
func (c *Zone) checkLimits() error {
	return new(zone).compilePolicy(c, sameFactor, storeErrorPolicy{num: 1, den: 1})
}

// compilePolicy checks and compiles the limits of all keys. factor divides the bursts.
func (z *zone) compilePolicy(c *Zone, factor int64, outage storeErrorPolicy) error {
	if err := c.checkPolicy(); err != nil {
		return err
	}
	standard := &LimitSet{Limits: c.allLimits()}
	if c.Plan != nil {
		z.planBy = newKeyTemplate(c.Plan.By)
		if c.Plan.Default != nil {
			standard = c.Plan.Default
		}
	}
	compile := standard.compile
	if c.Plan == nil && c.Concurrency > 0 {
		compile = standard.compileLimits // the zone may have concurrency alone
	}
	var err error
	if z.defaultSet, err = compile(c, factor, outage); err != nil {
		return err
	}
	all, err := compileLimitSets("override", c.Override, c, factor, outage)
	if err != nil {
		return err
	}
	z.overrides = newOverrides(all)
	if c.Plan == nil {
		return nil
	}
	z.planSets, err = compileLimitSets("plan", c.Plan.Values, c, factor, outage)
	return err
}

func compileLimitSets(
	option string, all map[string]*LimitSet, c *Zone, factor int64, outage storeErrorPolicy,
) (map[string]*limitSet, error) {
	made := make(map[string]*limitSet, len(all))
	for _, key := range slices.Sorted(maps.Keys(all)) {
		t, err := all[key].compile(c, factor, outage)
		if err != nil {
			return nil, fmt.Errorf("%s %q: %w", option, key, err)
		}
		made[key] = t
	}
	return made, nil
}

// compile returns the limits, checked and ready to be evaluated.
func (t *LimitSet) compile(c *Zone, factor int64, outage storeErrorPolicy) (*limitSet, error) {
	if t == nil || !t.Unlimited && len(t.Limits) == 0 {
		return nil, errors.New("it has no limit: write at least one, such as token_bucket 10 1s, or unlimited")
	}
	if t.Unlimited {
		if len(t.Limits) > 0 {
			return nil, errors.New("unlimited and limits don't go together: write one of the two")
		}
		return &limitSet{unlimited: true}, nil
	}
	return t.compileLimits(c, factor, outage)
}

// compileLimits is compile for limits, of which there may be none.
func (t *LimitSet) compileLimits(c *Zone, factor int64, outage storeErrorPolicy) (*limitSet, error) {
	limits, err := compileLimits(t.Limits)
	if err == nil {
		err = c.checkTogether(limits)
	}
	if err != nil {
		return nil, err
	}
	made := &limitSet{configured: fmt.Sprint(limits)}
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
	if c.Ban != nil {
		if made.ban, err = c.Ban.compile(made.limits); err != nil {
			return nil, err
		}
	}
	if c.Concurrency > 0 {
		made.slots = &store.Slots{Limit: c.Concurrency, Share: outage.slots(c.Concurrency)}
	}
	return made, nil
}

// nameBudgets fills in the names of the budgets, for each of the zone's alternative keys.
func (t *limitSet) nameBudgets(zone string, keys []keyTemplate) {
	t.budgets = nil
	for i := range keys {
		var b budgets
		for n, l := range t.limits {
			b.limits = append(b.limits, store.NewLimit(zone, keys[i].identity(), l))
			if t.shares != nil {
				b.limits[n].Share = t.shares[n]
			}
		}
		if t.slots != nil {
			b.slots = &store.Slots{ID: store.SlotsID(zone, variantOf(i)), Limit: t.slots.Limit, Share: t.slots.Share}
		}
		if t.ban != nil {
			b.ban = &store.Ban{Ban: t.ban, ID: store.BanID(zone, variantOf(i))}
		}
		t.budgets = append(t.budgets, b)
	}
	labels := limitLabels(zone, len(t.limits)+1)
	t.labels, t.slotLabel = labels[:len(t.limits)], labels[len(t.limits)]
	t.policy = t.policyField(t.budgets[0].limits)
}

// variantOf returns the variant of the slots and bans of one of the zone's alternative keys. The
// variant is the place of the key, so a change of the key's text frees no slot and ends no ban.
func variantOf(alternative int) string {
	if alternative == 0 {
		return ""
	}
	return fmt.Sprint(alternative + 1)
}

// describe returns the limits as configured, for the comparison of zones of one name.
func (t *limitSet) describe() string {
	if t.unlimited {
		return "unlimited"
	}
	return t.configured
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
	t := new(LimitSet)
	if d.NextArg() {
		if d.Val() != "unlimited" || d.NextArg() {
			return nil, fmt.Errorf("it takes unlimited, or limits in braces, not %q", d.Val())
		}
		t.Unlimited = true
		return t, nil
	}
	err := block(d, of, limitOptions, func(option string) error {
		l, err := unmarshalLimit(d, option)
		t.Limits = append(t.Limits, l)
		return err
	})
	if err == nil && len(t.Limits) == 0 {
		err = errors.New("it has no limit: write at least one, such as token_bucket 10 1s, or unlimited")
	}
	if err == nil {
		_, err = compileLimits(t.Limits)
	}
	return t, err
}
