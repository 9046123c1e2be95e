package ratelimit

import (
	"slices"
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

// lookUpPlaceholder returns the value of {http.rate_limit.exceeded.<field>}, of
// {http.rate_limit.<zone>.<field>} or of {http.rate_limit.instant}, and whether there is a placeholder of
// this name. It is called on the outermost state, and looks into the states of all handlers. If a zone of
// the configuration doesn't limit the request, its values are empty.
func (state *requestState) lookUpPlaceholder(name string) (value any, ok bool) {
	rest, ok := strings.CutPrefix(name, placeholderPrefix)
	if !ok {
		return nil, false
	}
	if rest == "" {
		return state, true
	}
	if name == placeholderPrefix+".instant" {
		return state.instant(), true
	}
	if strings.HasPrefix(rest, ".request.") {
		return state.lookUpBody(name)
	}
	dot := strings.LastIndexByte(rest, '.')
	if dot < 1 || rest[0] != '.' {
		return nil, false
	}
	zone, field := rest[1:dot], rest[dot+1:]
	if zone == "exceeded" {
		return state.exceededField(field)
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

// instant returns when the store decided the request in the first handler that limits it, in
// microseconds since the Unix epoch. It is a number, so that logs have a number. If the keys of the
// handler's zones are on several nodes of a cluster, it is the latest instant. It is empty if no store
// decided, and if the request waited for a slot, because then it says nothing about when it came.
func (state *requestState) instant() any {
	at := algorithms.Micros(0)
	for s := state.innermost; s != nil; s = s.outer {
		if !s.decided || len(s.entries) == 0 {
			continue
		}
		at = 0
		for i := range s.entries {
			e := &s.entries[i]
			if e.waited {
				at = 0
				break
			}
			at = max(at, e.Outcome.At)
		}
	}
	if at == 0 {
		return ""
	}
	return at
}

// exceededField returns the value of a field about the denial of the request, and whether there is
// such a field. All fields are empty if no zone denied the request.
func (state *requestState) exceededField(field string) (value any, ok bool) {
	x := state.exceeded()
	switch field {
	case "name":
		return x.name, true
	case "limit":
		return x.limit, true
	case "remaining":
		return x.remaining, true
	case "retry_after":
		return x.retryAfter, true
	case "reason":
		return x.reason, true
	case "id":
		return x.id, true
	}
	return nil, false
}

// exceeded describes the denial of a request. It has no text that a client can choose, because
// the texts become part of error pages.
type exceeded struct{ name, limit, remaining, retryAfter, reason, id string }

// exceeded returns the denial of the request. Of several denials that is the last one: a handler in
// error routes can deny the request again. A ban leaves limit and remaining empty.
func (state *requestState) exceeded() (x exceeded) {
	denied := state.innermost
	for denied != nil && denied.denying == nil {
		denied = denied.outer
	}
	if denied == nil {
		return x
	}
	e := denied.denying
	x.name, x.reason, x.retryAfter = e.zone.name, e.clientReason(), httpfields.FormatRetryAfter(denied.retryAfter)
	x.id = denied.denialID
	quota, remaining := int64(0), int64(0)
	switch reason, n := e.denialReason(); reason {
	case reasonLimit:
		quota = e.Limits[n].Burst
		remaining = min(e.Outcome.Decisions[n].Remaining, quota) // smooth grants one more
	case reasonConcurrency:
		quota, remaining = e.Slots.Limit, e.slotsDecision().Remaining
	}
	if x.reason != reasonBan {
		x.limit, x.remaining = strconv.FormatInt(quota, 10), strconv.FormatInt(remaining, 10)
	}
	return x
}

// emptyPlaceholderField returns the value of a field of a zone that doesn't limit the request.
func emptyPlaceholderField(field string) (value any, ok bool) {
	if slices.Contains(zoneFields, field) {
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
