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

// zoneView is what operators see of a zone. Limits are as [algorithms.Limit] writes them,
// or "unlimited" alone.
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
	// Of memory, how many keys it holds and may hold, of all zones; of Redis, how many of its
	// nodes fail, and what becomes of requests then.
	Keys         *int64 `json:"keys,omitempty"`
	MaxKeys      int64  `json:"max_keys,omitempty"`
	FailingNodes *int   `json:"failing_nodes,omitempty"`
	OnStoreError string `json:"on_store_error,omitempty"`
	// Requests are the counts by outcome since the process began, of all zones of this name.
	Requests map[string]int64 `json:"requests,omitempty"`
}

type planView struct {
	By     string              `json:"by"`
	Values map[string][]string `json:"values"`
}

// listZones lists the zones of the configuration, by name. Those of one name are one, as far
// as they are the same.
func (a *adminRequest) listZones() (any, error) {
	counts, list := requestCounts(), []zoneView{}
	for _, name := range slices.Sorted(maps.Keys(a.app.zonesByName)) {
		first := len(list)
		for _, z := range a.app.zonesByName[name] {
			if v := z.view(counts[name]); !slices.ContainsFunc(list[first:], func(other zoneView) bool { return reflect.DeepEqual(other, v) }) {
				list = append(list, v)
			}
		}
	}
	return list, nil
}

// view is what operators see of the zone, of whose name there are these counts.
func (z *zone) view(counts map[string]int64) zoneView {
	c, h := z.config, z.handler
	v := zoneView{
		Name: z.name, Key: c.Key, IPv4Prefix: c.IPv4Prefix, IPv6Prefix: c.IPv6Prefix, Limits: z.defaultSet.limitTexts(), Runtime: z.overridable, Concurrency: c.Concurrency,
		Mode: z.mode.String(), Factor: string(c.Factor), Shadow: c.Shadow, Enforce: c.Enforce, Store: z.identity.store,
	}
	if len(v.Key) == 0 {
		v.Key = Key{""}
	}
	if c.Plan != nil {
		v.Plan = &planView{By: c.Plan.By, Values: make(map[string][]string)}
		for value, t := range z.planSets {
			v.Plan.Values[value] = t.limitTexts()
		}
	}
	for key, t := range z.overrides.all {
		if v.Override == nil {
			v.Override = make(map[string][]string)
		}
		v.Override[displayKey(h.hashKeys, key)] = t.limitTexts()
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
		for _, outcome := range outcomeNames {
			v.Requests[outcome] = counts[outcome]
		}
	}
	return v
}

// displayKey is a key as it is shown where keys are hashed with a secret, or with none.
func displayKey(secret, key string) string {
	if secret != "" {
		return redisstore.HashedKey(secret, key)
	}
	return url.PathEscape(key)
}

// limitTexts are the limits as operators read them.
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

// keyView is what operators see of a key.
type keyView struct {
	Zone     string        `json:"zone"`
	Key      string        `json:"key"`             // percent-encoded
	Store    string        `json:"store,omitempty"` // local: Redis fails, and the local budgets answer
	Override *overrideView `json:"override,omitempty"`
	Budgets  []budgetsView `json:"budgets"`
}

// overrideView is the override in force.
type overrideView struct {
	From   string    `json:"from"`            // config or runtime
	Limits []string  `json:"limits"`          // as of a zoneView
	Until  time.Time `json:"until,omitzero"`  // by the clock of who has set it
	Error  string    `json:"error,omitempty"` // why it can't be read, and has no effect
}

// budgetsView are the budgets that a key has by one of the keys of its zone.
type budgetsView struct {
	Alternative int              `json:"alternative,omitempty"` // from 1, if there are several
	Limits      []limitView      `json:"limits"`
	Concurrency *concurrencyView `json:"concurrency,omitempty"`
	Ban         *banView         `json:"ban,omitempty"`
}

type limitView struct {
	Plan      *string `json:"plan,omitempty"`
	Limit     string  `json:"limit"`
	Remaining int64   `json:"remaining"`
	// How long until one event fits: 0 if one does; null if none ever will.
	RetryAfter *float64 `json:"retry_after_seconds"`
	ResetAfter float64  `json:"reset_after_seconds"`
}

type concurrencyView struct {
	Limit int64 `json:"limit"`
	InUse int64 `json:"in_use"`
}

type banView struct {
	Banned bool    `json:"banned"`
	Ends   float64 `json:"ends_after_seconds"`
}

// deniedKeyView is what operators see of a key that has been refused, lately.
type deniedKeyView struct {
	Key       *string `json:"key,omitempty"` // percent-encoded; of hashed ones nil
	Cut       bool    `json:"cut,omitempty"`
	HashedKey string  `json:"hashed_key,omitempty"`
	Refused   int64   `json:"refused"`
	AtLeast   int64   `json:"at_least"`
}

// listTop lists the keys of a zone that this instance has refused most, lately.
func (a *adminRequest) listTop() (any, error) {
	list := []deniedKeyView{}
	for _, c := range a.zones[0].deniedKeys.list(time.Now()) {
		r := deniedKeyView{Cut: c.key.cut, Refused: c.count, AtLeast: c.count - c.over}
		if c.key.hashed {
			r.HashedKey = c.key.text
		} else {
			key := url.PathEscape(c.key.text)
			r.Key = &key
		}
		list = append(list, r)
	}
	return list, nil
}

func exactSeconds(m algorithms.Micros) float64 { return float64(m) / 1e6 }
