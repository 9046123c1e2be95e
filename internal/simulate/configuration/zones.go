package configuration

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
)

// zones are the zones of a simulation. Zones of one name in several handlers are one zone.
type zones struct {
	all     []simulate.Zone
	secrets []string                  // of hash_keys, one per zone
	index   map[*limiter.Zone]int     // in all
	sets    map[*limiter.LimitSet]int // the index in Sets
	// variants counts the zones of one name. Configurations for another limiter can have several, which
	// have separate budgets.
	variants map[string]int
}

// newZones returns the zones of these handlers.
func newZones(handlers []*limiter.Limiter) *zones {
	type identity struct {
		name string
		limiter.Identity
	}
	same := make(map[identity][]*limiter.Zone)
	for _, h := range handlers {
		for _, z := range h.Zones {
			id := identity{z.Name, z.Identity}
			same[id] = append(same[id], z)
		}
	}
	groups := slices.SortedFunc(maps.Values(same), func(a, b []*limiter.Zone) int {
		if c := strings.Compare(a[0].Name, b[0].Name); c != 0 {
			return c
		}
		return strings.Compare(a[0].Identity.Settings, b[0].Identity.Settings)
	})
	s := &zones{index: make(map[*limiter.Zone]int), sets: make(map[*limiter.LimitSet]int), variants: make(map[string]int)}
	for _, group := range groups {
		s.add(group)
	}
	return s
}

// add adds zones of one name that agree, as one zone. They can differ in settings that don't identify
// a zone.
func (s *zones) add(group []*limiter.Zone) {
	first := group[0]
	made := simulate.Zone{
		Name: first.Name, Key: []string{}, Concurrency: first.Concurrency, Shadow: true,
		SingleKey: !slices.ContainsFunc(first.Keys, func(k keys.Template) bool { return !k.Plain }),
		HasBan:    first.Ban != nil, VariesBurst: first.Factor != "",
	}
	for _, key := range first.KeyTexts() {
		if key != "" {
			made.Key = append(made.Key, keys.Shorten(key))
		}
	}
	if s.variants[first.Name]++; s.variants[first.Name] > 1 {
		made.Name = fmt.Sprintf("%s (%d)", first.Name, s.variants[first.Name])
	}
	for _, z := range group {
		s.index[z] = len(s.all)
		made.Shadow = made.Shadow && z.Enforce == 0
		made.RefundsDenied = made.RefundsDenied || z.Settle != nil && z.Settle.Refunds(http.StatusTooManyRequests, make(http.Header))
		if z.Delay != nil {
			made.MaxDelay, made.MaxReserved = max(made.MaxDelay, z.Delay.MaxDelay), max(made.MaxReserved, z.Delay.MaxReserved)
			made.Places = max(made.Places, z.Delay.MaxPlaces)
		}
		made.Sets = made.Sets[:0]
		for i, set := range z.Sets() {
			s.sets[set.LimitSet] = i
			made.Sets = append(made.Sets, simulate.LimitSet{Name: strings.TrimSpace(set.Option + " " + set.Value), Limits: set.Limits})
		}
	}
	s.all = append(s.all, made)
	s.secrets = append(s.secrets, first.HashSecret)
}
