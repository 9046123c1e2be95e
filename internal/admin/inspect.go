package admin

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// inspectKey returns the state of a key. It charges nothing.
func (a *OperatorRequest) inspectKey() (any, error) {
	v := &adminapi.Key{Zone: a.zones[0].Name, Key: keys.Encoded("", a.key), Budgets: []adminapi.Budgets{}}
	seen, hashed := make(map[limiter.Identity]bool), make(map[bool]bool)
	for _, z := range a.zones {
		if secret := z.Limiter.HashSecret; !hashed[secret != ""] {
			hashed[secret != ""] = true
			v.Denials = append(v.Denials, z.DeniedKeys.Of(time.Now(), secret, z.ShortKey(a.key))...)
		}
		if seen[z.Identity] {
			continue
		}
		seen[z.Identity] = true
		err := z.inspectKey(a.Ctx, a.key, v)
		if isForeign(err) {
			return nil, Error(http.StatusServiceUnavailable,
				"the store of zone %q holds a value for the key that is not a budget (%w): reset the key, or remove its override", z.Name, err)
		}
		if err != nil {
			return nil, Error(http.StatusServiceUnavailable,
				"the store of zone %q fails (%w): ask again when it works", z.Name, err)
		}
	}
	return v, nil
}

// inspectKey adds the state of a key in one zone. While the store fails, this is the state of the local budgets
// that decide requests, if the zone has any.
func (z *Zone) inspectKey(ctx context.Context, key string, v *adminapi.Key) error {
	override := z.KnownOverrides.Lookup(z.ShortKey(key)).Text
	err := limiter.RetryOverridden(
		func(limiter.Attempt) error { return z.inspectKeyWith(ctx, key, override, v) },
		func(overrides []string) { override = overrides[0] },
	)
	if store.IsOverridden(err) {
		return errors.New("the override keeps changing")
	}
	return err
}

// inspectKeyWith adds the state of a key. override is the run-time override that the store is expected to have;
// if it has another one, the error is an [store.OverriddenError].
func (z *Zone) inspectKeyWith(ctx context.Context, key, override string, v *adminapi.Key) error {
	network, isNetwork := keys.ParseNetwork(key)
	inForce, overriding := overrideInForce(z.Zone, key, network, override)
	requests, sets := make([]store.ZoneRequest, len(z.Keys)), make([][]limiter.NamedSet, len(z.Keys)) // by alternative
	for i := range z.Keys {
		sets[i] = z.SetsWithoutOverrides()
		if z.Keys[i].AcceptsOverride(isNetwork) { // one of an address is only for address placeholders
			if overriding != nil {
				sets[i] = []limiter.NamedSet{{LimitSet: overriding}}
			}
			if z.RuntimeOverrides {
				requests[0].Override = &store.Override{Text: override}
			}
		}
		// The request is a shadow, so no cache of denials keeps it from the store. All sets have the same slots.
		r := &requests[i]
		r.Zone, r.Key, r.Peek, r.Shadow = z.Name, z.ShortKey(key), true, true
		r.Limits, r.Slots = distinctLimits(sets[i], i), z.DefaultSet.Budgets[i].Slots
		if z.Settle != nil && len(r.Limits) > 0 {
			r.ReservedID = z.DefaultSet.Budgets[i].ReservedID
		}
		if bans := z.bansFor(sets[i]); bans != nil {
			r.Ban = bans[i]
		}
	}
	asks := func(r store.ZoneRequest) bool {
		return len(r.Limits) > 0 || r.Slots != nil || r.Ban != nil || r.Override != nil
	}
	if slices.ContainsFunc(requests, asks) {
		switch _, failure, err := z.Limiter.Peek(ctx, requests); {
		case err != nil:
			return err
		case isForeign(failure):
			return failure
		case failure != nil:
			v.Store = "local"
		}
	}
	v.Override = inForce
	for i := range requests {
		v.Budgets = append(v.Budgets, z.budgetsOf(&requests[i], i, sets[i]))
	}
	return nil
}

// isForeign reports whether an error is about a key at which another program stored a value.
func isForeign(err error) bool {
	failed, ok := errors.AsType[*store.Error](err)
	return ok && failed.Reason == store.ReasonKey
}

// lookUpStoredOverride returns the override of a key in the store; "" if there is none.
func (z *Zone) lookUpStoredOverride(ctx context.Context, key string) (string, error) {
	if !z.RuntimeOverrides {
		return "", nil
	}
	request := store.ZoneRequest{Zone: z.Name, Key: z.ShortKey(key), Shadow: true, Override: limiter.NoOverride}
	_, err := z.Limiter.AuthoritativeStore().Take(ctx, []store.ZoneRequest{request})
	if overridden, is := errors.AsType[*store.OverriddenError](err); is {
		return overridden.Overrides[0], nil
	}
	return "", err
}

// overrideInForce returns the override of a key, and its limits. They are nil if there is no override.
// network is valid if the key comes from an address. runtime is the text of the run-time override; "" for none.
func overrideInForce(z *limiter.Zone, key string, network netip.Prefix, runtime string) (v *adminapi.Override, override *limiter.LimitSet) {
	if override = z.Overrides.Lookup(key, network); override != nil {
		v = &adminapi.Override{From: "config", Limits: override.LimitTexts()}
	}
	if runtime == "" {
		return v, override
	}
	v, stored := viewStoredOverride(z, runtime)
	return v, cmp.Or(stored, override)
}

// viewStoredOverride returns a run-time override as operators see it, and its limits. They are nil if
// the override can't be read; then it has no effect.
func viewStoredOverride(z *limiter.Zone, text string) (*adminapi.Override, *limiter.LimitSet) {
	set, until, err := z.CompileOverride(text)
	if err != nil {
		return &adminapi.Override{From: "runtime", Limits: []string{}, Error: err.Error()}, nil
	}
	return &adminapi.Override{From: "runtime", Limits: set.LimitTexts(), Until: until}, set
}

// distinctLimits returns the limits of all these sets for one alternative, each limit once.
func distinctLimits(sets []limiter.NamedSet, alternative int) (limits []store.Limit) {
	for _, set := range sets {
		if set.LimitSet == nil {
			continue
		}
		for _, l := range set.Budgets[alternative].Limits {
			if indexOfLimit(limits, l) < 0 {
				limits = append(limits, l)
			}
		}
	}
	return limits
}

// indexOfLimit returns the index of a limit, or -1. Limits that share a budget can differ in events and burst.
func indexOfLimit(limits []store.Limit, l store.Limit) int {
	return slices.IndexFunc(limits, l.Equal)
}

// bansFor returns the bans of a key with these limits, one for each alternative; nil if the zone
// has no ban.
func (z *Zone) bansFor(sets []limiter.NamedSet) (bans []*store.Ban) {
	if z.Ban == nil {
		return nil
	}
	ban := *z.Ban
	for _, set := range sets {
		for _, l := range set.Limits {
			ban.Window = max(ban.Window, l.Window)
		}
	}
	for i := range z.Keys {
		bans = append(bans, &store.Ban{Ban: &ban, ID: store.BanID(z.Name, limiter.VariantOf(i))})
	}
	return bans
}

// budgetsOf returns the budgets of an alternative, which a peek found.
func (z *Zone) budgetsOf(r *store.ZoneRequest, alternative int, sets []limiter.NamedSet) adminapi.Budgets {
	b := adminapi.Budgets{Alternative: z.AlternativeText(alternative), Limits: []adminapi.Limit{}}
	for _, set := range sets {
		for _, l := range distinctLimits([]limiter.NamedSet{set}, alternative) {
			j := indexOfLimit(r.Limits, l)
			view := NewLimitView(r, j)
			if set.Option == "plan" {
				view.Plan = &set.Value
			}
			b.Limits = append(b.Limits, view)
		}
	}
	if r.Slots != nil {
		b.Concurrency = &adminapi.Concurrency{Limit: r.GrantedSlots(), InUse: r.Outcome.Slots.InFlight}
	}
	if r.Ban != nil {
		stands := r.Outcome.Ban.Stands
		b.Ban = &adminapi.Ban{Banned: stands, Shadow: stands && !z.Enforces(r.Key), Ends: FractionalSeconds(r.Outcome.Ban.EndsAfter)}
	}
	return b
}

// NewLimitView returns the view of a limit of a peek.
func NewLimitView(r *store.ZoneRequest, limit int) adminapi.Limit {
	l, d := r.GrantedLimit(limit), r.Outcome.Decisions[limit]
	v := adminapi.Limit{
		Limit: l.String(), Remaining: min(d.Remaining, l.Burst), ResetAfter: FractionalSeconds(d.ResetAfter),
	}
	switch {
	case l.Algorithm().Calendar:
		v.Used, v.Reserved = &d.Used, r.Outcome.Reserved.Events
	case !l.Algorithm().BinaryOnly: // smooth counts no events
		v.Reserved = min(r.Outcome.Reserved.Events, l.Burst-v.Remaining) // time may have given some back
		if l.MinInterval == 0 && l.Initial == nil {
			v.Used = new(l.Burst - v.Remaining - v.Reserved) // otherwise more can be unused than remains
		}
	}
	if d.Remaining > 0 {
		d.MoreAfter = 0
	}
	if d.MoreAfter < algorithms.Forever {
		after := FractionalSeconds(d.MoreAfter)
		v.RetryAfter = &after
	}
	return v
}
