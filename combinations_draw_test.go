package ratelimit

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"
)

// comboZone is a random zone, and the facts about it that the test needs.
type comboZone struct {
	name, header string // the header field with the key; empty: the JSON body has it
	settings     map[string]any
	outer        bool
	limit        int64 // of its fixed_window; 0: it has none
	slots        int64
	exact        bool // only the rules of comboZone.charge say what is charged
}

// comboRequest is a random request.
type comboRequest struct {
	in, free []bool // whether it matches, and is exempt from, each zone
	user     string
	cost     int64
	noFactor bool // its factor is 0
	leaves   time.Duration
	runs     time.Duration
	status   int // of the response; 0: the handler panics; -1: it returns an error

	passedOuter, passed bool
}

// drawComboZone draws a zone. Most of its options are independent of each other, so some zones are not
// valid.
func drawComboZone(random *rand.Rand, name string, number int) comboZone {
	one := func(n int) bool { return random.IntN(n) == 0 }
	z := comboZone{name: name, outer: one(2), header: []string{"User", "User", ""}[random.IntN(3)], exact: true}
	set := map[string]any{
		"match":  []any{map[string]any{"header": map[string]any{fmt.Sprint("In-", number): []string{"1"}}}},
		"exempt": []any{map[string]any{"header": map[string]any{fmt.Sprint("Free-", number): []string{"1"}}}},
		"key":    "{http.rate_limit.request.json.user}",
	}
	if z.header != "" {
		set["key"] = "{http.request.header.User}"
	}
	if !one(4) {
		z.limit = 5 + random.Int64N(40)
		limits := []any{map[string]any{"algorithm": "fixed_window", "events": z.limit, "window": "1000h"}}
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
		z.slots = 1 + random.Int64N(3)
		set["concurrency"] = z.slots
		if one(4) {
			delete(set, "limits")
			delete(set, "cost")
			delete(set, "factor")
			z.limit = 0
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
	optional(4, "settle", map[string]any{"match": map[string]any{"status_code": []int{401}}})
	optional(4, "shadow", true)
	if set["shadow"] == nil {
		optional(5, "enforce", 50)
	}
	optional(3, "ban", map[string]any{"duration": "1h", "after": 3, "scope": []string{"zone", "handler"}[random.IntN(2)]})
	z.settings = set
	z.exact = set["runtime_overrides"] == nil && set["shadow"] == nil && set["enforce"] == nil
	return z
}

// belongs reports whether a request is to be decided by the zone.
func (z *comboZone) belongs(r *comboRequest, number int) bool {
	return r.in[number] && !r.free[number] && !(r.noFactor && z.settings["factor"] != nil)
}

// charge returns the least and the most that a request is charged in the zone. In Redis, and in a line of
// delayed requests, the charge of a client that leaves may stay. So it may with settle, before the response.
func (z *comboZone) charge(r *comboRequest, number int, inRedis bool) (least, most int64) {
	passed := r.passed || z.outer && r.passedOuter
	mayStay := r.leaves > 0 && (inRedis || z.settings["delay"] != nil)
	if passed { // the response can be unknown
		mayStay = r.leaves > 0 && z.settings["settle"] != nil && !(r.passed && r.status > 0)
	}
	switch {
	case !z.belongs(r, number) || !z.outer && !r.passedOuter || z.settings["override"] != nil && r.user == "vip":
		return 0, 0
	case z.exact && z.settings["mode"] == "uniform" && z.settings["ban"] == nil && r.leaves == 0:
		return r.cost, r.cost // also if it is denied
	case !z.exact || z.settings["mode"] != nil || mayStay:
		return 0, r.cost
	case !passed || z.settings["settle"] != nil && !(r.passed && r.status == 401):
		return 0, 0
	}
	return r.cost, r.cost
}

// comboConfig is a configuration with two handlers, one around the other.
type comboConfig struct {
	zones        []comboZone
	app          string
	outer, inner string
}

func drawCombo(random *rand.Rand, prefix, options string) comboConfig {
	var c comboConfig
	own := map[bool]map[string]any{true: {}, false: {}}
	shared, names := map[string]any{}, map[bool][]string{}
	for i := range 1 + random.IntN(4) {
		z := drawComboZone(random, fmt.Sprint(prefix, i), i)
		if random.IntN(3) == 0 {
			shared[z.name] = z.settings
			names[z.outer] = append(names[z.outer], z.name)
		} else {
			own[z.outer][z.name] = z.settings
		}
		c.zones = append(c.zones, z)
	}
	text := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		return string(b)
	}
	c.app = `{"rate_limits":` + text(shared) + options + `}`
	handler := func(outer bool) string {
		if len(own[outer]) == 0 && len(names[outer]) == 0 { // it would have all shared zones
			own[outer][fmt.Sprint(prefix, outer)] = map[string]any{"limits": []any{map[string]any{"algorithm": "gcra", "events": 1000, "window": "1ms"}}}
		}
		return text(map[string]any{"rate_limits": own[outer], "zones": names[outer]})
	}
	c.outer, c.inner = handler(true), handler(false)
	return c
}
