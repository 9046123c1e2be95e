package ratelimit

import (
	"strconv"
	"strings"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/httpfields"
)

// placeholderPrefix is the beginning of the names of all placeholders. The placeholder of just
// this name holds the outermost handler's state of a request.
const placeholderPrefix = "http.rate_limit"

// String makes {http.rate_limit} the empty text. Only the handlers use its value.
func (*requestState) String() string { return "" }

// lookUpPlaceholder returns the value of {http.rate_limit.exceeded.name} or of
// {http.rate_limit.<zone>.<field>}, and whether there is a placeholder of this name. It is
// called on the outermost state, and looks into the states of all handlers. If a zone of the
// configuration doesn't limit the request, its values are empty.
func (state *requestState) lookUpPlaceholder(name string) (value any, ok bool) {
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
		for s := state.innermost; s != nil; s = s.outer {
			if s.exceededZone != "" {
				return s.exceededZone, true
			}
		}
		return "", true
	}
	for s := state.innermost; s != nil; s = s.outer {
		for i := range s.entries {
			if e := &s.entries[i]; e.zone.name == zone && s.decided {
				return e.placeholderField(field)
			}
		}
	}
	if app := state.handler.app; app.zonesByName[zone] != nil || app.sharedZones[zone] != nil {
		return emptyPlaceholderField(field)
	}
	return nil, false
}

// emptyPlaceholderField returns the value of a field of a zone that doesn't limit the request.
func emptyPlaceholderField(field string) (value any, ok bool) {
	switch field {
	case "limit", "remaining", "reset", "retry_after", "allowed", "charged", "banned":
		return "", true
	}
	return nil, false
}

// placeholderField returns the value of a field of the zone, and whether there is such a field.
func (e *zoneEntry) placeholderField(field string) (value any, ok bool) {
	d, quota := e.tightestLimit()
	if d.NotAsked && (!e.denies() || field != "retry_after" && field != "allowed" && field != "banned") {
		return "", true // the limits were not asked, for example because a ban denies
	}
	switch field {
	case "limit":
		return strconv.FormatInt(quota, 10), true
	case "remaining":
		return strconv.FormatInt(d.Remaining, 10), true
	case "reset":
		return strconv.FormatInt(httpfields.Seconds(d.ResetAfter), 10), true
	case "retry_after":
		if wait := e.retryAfter(); wait > 0 && wait < algorithms.Forever {
			return strconv.FormatInt(httpfields.Seconds(wait), 10), true
		}
		return "", true
	case "allowed":
		return strconv.FormatBool(!e.denies()), true
	case "charged":
		if len(e.Limits) > 0 { // otherwise d is the slots, and one was charged
			d, _ = e.tightestWithoutSlots()
		}
		return strconv.FormatInt(d.Charged, 10), true
	case "banned":
		return strconv.FormatBool(e.banned()), true
	}
	return nil, false
}
