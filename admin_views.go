package ratelimit

import (
	"bytes"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
)

// zoneView is a zone as operators see it: a JSON object whose fields keep their order.
type zoneView []viewField

type viewField struct {
	name  string
	value any
}

// MarshalJSON implements [json.Marshaler].
func (v zoneView) MarshalJSON() ([]byte, error) {
	var fields [][]byte
	for _, f := range v {
		value, err := readableJSON(f.value)
		if err != nil {
			return nil, err
		}
		fields = append(fields, fmt.Appendf(nil, "%q:%s", f.name, value))
	}
	return slices.Concat([]byte("{"), bytes.Join(fields, []byte(",")), []byte("}")), nil
}

// listZones returns the zones of the configuration, by name. Zones with one name are listed once
// if their views are the same.
func (a *adminRequest) listZones() (any, error) {
	return a.viewZones(slices.Sorted(maps.Keys(a.app.zonesByName)))
}

// showZone returns the entries of the list of zones with the name in the path.
func (a *adminRequest) showZone() (any, error) { return a.viewZones([]string{a.zone}) }

// viewZones returns the entries of the list of zones with these names.
func (a *adminRequest) viewZones(names []string) (any, error) {
	counts, list := requestCounts(), []zoneView{}
	for _, name := range names {
		first, seen := len(list), make(map[viewedZone]bool)
		for _, z := range a.app.zonesByName[name] {
			if seen[z.viewed()] { // hundreds of handlers can have a shared zone
				continue
			}
			seen[z.viewed()] = true
			v := z.view(counts[name])
			if !slices.ContainsFunc(list[first:], func(other zoneView) bool { return reflect.DeepEqual(other, v) }) {
				list = append(list, v)
			}
		}
	}
	return list, nil
}

// viewedZone has all that the view of a zone depends on. Zones with the same viewedZone have the same view.
type viewedZone struct {
	source         *zoneSource
	backend        *backend
	onStoreError   storeErrorPolicy
	hashSecret     string
	disableMetrics bool
}

func (z *zone) viewed() viewedZone {
	h := z.handler
	return viewedZone{z.source, h.backend, h.storeErrorPolicy, h.hashSecret, h.DisableMetrics}
}

// view returns what operators see of the zone: its settings, where the budgets are kept, and the
// counts of requests, which are given.
func (z *zone) view(counts map[string]int64) zoneView {
	v := zoneView{{"name", z.name}}
	for _, s := range zoneSettings() {
		if !s.shown {
			continue
		}
		if value := s.show(z); value != nil {
			v = append(v, viewField{s.name, value})
		}
	}
	v = append(v, viewField{"store", z.identity.store})
	if h := z.handler; h.backend != nil {
		v = append(v, viewField{"failing_nodes", h.backend.redis.Failing()}, viewField{"on_store_error", h.storeErrorPolicy.mode})
	} else {
		v = append(v, viewField{"keys", h.app.sharedMemory.Keys()}, viewField{"max_keys", h.app.Memory.MaxKeys})
	}
	if !z.handler.DisableMetrics {
		requests := make(map[string]int64)
		for _, outcome := range outcomeLabels {
			requests[outcome] = counts[outcome]
		}
		v = append(v, viewField{"requests", requests})
	}
	return v
}

// planView returns the plan of the zone as operators see it.
func (z *zone) planView() any {
	if z.config.Plan == nil {
		return nil
	}
	v := adminapi.Plan{By: z.config.Plan.By, Values: make(map[string][]string)}
	for value, set := range z.planSets {
		v.Values[value] = set.limitTexts()
	}
	return v
}

// overridesView returns the limits by key, which is percent-encoded or hashed.
func (z *zone) overridesView() any {
	v := make(map[string][]string)
	for key, set := range z.overrides.all {
		v[displayKey(z.handler.hashSecret, key)] = set.limitTexts()
	}
	if len(v) == 0 {
		return nil
	}
	return v
}

// displayKey returns the key as its HMAC with the secret. If the secret is empty, it returns the
// key percent-encoded.
func displayKey(secret, key string) string {
	if secret != "" {
		return redisstore.HashedKey(secret, key)
	}
	return url.PathEscape(key)
}

// limitTexts returns the limits as operators see them.
func (set *limitSet) limitTexts() []string {
	if set.unlimited {
		return []string{"unlimited"}
	}
	texts := []string{}
	for _, l := range set.limits {
		texts = append(texts, l.String())
	}
	return texts
}

// listDeniedKeys returns the keys of a zone that this instance denied most lately.
func (a *adminRequest) listDeniedKeys() (any, error) {
	list := []adminapi.DeniedKey{}
	for _, c := range a.zones[0].deniedKeys.list(time.Now()) {
		list = append(list, adminapi.DeniedKey{ShownKey: c.Label.view(), Denied: c.Count, AtLeast: c.Count - c.Excess})
	}
	return list, nil
}

// fractionalSeconds returns a span of time in seconds.
func fractionalSeconds(span algorithms.Micros) float64 { return float64(span) / 1e6 }
