package caddytest

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// ComboZone is a random zone, and the facts about it that the test needs.
type ComboZone struct {
	Name, header string // the header field with the key; empty: the JSON body has it
	Settings     map[string]any
	Outer        bool
	Limit        int64 // of its fixed_window; 0: it has none
	Slots        int64
	exact        bool // only the rules of comboZone.charge say what is charged
}

// ComboRequest is a random request.
type ComboRequest struct {
	In, Free []bool // whether it matches, and is exempt from, each zone
	User     string
	Cost     int64
	NoFactor bool // its factor is 0
	Leaves   time.Duration
	Runs     time.Duration
	Status   int // of the response; 0: the handler panics; -1: it returns an error

	PassedOuter, Passed bool
}

// drawComboZone draws a zone. Most of its options are independent of each other, so some zones are not
// valid.
func drawComboZone(random *rand.Rand, name string, number int) ComboZone {
	one := func(n int) bool { return random.IntN(n) == 0 }
	z := ComboZone{Name: name, Outer: one(2), header: []string{"User", "User", ""}[random.IntN(3)], exact: true}
	set := map[string]any{
		"match":  []any{map[string]any{"header": map[string]any{fmt.Sprint("In-", number): []string{"1"}}}},
		"exempt": []any{map[string]any{"header": map[string]any{fmt.Sprint("Free-", number): []string{"1"}}}},
		"key":    "{http.rate_limit.request.json.user}",
	}
	if z.header != "" {
		set["key"] = "{http.request.header.User}"
	}
	if !one(4) {
		z.Limit = 5 + random.Int64N(40)
		limits := []any{map[string]any{"algorithm": "fixed_window", "events": z.Limit, "window": "1000h"}}
		if one(3) { // which has no effect for long
			limits = append(limits, map[string]any{"algorithm": "gcra", "events": 1, "window": "1ms", "burst": 3})
		}
		set["limits"] = limits
		set["cost"] = "{http.request.header.Cost}"
	} else {
		set["limits"] = []any{map[string]any{"algorithm": "token_bucket", "events": 1, "window": "5ms", "burst": 2}}
		if one(2) {
			set["factor"] = "{http.request.header.Factor}"
		}
	}
	if one(2) {
		z.Slots = 1 + random.Int64N(3)
		set["concurrency"] = z.Slots
		if one(4) {
			delete(set, "limits")
			delete(set, "cost")
			delete(set, "factor")
			z.Limit = 0
		}
	}
	optional := func(n int, option string, value any) {
		if one(n) {
			set[option] = value
		}
	}
	optional(2, "delay", map[string]any{"max": []string{"10ms", "100ms", "20s"}[random.IntN(3)], "held": 1 + random.IntN(40)})
	if set["delay"] == nil {
		optional(3, "mode", []string{"nary", "uniform", "force"}[random.IntN(3)])
	}
	optional(3, "override", map[string]any{"vip": map[string]any{"unlimited": true}})
	optional(4, "runtime_overrides", true)
	settle := map[string]any{"match": map[string]any{"status_code": []int{401}}}
	if z.Outer {
		settle["cost"] = "{http.response.header.X-Cost}"
	}
	optional(4, "settle", settle)
	optional(4, "shadow", true)
	if set["shadow"] == nil {
		optional(5, "enforce", 50)
	}
	optional(3, "ban", map[string]any{"duration": "1h", "after": 3, "scope": []string{"zone", "handler"}[random.IntN(2)]})
	z.Settings = set
	z.exact = set["runtime_overrides"] == nil && set["shadow"] == nil && set["enforce"] == nil
	return z
}

// Belongs reports whether a request is to be decided by the zone.
func (z *ComboZone) Belongs(r *ComboRequest, number int) bool {
	return r.In[number] && !r.Free[number] && !(r.NoFactor && z.Settings["factor"] != nil)
}

// Charge returns the least and the most that a request is charged in the zone. In Redis, and in a line of
// delayed requests, the charge of a client that leaves may stay. So it may with settle, before the response.
func (z *ComboZone) Charge(r *ComboRequest, number int, inRedis bool) (least, most int64) {
	passed := r.Passed || z.Outer && r.PassedOuter
	mayStay := r.Leaves > 0 && (inRedis || z.Settings["delay"] != nil)
	if passed { // the response can be unknown
		mayStay = r.Leaves > 0 && z.Settings["settle"] != nil && !(r.Passed && r.Status > 0)
	}
	switch {
	case !z.Belongs(r, number) || !z.Outer && !r.PassedOuter || z.Settings["override"] != nil && r.User == "vip":
		return 0, 0
	case z.exact && z.Settings["mode"] == "uniform" && z.Settings["ban"] == nil && r.Leaves == 0:
		return r.Cost, r.Cost // also if it is denied
	case !z.exact || z.Settings["mode"] != nil || mayStay:
		return 0, r.Cost
	case !passed || z.Settings["settle"] != nil && !(r.Passed && r.Status == 401):
		return 0, 0
	case z.Settings["settle"] != nil && z.Outer:
		return r.TrueCost(), r.TrueCost()
	}
	return r.Cost, r.Cost
}

// TrueCost is the cost in the field X-Cost of the response. It is never above Cost, because a limit may have no room for more.
func (r *ComboRequest) TrueCost() int64 { return r.Cost / 2 }

// ComboConfig is a configuration with two handlers, one around the other.
type ComboConfig struct {
	Zones        []ComboZone
	App          string
	Outer, Inner string
}

// DrawCombo draws an app and two handlers, whose zones have names with a prefix.
func DrawCombo(random *rand.Rand, prefix, options string) ComboConfig {
	var c ComboConfig
	own := map[bool]map[string]any{true: {}, false: {}}
	shared, names := map[string]any{}, map[bool][]string{}
	for i := range 1 + random.IntN(4) {
		z := drawComboZone(random, fmt.Sprint(prefix, i), i)
		if random.IntN(3) == 0 {
			shared[z.Name] = z.Settings
			names[z.Outer] = append(names[z.Outer], z.Name)
		} else {
			own[z.Outer][z.Name] = z.Settings
		}
		c.Zones = append(c.Zones, z)
	}
	text := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		return string(b)
	}
	c.App = `{"rate_limits":` + text(shared) + options + `}`
	handler := func(outer bool) string {
		if len(own[outer]) == 0 && len(names[outer]) == 0 { // it would have all shared zones
			limit := map[string]any{"algorithm": "gcra", "events": 1000, "window": "1ms"}
			own[outer][fmt.Sprint(prefix, outer)] = map[string]any{"limits": []any{limit}}
		}
		return text(map[string]any{"rate_limits": own[outer], "zones": names[outer]})
	}
	c.Outer, c.Inner = handler(true), handler(false)
	return c
}

// DrawComboRequest draws a request to so many zones.
func DrawComboRequest(random *rand.Rand, zones int) *ComboRequest {
	r := &ComboRequest{
		User: []string{"a", "a", "a", "b", "vip"}[random.IntN(5)], Cost: random.Int64N(3), NoFactor: random.IntN(6) == 0,
		Runs: time.Duration(random.Int64N(int64(3 * time.Millisecond))), Status: []int{200, 200, 200, 401, 500, 0, -1}[random.IntN(7)],
	}
	for range zones {
		r.In, r.Free = append(r.In, random.IntN(4) > 0), append(r.Free, random.IntN(6) == 0)
	}
	if random.IntN(4) == 0 {
		r.Leaves = time.Duration(1 + random.Int64N(int64(50*time.Millisecond)))
	}
	return r
}

// InRedis reports whether the configuration keeps its budgets in Redis.
func (c *ComboConfig) InRedis() bool { return strings.Contains(c.App, `"redis"`) }
