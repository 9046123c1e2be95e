package admin

import (
	"maps"
	"net/http"
	"reflect"
	"slices"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/options"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/telemetry"
)

// listZones returns the zones of the configuration, by name. Zones with one name are listed once
// if their views are the same.
func (a *OperatorRequest) listZones() (any, error) {
	return a.viewZones(slices.Sorted(maps.Keys(a.Configuration.Zones)))
}

// showZone returns the entries of the list of zones with the name in the path.
func (a *OperatorRequest) showZone() (any, error) { return a.viewZones([]string{a.zone}) }

// viewZones returns the entries of the list of zones with these names.
func (a *OperatorRequest) viewZones(names []string) (any, error) {
	counts, list := telemetry.RequestCounts(), []options.Object{}
	for _, name := range names {
		first, seen := len(list), make(map[viewedZone]bool)
		for _, z := range a.Configuration.Zones[name] {
			if seen[z.viewed()] { // hundreds of handlers can have a shared zone
				continue
			}
			seen[z.viewed()] = true
			v := z.view(a.Configuration, counts[name])
			if !slices.ContainsFunc(list[first:], func(other options.Object) bool { return reflect.DeepEqual(other, v) }) {
				list = append(list, v)
			}
		}
	}
	return list, nil
}

// viewedZone has all that the view of a zone depends on. Zones with the same viewedZone have the same view.
type viewedZone struct {
	source         any
	backend        limiter.Backend
	onStoreError   limiter.StoreErrorPolicy
	hashSecret     string
	disableMetrics bool
}

func (z *Zone) viewed() viewedZone {
	h := z.Limiter
	return viewedZone{z.Source, h.Backend, h.StoreErrorPolicy, h.HashSecret, !h.CountsRequests}
}

// view returns what operators see of the zone: its settings, where the budgets are kept, and the
// counts of requests, which are given.
func (z *Zone) view(c *Configuration, counts telemetry.Counts) options.Object {
	var v options.Object
	add := func(name string, value any) { v = append(v, options.Field{Name: name, Value: value}) }
	add("name", z.Name)
	v = append(v, z.Settings()...)
	add("store", z.Identity.Store)
	if h := z.Limiter; h.Backend != nil {
		add("failing_nodes", h.Backend.Failing())
		add("on_store_error", h.StoreErrorPolicy.Mode)
	} else {
		memory := c.Memory()
		add("keys", memory.Keys)
		add("max_keys", memory.MaxKeys)
	}
	if z.Limiter.CountsRequests {
		add("requests", counts.ByOutcome())
	}
	return v
}

// showHistory returns the counts of requests of the last hour, in the zones that count them.
func (a *OperatorRequest) showHistory() (any, error) {
	samples, now := telemetry.History(), time.Now()
	v := adminapi.History{Ages: []float64{}, Zones: make(map[string]map[string][]int64)}
	for i := range samples {
		v.Ages = append(v.Ages, now.Sub(samples[i].At).Round(time.Millisecond).Seconds())
	}
	for name, zones := range a.Configuration.Zones {
		if len(samples) == 0 || !zones[0].Limiter.CountsRequests {
			continue
		}
		byOutcome := make(map[string][]int64)
		for i := range samples {
			for outcome, n := range samples[i].Zones[name].ByOutcome() {
				if n > 0 && byOutcome[outcome] == nil {
					byOutcome[outcome] = make([]int64, len(samples))
				}
				if n > 0 {
					byOutcome[outcome][i] = n
				}
			}
		}
		v.Zones[name] = byOutcome
	}
	return v, nil
}

// listDeniedKeys returns the keys of a zone that this instance denied most often in recent minutes.
func (a *OperatorRequest) listDeniedKeys() (any, error) {
	return a.zones[0].DeniedKeys.List(time.Now()), nil
}

// WriteJSON sends a value as JSON that people can read.
func WriteJSON(w http.ResponseWriter, status int, value any) error {
	body, err := options.ReadableJSON(value)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // an error means that the client has disconnected
	return nil
}

// FractionalSeconds returns a span of time in seconds.
func FractionalSeconds(span algorithms.Micros) float64 { return float64(span) / 1e6 }
