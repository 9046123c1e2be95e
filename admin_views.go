package ratelimit

import (
	"maps"
	"net/url"
	"reflect"
	"slices"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
)

// zoneView is a zone as operators see it. Limits are in the form of [algorithms.Limit.String], or
// "unlimited" alone.
type zoneView struct {
	Name        string              `json:"name"`
	Key         Key                 `json:"key"`
	IPv4Prefix  int                 `json:"ipv4_prefix,omitempty"`
	IPv6Prefix  int                 `json:"ipv6_prefix,omitempty"`
	Limits      []string            `json:"limits"`
	Plan        *planView           `json:"plan,omitempty"`
	Override    map[string][]string `json:"override,omitempty"` // by key, percent-encoded or hashed
	Runtime     bool                `json:"runtime_overrides,omitempty"`
	Concurrency int64               `json:"concurrency,omitempty"`
	Mode        string              `json:"mode"`
	Factor      string              `json:"factor,omitempty"`
	Ban         string              `json:"ban,omitempty"`
	Shadow      bool                `json:"shadow,omitempty"`
	Enforce     *float64            `json:"enforce,omitempty"`
	Store       string              `json:"store"`
	// In memory: how many keys the store holds and may hold, of all zones. In Redis: how many
	// nodes fail at present, and what happens to requests then.
	Keys         *int64 `json:"keys,omitempty"`
	MaxKeys      int64  `json:"max_keys,omitempty"`
	FailingNodes *int   `json:"failing_nodes,omitempty"`
	OnStoreError string `json:"on_store_error,omitempty"`
	// Requests are the counts by outcome since the process began, of all zones with this name.
	Requests map[string]int64 `json:"requests,omitempty"`
}

// planView is a plan as operators see it.
type planView struct {
	By     string              `json:"by"`
	Values map[string][]string `json:"values"`
}

// listZones returns the zones of the configuration, by name. Zones with one name are listed once
// if their views are the same.
func (a *adminRequest) listZones() (any, error) {
	counts, list := requestCounts(), []zoneView{}
	for _, name := range slices.Sorted(maps.Keys(a.app.zonesByName)) {
		first := len(list)
		for _, z := range a.app.zonesByName[name] {
			v := z.view(counts[name])
			if !slices.ContainsFunc(list[first:], func(other zoneView) bool { return reflect.DeepEqual(other, v) }) {
				list = append(list, v)
			}
		}
	}
	return list, nil
}

// view returns the view of a zone, with the counts of requests by outcome.
func (z *zone) view(counts map[string]int64) zoneView {
	c, h := z.config, z.handler
	v := zoneView{
		Name: z.name, Key: c.Key, IPv4Prefix: c.IPv4Prefix, IPv6Prefix: c.IPv6Prefix,
		Limits: z.defaultSet.limitTexts(), Runtime: z.overridable, Concurrency: c.Concurrency, Mode: z.mode.String(),
		Factor: string(c.Factor), Shadow: c.Shadow, Enforce: c.Enforce, Store: z.identity.store,
	}
	if len(v.Key) == 0 {
		v.Key = Key{""}
	}
	if c.Plan != nil {
		v.Plan = &planView{By: c.Plan.By, Values: make(map[string][]string)}
		for value, set := range z.planSets {
			v.Plan.Values[value] = set.limitTexts()
		}
	}
	for key, set := range z.overrides.all {
		if v.Override == nil {
			v.Override = make(map[string][]string)
		}
		v.Override[displayKey(h.hashKeys, key)] = set.limitTexts()
	}
	if c.Ban != nil {
		v.Ban = c.Ban.describe()
	}
	if h.backend != nil {
		failing := h.backend.redis.Failing()
		v.FailingNodes, v.OnStoreError = &failing, h.storeErrorPolicy.mode
	} else {
		keys := h.app.memory.Keys()
		v.Keys, v.MaxKeys = &keys, h.app.Memory.MaxKeys
	}
	if !h.DisableMetrics {
		v.Requests = make(map[string]int64)
		for _, label := range outcomeLabels {
			v.Requests[label] = counts[label]
		}
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
func (t *limitSet) limitTexts() []string {
	if t.unlimited {
		return []string{"unlimited"}
	}
	texts := []string{}
	for _, l := range t.limits {
		texts = append(texts, l.String())
	}
	return texts
}

// keyView is a key as operators see it.
type keyView struct {
	Zone     string        `json:"zone"`
	Key      string        `json:"key"`             // percent-encoded
	Store    string        `json:"store,omitempty"` // local: Redis fails, and these are the local budgets
	Override *overrideView `json:"override,omitempty"`
	Budgets  []budgetsView `json:"budgets"`
}

// overrideView is the override in force as operators see it.
type overrideView struct {
	From   string    `json:"from"`            // config or runtime
	Limits []string  `json:"limits"`          // as in zoneView
	Until  time.Time `json:"until,omitzero"`  // by the clock of the instance that set it
	Error  string    `json:"error,omitempty"` // why the override can't be read; then it has no effect
}

// budgetsView are the budgets of a key for one alternative of the zone's key.
type budgetsView struct {
	Alternative int              `json:"alternative,omitempty"` // from 1; 0 if the zone has one alternative
	Limits      []limitView      `json:"limits"`
	Concurrency *concurrencyView `json:"concurrency,omitempty"`
	Ban         *banView         `json:"ban,omitempty"`
}

// limitView is a budget as operators see it.
type limitView struct {
	Plan      *string `json:"plan,omitempty"`
	Limit     string  `json:"limit"`
	Remaining int64   `json:"remaining"`
	// RetryAfter is how long until one event fits: 0 if one fits now, null if none ever will.
	RetryAfter *float64 `json:"retry_after_seconds"`
	ResetAfter float64  `json:"reset_after_seconds"`
}

// concurrencyView are the slots of a key as operators see them.
type concurrencyView struct {
	Limit int64 `json:"limit"`
	InUse int64 `json:"in_use"`
}

// banView is the ban of a key as operators see it.
type banView struct {
	Banned bool    `json:"banned"`
	Ends   float64 `json:"ends_after_seconds"`
}

// deniedKeyView is a recently denied key as operators see it.
type deniedKeyView struct {
	Key       *string `json:"key,omitempty"` // percent-encoded; nil for a hashed key
	Cut       bool    `json:"cut,omitempty"` // Key is only the beginning
	HashedKey string  `json:"hashed_key,omitempty"`
	Denied    int64   `json:"denied"`
	AtLeast   int64   `json:"at_least"`
}

// listDeniedKeys returns the keys of a zone that this instance denied most lately.
func (a *adminRequest) listDeniedKeys() (any, error) {
	list := []deniedKeyView{}
	for _, c := range a.zones[0].deniedKeys.list(time.Now()) {
		v := deniedKeyView{Cut: c.Label.cut, Denied: c.Count, AtLeast: c.Count - c.Excess}
		if c.Label.hashed {
			v.HashedKey = c.Label.text
		} else {
			key := url.PathEscape(c.Label.text)
			v.Key = &key
		}
		list = append(list, v)
	}
	return list, nil
}

// fractionalSeconds returns a span of time in seconds.
func fractionalSeconds(span algorithms.Micros) float64 { return float64(span) / 1e6 }
