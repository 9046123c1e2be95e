package ratelimit

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
)

// simulatedZones are the zones of a simulation. Zones of one name in several handlers are one zone.
type simulatedZones struct {
	all     []simulate.Zone
	secrets []string          // of hash_keys, one per zone
	index   map[*zone]int     // in all
	sets    map[*limitSet]int // the index in Sets
	// variants counts the zones of one name. Configurations for another limiter can have several, which
	// have separate budgets; see [App.checkAgreement].
	variants map[string]int
}

// newSimulatedZones returns the zones of these handlers.
func newSimulatedZones(handlers []*Handler) *simulatedZones {
	type identity struct {
		name string
		zoneIdentity
	}
	same := make(map[identity][]*zone)
	for _, h := range handlers {
		for _, z := range h.zones {
			id := identity{z.name, z.identity}
			same[id] = append(same[id], z)
		}
	}
	groups := slices.SortedFunc(maps.Values(same), func(a, b []*zone) int {
		if c := strings.Compare(a[0].name, b[0].name); c != 0 {
			return c
		}
		return strings.Compare(a[0].identity.settings, b[0].identity.settings)
	})
	s := &simulatedZones{index: make(map[*zone]int), sets: make(map[*limitSet]int), variants: make(map[string]int)}
	for _, group := range groups {
		s.add(group)
	}
	return s
}

// add adds zones of one name that agree, as one zone. They can differ in settings that don't identify
// a zone.
func (s *simulatedZones) add(group []*zone) {
	first := group[0]
	made := simulate.Zone{
		Name: first.name, Key: []string{}, Concurrency: first.config.Concurrency, Shadow: true,
		SingleKey: !slices.ContainsFunc(first.keys, func(k keyTemplate) bool { return !k.plain }),
		HasBan:    first.config.Ban != nil, VariesBurst: first.factor.varies(),
	}
	for _, key := range first.config.Key {
		made.Key = append(made.Key, shortenPlaceholders(key))
	}
	if s.variants[first.name]++; s.variants[first.name] > 1 {
		made.Name = fmt.Sprintf("%s (%d)", first.name, s.variants[first.name])
	}
	for _, z := range group {
		s.index[z] = len(s.all)
		made.Shadow = made.Shadow && z.enforce == 0
		made.RefundsDenied = made.RefundsDenied || z.settle.refunds(http.StatusTooManyRequests)
		if z.delay != nil && z.delay.maxWait > made.MaxDelay {
			made.MaxDelay, made.Places = z.delay.maxWait, z.delay.maxHeld
		}
		made.Sets = made.Sets[:0]
		for i, set := range z.namedSets() {
			s.sets[set.limitSet] = i
			made.Sets = append(made.Sets, simulate.NewLimitSet(set.name, set.limits))
		}
	}
	s.all = append(s.all, made)
	s.secrets = append(s.secrets, first.handler.hashSecret)
}

// refunds reports whether settle gives back the whole charge of a request whose response has this status and
// no header fields.
func (s *Settle) refunds(status int) bool {
	return s != nil && s.Match != nil && !s.Match.Match(status, make(http.Header))
}

// namedSet is a limitSet with its name in a report.
type namedSet struct {
	name string
	*limitSet
}

// namedSets returns the limits of all keys, then those of plans, then those of overrides.
func (z *zone) namedSets() []namedSet {
	sets := []namedSet{{"", z.defaultSet}}
	for _, of := range []struct {
		option string
		sets   map[string]*limitSet
	}{{"plan", z.planSets}, {"override", z.overrides.all}} {
		for _, value := range slices.Sorted(maps.Keys(of.sets)) {
			sets = append(sets, namedSet{of.option + " " + value, of.sets[value]})
		}
	}
	return sets
}
