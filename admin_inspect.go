package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"slices"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// inspectKey returns the state of a key. It charges nothing.
func (a *adminRequest) inspectKey() (any, error) {
	v := &adminapi.Key{Zone: a.zones[0].name, Key: url.PathEscape(a.key), Budgets: []adminapi.Budgets{}}
	seen := make(map[zoneIdentity]bool)
	for _, z := range a.zones {
		if seen[z.identity] {
			continue
		}
		seen[z.identity] = true
		err := z.inspectKey(a.ctx, a.key, v)
		if isForeign(err) {
			return nil, adminError(http.StatusServiceUnavailable,
				"the store of zone %q holds a value for the key that is no budget (%w): reset the key, or remove its override", z.name, err)
		}
		if err != nil {
			return nil, adminError(http.StatusServiceUnavailable,
				"the store of zone %q fails (%w): ask again when it works", z.name, err)
		}
	}
	return v, nil
}

// inspectKey adds the state of a key in one zone.
func (z *zone) inspectKey(ctx context.Context, key string, v *adminapi.Key) error {
	override := z.knownOverrides.lookup(z.shortKey(key)).Text
	for range maxAttempts {
		err := z.inspectKeyIn(ctx, z.handler.authoritativeStore(), key, override, v)
		if err == nil {
			return nil
		}
		var overridden *store.OverriddenError
		ok := errors.As(err, &overridden)
		if !ok {
			return z.inspectLocalKey(ctx, key, v, err)
		}
		override = overridden.Overrides[0]
	}
	return errors.New("the override keeps changing")
}

// inspectLocalKey adds the local budgets of a key, which decide requests while the store fails. If
// the zone has no local budgets, it returns the failure of the store.
func (z *zone) inspectLocalKey(ctx context.Context, key string, v *adminapi.Key, failure error) error {
	failover, ok := z.handler.store.(*store.Failover)
	if !ok || isForeign(failure) || ctx.Err() != nil {
		return failure
	}
	v.Store = "local"
	return z.inspectKeyIn(ctx, failover.Local(), key, z.knownOverrides.lookup(z.shortKey(key)).Text, v)
}

// inspectKeyIn adds the state of a key in a store. The run-time override is the one that the
// store is expected to have; otherwise the error is an [store.OverriddenError].
func (z *zone) inspectKeyIn(ctx context.Context, s store.Store, key, override string, v *adminapi.Key) error {
	overrideInForce, sets := z.limitSetsInForce(key, override)
	v.Override = overrideInForce
	requests, alternatives := z.peekRequests(key, override, sets)
	if len(requests) == 0 {
		return nil
	}
	_, err := s.Take(ctx, requests)
	if err == nil {
		z.addBudgets(v, requests, alternatives, sets)
	}
	return err
}

// isForeign reports whether an error is about a key at which another program stored a value.
func isForeign(err error) bool {
	var failed *store.Error
	ok := errors.As(err, &failed)
	return ok && failed.Reason == store.ReasonKey
}

// lookUpStoredOverride returns the override of a key in the store; "" if there is none.
func (z *zone) lookUpStoredOverride(ctx context.Context, key string) (string, error) {
	if !z.runtimeOverrides {
		return "", nil
	}
	request := store.Request{Zone: z.name, Key: z.shortKey(key), Shadow: true, Override: noOverride}
	_, err := z.handler.authoritativeStore().Take(ctx, []store.Request{request})
	var overridden *store.OverriddenError
	if errors.As(err, &overridden) {
		return overridden.Overrides[0], nil
	}
	return "", err
}

// namedLimitSet is a limit set with the value of the plan that has it; nil if no plan has it.
type namedLimitSet struct {
	plan *string
	*limitSet
}

// limitSetsWithoutOverride returns the limit sets of keys without an override: the zone's
// default, and those of its plan.
func (z *zone) limitSetsWithoutOverride() []namedLimitSet {
	sets := []namedLimitSet{{nil, z.defaultSet}}
	for _, value := range slices.Sorted(maps.Keys(z.planSets)) {
		sets = append(sets, namedLimitSet{&value, z.planSets[value]})
	}
	return sets
}

// limitSetsInForce returns the override of a key, and the limit sets that the key can have, for
// each of the zone's alternatives. runtime is the text of the run-time override; "" for none.
// An override of an address applies only to alternatives that are address placeholders.
func (z *zone) limitSetsInForce(key, runtime string) (v *adminapi.Override, sets [][]namedLimitSet) {
	network, isNetwork := parseNetwork(key)
	v, override := z.overrideInForce(key, network, runtime)
	for i := range z.keys {
		if override != nil && z.keys[i].acceptsOverride(isNetwork) {
			sets = append(sets, []namedLimitSet{{nil, override}})
		} else {
			sets = append(sets, z.limitSetsWithoutOverride())
		}
	}
	return v, sets
}

// overrideInForce returns the override of a key, and its limits. They are nil if there is no override.
// network is valid if the key comes from an address. runtime is as of limitSetsInForce.
func (z *zone) overrideInForce(key string, network netip.Prefix, runtime string) (v *adminapi.Override, override *limitSet) {
	if override = z.overrides.lookup(key, network); override != nil {
		v = &adminapi.Override{From: "config", Limits: override.limitTexts()}
	}
	if runtime == "" {
		return v, override
	}
	v, stored := z.viewStoredOverride(runtime)
	return v, cmp.Or(stored, override)
}

// viewStoredOverride returns a run-time override as operators see it, and its limits. They are nil if
// the override can't be read; then it has no effect.
func (z *zone) viewStoredOverride(text string) (*adminapi.Override, *limitSet) {
	set, err := z.compileStoredOverride(text)
	if err != nil {
		return &adminapi.Override{From: "runtime", Limits: []string{}, Error: err.Error()}, nil
	}
	o, _ := parseStoredOverride(text) // compileStoredOverride has parsed it
	return &adminapi.Override{From: "runtime", Limits: set.limitTexts(), Until: o.Until}, set
}

// distinctLimits returns the limits of all these sets for one alternative, each limit once.
func distinctLimits(sets []namedLimitSet, alternative int) (limits []store.Limit) {
	for _, set := range sets {
		if set.limitSet == nil {
			continue
		}
		for _, l := range set.budgets[alternative].limits {
			if !slices.ContainsFunc(limits, func(other store.Limit) bool { return other.ID == l.ID }) {
				limits = append(limits, l)
			}
		}
	}
	return limits
}

// peekRequests returns requests that charge nothing, and the alternative of each. For each
// alternative there is one request about its limits, slots, ban and override, if it has any.
// The requests are shadows, so no cache of denials keeps them from the store.
func (z *zone) peekRequests(key, override string, sets [][]namedLimitSet) (requests []store.Request, alternatives []int) {
	isAddress := isNetwork(key)
	looksUp := z.runtimeOverrides && slices.ContainsFunc(z.keys, func(t keyTemplate) bool { return t.acceptsOverride(isAddress) })
	for i := range z.keys {
		r := store.Request{Zone: z.name, Key: z.shortKey(key), Limits: distinctLimits(sets[i], i), Peek: true, Shadow: true}
		if n := z.config.Concurrency; n > 0 {
			r.Slots = &store.Slots{ID: store.SlotsID(z.name, variantOf(i)), Limit: n, Share: z.handler.storeErrorPolicy.slotShare(n)}
		}
		if bans := z.bansFor(sets[i]); bans != nil {
			r.Ban = bans[i]
		}
		if looksUp && i == 0 {
			r.Override = &store.Override{Text: override}
		}
		if len(r.Limits) > 0 || r.Slots != nil || r.Ban != nil || r.Override != nil {
			alternatives = append(alternatives, i)
			requests = append(requests, r)
		}
	}
	return requests, alternatives
}

// anyLimits are limits for a ban whose limits are unknown and don't matter.
var anyLimits = []*algorithms.Limit{{Quota: algorithms.Quota{Window: 1}}}

// bansFor returns the bans of a key with these limits, one for each alternative; nil if the zone
// has no ban.
func (z *zone) bansFor(sets []namedLimitSet) (bans []*store.Ban) {
	if z.config.Ban == nil {
		return nil
	}
	limits := anyLimits
	for _, set := range sets {
		limits = append(limits, set.limits...)
	}
	ban, _ := z.config.Ban.compile(limits) // checked when the zone was provisioned
	for i := range z.keys {
		bans = append(bans, &store.Ban{Ban: ban, ID: store.BanID(z.name, variantOf(i))})
	}
	return bans
}

// addBudgets adds the budgets that the requests of peekRequests found.
func (z *zone) addBudgets(v *adminapi.Key, requests []store.Request, alternatives []int, sets [][]namedLimitSet) {
	for n, r := range requests {
		i := alternatives[n]
		decisions := make(map[string]algorithms.Decision) // by the ID of the limit
		for j, l := range r.Limits {
			decisions[l.ID] = r.Outcome.Decisions[j]
		}
		b := adminapi.Budgets{Limits: []adminapi.Limit{}}
		if len(z.keys) > 1 {
			b.Alternative = i + 1
		}
		for _, set := range sets[i] {
			for _, l := range distinctLimits([]namedLimitSet{set}, i) {
				b.Limits = append(b.Limits, newLimitView(set.plan, l, decisions[l.ID], v.Store == "local"))
			}
		}
		if r.Slots != nil {
			b.Concurrency = &adminapi.Concurrency{Limit: r.Slots.Limit, InUse: r.Outcome.Slots.InFlight}
			if v.Store == "local" {
				b.Concurrency.Limit = r.Slots.Share
			}
		}
		if r.Ban != nil {
			b.Ban = &adminapi.Ban{Banned: r.Outcome.Ban.Stands, Ends: fractionalSeconds(r.Outcome.Ban.EndsAfter)}
		}
		v.Budgets = append(v.Budgets, b)
	}
}

// newLimitView returns the view of a limit with this decision. With local it shows the share of
// the limit that the local budgets grant.
func newLimitView(plan *string, l store.Limit, d algorithms.Decision, local bool) adminapi.Limit {
	granted := l.Limit
	if local && l.Share != nil {
		granted = l.Share
	}
	v := adminapi.Limit{
		Plan: plan, Limit: granted.String(), Remaining: min(d.Remaining, granted.Burst), ResetAfter: fractionalSeconds(d.ResetAfter),
	}
	if d.Remaining > 0 {
		d.MoreAfter = 0
	}
	if d.MoreAfter < algorithms.Forever {
		after := fractionalSeconds(d.MoreAfter)
		v.RetryAfter = &after
	}
	return v
}
