package ratelimit

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// inspectKey looks at a key, and charges nothing.
func (a *adminRequest) inspectKey() (any, error) {
	v := &keyView{Zone: a.zones[0].name, Key: url.PathEscape(a.key), Budgets: []budgetsView{}}
	seen := make(map[identity]bool)
	for _, z := range a.zones {
		if seen[z.identity] {
			continue
		}
		seen[z.identity] = true
		err := z.inspect(a.ctx, a.key, v)
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

// inspectKey adds what there is of a key in one zone.
func (z *zone) inspect(ctx context.Context, key string, v *keyView) error {
	text := z.knownOverrides.lookup(key).Text
	for range maxTries {
		var inForce [][]namedLimitSet
		v.Override, inForce = z.limitSetsInForce(key, text)
		requests, alternatives := z.peekRequests(key, text, inForce)
		if len(requests) == 0 {
			return nil
		}
		_, err := z.handler.authoritativeStore().Take(ctx, requests)
		if err == nil {
			z.addBudgets(v, requests, alternatives, inForce)
			return nil
		}
		others, is := errors.AsType[*store.OverriddenError](err)
		if !is {
			return z.inspectLocally(ctx, key, v, err)
		}
		text = others.Overrides[0] // that there is by now
	}
	return errors.New("the override keeps changing")
}

// inspectLocally adds the local budgets of a key, which decide requests while the store fails.
// If the zone has no local budgets, it returns the failure.
func (z *zone) inspectLocally(ctx context.Context, key string, v *keyView, failure error) error {
	failover, ok := z.handler.store.(*store.Failover)
	if !ok || isForeign(failure) || ctx.Err() != nil {
		return failure
	}
	v.Store = "local"
	text := z.knownOverrides.lookup(key).Text
	var inForce [][]namedLimitSet
	v.Override, inForce = z.limitSetsInForce(key, text)
	requests, alternatives := z.peekRequests(key, text, inForce)
	_, err := failover.Local().Take(ctx, requests)
	if err == nil {
		z.addBudgets(v, requests, alternatives, inForce)
	}
	return err
}

// isForeign reports whether an error is about a key at which another program stored a value.
func isForeign(err error) bool {
	failed, is := errors.AsType[*store.Error](err)
	return is && failed.Reason == store.ReasonKey
}

// storedOverride is the override of a key in the store, empty for none.
func (z *zone) storedOverride(ctx context.Context, key string) (string, error) {
	if !z.overridable {
		return "", nil
	}
	_, err := z.handler.authoritativeStore().Take(ctx, []store.Request{{Zone: z.name, Key: key, Shadow: true, Override: noOverride}})
	if others, is := errors.AsType[*store.OverriddenError](err); is {
		return others.Overrides[0], nil
	}
	return "", err
}

// namedLimitSet are terms, and the value of a plan that they are for; nil for none.
type namedLimitSet struct {
	plan *string
	*limitSet
}

// limitSetsWithoutOverride are the terms of the zone for keys without an override.
func (z *zone) limitSetsWithoutOverride() []namedLimitSet {
	all := []namedLimitSet{{nil, z.defaultSet}}
	for _, value := range slices.Sorted(maps.Keys(z.planSets)) {
		all = append(all, namedLimitSet{&value, z.planSets[value]})
	}
	return all
}

// limitSetsInForce returns the terms that a key may have under each of the zone's keys, with this
// override in the store. An override of an address applies only under an address placeholder.
func (z *zone) limitSetsInForce(key, text string) (v *overrideView, all [][]namedLimitSet) {
	network, isNetwork := parseNetwork(key)
	t := z.overrides.lookup(key, network)
	if t != nil {
		v = &overrideView{From: "config", Limits: t.limitTexts()}
	}
	if text != "" {
		stored, err := z.readOverride(text)
		if err != nil {
			v = &overrideView{From: "runtime", Limits: []string{}, Error: err.Error()}
		} else {
			o, _ := parseOverride(text)
			t, v = stored, &overrideView{From: "runtime", Limits: stored.limitTexts(), Until: o.Until}
		}
	}
	for i := range z.keys {
		if t != nil && z.keys[i].overridable(isNetwork) {
			all = append(all, []namedLimitSet{{nil, t}})
		} else {
			all = append(all, z.limitSetsWithoutOverride())
		}
	}
	return v, all
}

// limitsOf are the limits of all these terms, for one of the zone's keys, each once.
func limitsOf(all []namedLimitSet, alternative int) (limits []store.Limit) {
	for _, t := range all {
		if t.limitSet == nil || t.unlimited {
			continue
		}
		for _, l := range t.budgets[alternative].limits {
			if !slices.ContainsFunc(limits, func(other store.Limit) bool { return other.ID == l.ID }) {
				limits = append(limits, l)
			}
		}
	}
	return limits
}

// peekRequests are requests that charge nothing: for each of the zone's keys one, about these
// terms, slots, and the ban, unless there is nothing to ask. As shadows they reach the store
// even if it has just denied the key.
func (z *zone) peekRequests(key, override string, all [][]namedLimitSet) (requests []store.Request, alternatives []int) {
	looksUp := z.overridable && slices.ContainsFunc(z.keys, func(t keyTemplate) bool { return t.overridable(looksLikeAddress(key)) })
	for i := range z.keys {
		r := store.Request{Zone: z.name, Key: key, Limits: limitsOf(all[i], i), Peek: true, Shadow: true}
		if n := z.config.Concurrency; n > 0 {
			r.Slots = &store.Slots{ID: store.SlotsID(z.name, variantOf(i)), Limit: n, Share: z.handler.storeErrorPolicy.slots(n)}
		}
		if bans := z.bansOf(all[i]); bans != nil {
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

// anyLimits stand for limits where those of a ban are not known, and don't matter.
var anyLimits = []*algorithms.Limit{{Quota: algorithms.Quota{Window: 1}}}

// bansOf are the bans of a key in the zone, of which these terms know, one for each of the
// zone's keys; nil if it bans nobody.
func (z *zone) bansOf(of []namedLimitSet) (bans []*store.Ban) {
	if z.config.Ban == nil {
		return nil
	}
	limits := anyLimits
	for _, t := range of {
		limits = append(limits, t.limits...)
	}
	ban, _ := z.config.Ban.compile(limits) // it has been ready before
	for i := range z.keys {
		bans = append(bans, &store.Ban{Ban: ban, ID: store.BanID(z.name, variantOf(i))})
	}
	return bans
}

// addBudgets adds what was decided of looks.
func (z *zone) addBudgets(v *keyView, requests []store.Request, alternatives []int, all [][]namedLimitSet) {
	for n, r := range requests {
		i := alternatives[n]
		known := make(map[string]algorithms.Decision)
		for j, l := range r.Limits {
			known[l.ID] = r.Outcome.Decisions[j]
		}
		b := budgetsView{Limits: []limitView{}}
		if len(z.keys) > 1 {
			b.Alternative = i + 1
		}
		for _, t := range all[i] {
			for _, l := range limitsOf([]namedLimitSet{t}, i) {
				d, granted := known[l.ID], l.Limit
				if v.Store == "local" && l.Share != nil {
					granted = l.Share
				}
				limit := limitView{
					Plan: t.plan, Limit: granted.String(), Remaining: min(d.Remaining, granted.Burst), ResetAfter: exactSeconds(d.ResetAfter),
				}
				if d.Remaining > 0 {
					d.MoreAfter = 0
				}
				if d.MoreAfter < algorithms.Forever {
					after := exactSeconds(d.MoreAfter)
					limit.RetryAfter = &after
				}
				b.Limits = append(b.Limits, limit)
			}
		}
		if r.Slots != nil {
			b.Concurrency = &concurrencyView{Limit: r.Slots.Limit, InUse: r.Outcome.Slots.InFlight}
			if v.Store == "local" {
				b.Concurrency.Limit = r.Slots.Share
			}
		}
		if r.Ban != nil {
			b.Ban = &banView{Banned: r.Outcome.Ban.Stands, Ends: exactSeconds(r.Outcome.Ban.EndsAfter)}
		}
		v.Budgets = append(v.Budgets, b)
	}
}
