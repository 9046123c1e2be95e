package ratelimit

import (
	"strconv"
	"strings"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

const placeholderPrefix = "http.rate_limit"

// String makes {http.rate_limit}, by which handlers find each other's answers,
// the empty text.
func (*requestState) String() string { return "" }

// placeholder is the value of {http.rate_limit.exceeded.name} and of
// {http.rate_limit.<zone>.<field>}, asked of the outermost answer. A zone of this
// configuration that was not asked about the request gives the empty text. Other
// names are not ours.
func (state *requestState) placeholder(name string) (any, bool) {
	rest, ok := strings.CutPrefix(name, placeholderPrefix)
	if !ok {
		return nil, false
	}
	if rest == "" {
		return state, true
	}
	dot := strings.LastIndexByte(rest, '.')
	if dot < 1 || rest[0] != '.' {
		return nil, false
	}
	zone, field := rest[1:dot], rest[dot+1:]
	if zone == "exceeded" && field == "name" {
		for one := state.innermost; one != nil; one = one.outer {
			if one.exceededZone != "" {
				return one.exceededZone, true
			}
		}
		return "", true
	}
	for one := state.innermost; one != nil; one = one.outer {
		for i := range one.entries {
			if e := &one.entries[i]; e.zone.name == zone && one.isDecided {
				return e.field(field)
			}
		}
	}
	if state.handler.app.zonesByName[zone] != nil {
		return fieldOfNone(field)
	}
	return nil, false
}

// fieldOfNone is field for a zone that limits nothing of the request.
func fieldOfNone(field string) (any, bool) {
	switch field {
	case "limit", "remaining", "reset", "retry_after", "allowed", "charged", "banned":
		return "", true
	}
	return nil, false
}

func (e *entry) field(field string) (any, bool) {
	if e.limitSet.unlimited {
		return fieldOfNone(field)
	}
	d, quota := e.nearest()
	if d.NotAsked && (!e.denies() || field != "retry_after" && field != "allowed" && field != "banned") {
		return "", true // it was not asked, or a ban denies
	}
	switch field {
	case "limit":
		return strconv.FormatInt(quota, 10), true
	case "remaining":
		return strconv.FormatInt(d.Remaining, 10), true
	case "reset":
		return strconv.FormatInt(seconds(d.ResetAfter), 10), true
	case "retry_after":
		if wait := e.retryAfter(); wait > 0 && wait < algorithms.Forever {
			return strconv.FormatInt(seconds(wait), 10), true
		}
		return "", true
	case "allowed":
		return strconv.FormatBool(!e.denies()), true
	case "charged":
		if len(e.Limits) > 0 { // else the slot
			d, _ = e.nearestLimit()
		}
		return strconv.FormatInt(d.Charged, 10), true
	case "banned":
		return strconv.FormatBool(e.banned()), true
	}
	return nil, false
}
