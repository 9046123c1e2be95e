package limiter

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/httpfields"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// PlaceholderPrefix is the beginning of the names of all placeholders. The placeholder of just
// this name holds the outermost limiter's state of a request.
const PlaceholderPrefix = keys.OwnPrefix

// String makes {http.rate_limit} the empty text. Only limiters use its value.
func (*State) String() string { return "" }

// lookUpPlaceholder returns the value of {http.rate_limit.exceeded.<field>}, of
// {http.rate_limit.<zone>.<field>}, of {http.rate_limit.instant} or of {http.rate_limit.request.<value>}, and whether
// there is a placeholder of this name. It is called on the outermost state, and looks into the states of all
// limiters. The values of a zone that doesn't limit the request are empty.
func (state *State) lookUpPlaceholder(name string) (value any, ok bool) {
	rest, ok := strings.CutPrefix(name, PlaceholderPrefix)
	dot := strings.LastIndexByte(rest, '.')
	switch {
	case !ok:
		return nil, false
	case rest == "":
		return state, true
	case rest == ".instant":
		return state.instant(), true
	case rest == ".request.basic_user" && len(state.header["Authorization"]) > 1: // programs read one or the other
		return "", true
	case rest == ".request.basic_user":
		user, _, _ := (&http.Request{Header: state.header}).BasicAuth()
		return user, true
	case strings.HasPrefix(rest, ".request."):
		return state.lookUpBody(name)
	case dot < 1 || rest[0] != '.':
		return nil, false
	}
	zone, field := rest[1:dot], rest[dot+1:]
	if zone == "exceeded" {
		return state.exceededField(field)
	}
	for s := state.innermost; s != nil; s = s.outer {
		for i := range s.Entries {
			if e := &s.Entries[i]; e.Zone.Name == zone && s.Decided {
				if field == "charged" {
					if events, asked := state.chargedIn(zone); asked {
						return events, true // a number, so that logs have a number
					}
					return "", true
				}
				return e.placeholderField(field)
			}
		}
	}
	if slices.Contains(keys.ZoneFields, field) {
		return "", true
	}
	return nil, false
}

// instant returns when the store decided the request in the first limiter that has zones for it, in
// microseconds since the Unix epoch. It is a number, so that logs have a number. If the keys of the
// limiter's zones are on several nodes of a cluster, it is the latest instant. It is empty if no store
// decided, and if the request waited for a slot, because then it says nothing about when it came.
func (state *State) instant() any {
	at := algorithms.Micros(0)
	for s := state.innermost; s != nil; s = s.outer {
		if !s.Decided || len(s.Entries) == 0 {
			continue
		}
		at = 0
		for i := range s.Entries {
			e := &s.Entries[i]
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

// exceededField returns the value of a field about the denial of the request, and whether there is such a field. All
// fields are empty if no zone denied the request. Of several denials the last one counts: a limiter in error routes can
// deny the request again. No value is a text that a client can choose, because the values become part of error pages.
func (state *State) exceededField(field string) (value any, ok bool) {
	denied := state.innermost
	for denied != nil && denied.denying == nil {
		denied = denied.outer
	}
	if denied == nil {
		return "", slices.Contains(keys.DenialFields, field)
	}
	e := denied.denying
	switch field {
	case "name":
		return e.Zone.Name, true
	case "limit", "remaining":
		return e.exceededLimit(field), true
	case "retry_after":
		return httpfields.FormatRetryAfter(denied.retryAfter), true
	case "reason":
		return e.ClientReason(), true
	case "id":
		return denied.denialID, true
	}
	return nil, false
}

// exceededLimit returns how much the limit that denied the request grants, or what remains of it. It is empty for a ban.
func (e *Entry) exceededLimit(field string) string {
	reason, limit := e.DenialReason()
	switch {
	case e.IsBanned():
		return ""
	case reason == store.DeniedByConcurrency:
		limit = len(e.Limits)
	}
	d, quota := e.decisionOf(limit)
	if field == "limit" {
		return strconv.FormatInt(quota, 10)
	}
	return strconv.FormatInt(d.Remaining, 10)
}

// placeholderField returns the value of a field of the zone, and whether there is such a field.
func (e *Entry) placeholderField(field string) (value any, ok bool) {
	d, quota := e.tightestOf(len(e.Limits) + 1)
	if d.NotAsked && (!e.Denies() || field != "retry_after" && field != "allowed" && field != "banned") {
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
		if wait := e.RetryAfter(); wait > 0 && wait < algorithms.Forever {
			return strconv.FormatInt(httpfields.Seconds(wait), 10), true
		}
		return "", true
	case "allowed":
		return strconv.FormatBool(!e.Denies()), true
	case "banned":
		return strconv.FormatBool(e.IsBanned()), true
	}
	return nil, false
}
