package limiter

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// LimitSet holds the limits, slots and ban of some keys of a zone, compiled from the LimitSet of a configuration.
type LimitSet struct {
	Unlimited bool
	Limits    []*algorithms.Limit
	Shares    []*algorithms.Limit // of this instance while Redis fails; nil: the limits themselves
	Slots     *store.Slots        // without ID; nil: any number of requests may be in flight
	Ban       *algorithms.Ban     // nil: no key is banned
	Budgets   []Budgets           // one for each of the zone's alternative keys

	// The names and items in header fields.
	labels      []string // one per limit, and one for the slots
	policyItems string   // of RateLimit-Policy
	hasCalendar bool     // its items change with the time
}

// Budgets are the limits, slots and ban of a zone request, for one of the zone's alternative
// keys. Each alternative has budgets of its own, so a client can't spend the budget of another
// alternative by choosing its text.
type Budgets struct {
	Limits     []store.Limit
	Slots      *store.Slots
	ReservedID string // for zones with settle
	Ban        *store.Ban
}

// LimitSets holds the limits of all keys of a zone, as configured. It doesn't change after it is
// compiled, so all limiters of a shared zone can have the same.
type LimitSets struct {
	DefaultSet *LimitSet // for keys without an override, and values that plan doesn't list
	Overrides  Overrides
	PlanBy     keys.Template
	PlanSets   map[string]*LimitSet // by the value of PlanBy
}

// limitSetFor returns the limits of a request's key, and the override that the store has for the
// key, as far as this instance knows. The override is nil if the store need not look one up. plan returns the
// value that can choose the limits.
func (z *Zone) limitSetFor(key Key, plan func() string) (*LimitSet, *store.Override) {
	if !z.MayHaveRuntimeOverride(key) {
		return z.configuredLimitSet(key, plan), nil
	}
	known := z.KnownOverrides.Lookup(z.ShortKey(key.Text))
	if known.limitSet != nil {
		return known.limitSet, known.Override
	}
	return z.configuredLimitSet(key, plan), known.Override
}

// configuredLimitSet returns the limits that the configuration has for a key: those of an
// override, else of the plan, else of the zone.
func (z *Zone) configuredLimitSet(key Key, plan func() string) *LimitSet {
	if set := z.Overrides.Lookup(key.Text, key.Network); set != nil {
		return set
	}
	if z.PlanSets != nil {
		if set := z.PlanSets[plan()]; set != nil {
			return set
		}
	}
	return z.DefaultSet
}

// scaleLimits returns the limits with their bursts divided by a factor, in millionths. The
// scaled limits have the same budgets as the given ones.
func scaleLimits(limits []store.Limit, factor int64) []store.Limit {
	if factor == UnitFactor {
		return limits
	}
	limits = slices.Clone(limits)
	for i, l := range limits {
		limits[i].Limit = l.Scaled(factor)
		if l.Share != nil {
			limits[i].Share = l.Share.Scaled(factor)
		}
	}
	return limits
}

// NamedSet is a limit set and where the configuration has it.
type NamedSet struct {
	Option string // plan or override; "" for the zone itself
	Value  string // of the plan, or the key of the override
	*LimitSet
}

// Sets returns all limit sets of the configuration: the one of the zone, then those of plans, then those of overrides.
func (l *LimitSets) Sets() []NamedSet {
	sets := l.SetsWithoutOverrides()
	for _, key := range slices.Sorted(maps.Keys(l.Overrides.All)) {
		sets = append(sets, NamedSet{"override", key, l.Overrides.All[key]})
	}
	return sets
}

// SetsWithoutOverrides returns the limit sets that keys without an override can have.
func (l *LimitSets) SetsWithoutOverrides() []NamedSet {
	sets := []NamedSet{{LimitSet: l.DefaultSet}}
	for _, value := range slices.Sorted(maps.Keys(l.PlanSets)) {
		sets = append(sets, NamedSet{"plan", value, l.PlanSets[value]})
	}
	return sets
}

// NameBudgets fills in the names of the budgets, for each of the zone's alternative keys.
func (set *LimitSet) NameBudgets(zone string, keys []keys.Template) {
	set.Budgets = nil
	for i := range keys {
		b := Budgets{Limits: store.NewLimits(zone, keys[i].Identity(), set.Limits), ReservedID: store.ReservedID(zone, VariantOf(i))}
		for n, share := range set.Shares {
			b.Limits[n].Share = share
		}
		if set.Slots != nil {
			b.Slots = &store.Slots{ID: store.SlotsID(zone, VariantOf(i)), Limit: set.Slots.Limit, Share: set.Slots.Share}
		}
		if set.Ban != nil {
			b.Ban = &store.Ban{Ban: set.Ban, ID: store.BanID(zone, VariantOf(i))}
		}
		set.Budgets = append(set.Budgets, b)
	}
	set.labels = limitLabels(zone, len(set.Limits)+1)
	set.policyItems = set.formatPolicyItems(set.Budgets[0].Limits, 0)
	set.hasCalendar = set.HasCalendar()
}

// HasCalendar reports whether any of the limits is a calendar.
func (set *LimitSet) HasCalendar() bool {
	return slices.ContainsFunc(set.Limits, func(l *algorithms.Limit) bool { return l.Algorithm().Calendar })
}

// NewBanLookup returns the ban of a zone without its limits and slots.
func NewBanLookup(z *Zone) *LimitSet {
	set := &LimitSet{Ban: z.DefaultSet.Ban}
	set.NameBudgets(z.Name, z.Keys)
	return set
}

// VariantOf returns the variant in the IDs of the slots and bans of one of the zone's alternative
// keys. The variant is the index of the key, so a change of the key's text frees no slot and ends
// no ban.
func VariantOf(alternative int) string {
	if alternative == 0 {
		return ""
	}
	return fmt.Sprint(alternative + 1)
}

// LimitTexts returns the limits as operators see them.
func (set *LimitSet) LimitTexts() []string {
	if set.Unlimited {
		return []string{"unlimited"}
	}
	texts := []string{}
	for _, l := range set.Limits {
		texts = append(texts, l.String())
	}
	return texts
}

// limitLabels returns the names of a zone's limits in header fields: the name of the zone, and for
// further limits the name with a number.
func limitLabels(zone string, n int) []string {
	labels := slices.Repeat([]string{zone}, n)
	for i := 1; i < n; i++ {
		labels[i] += "/" + strconv.Itoa(i+1)
	}
	return labels
}
