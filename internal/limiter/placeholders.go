package limiter

import (
	"slices"
	"strconv"
	"strings"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/denials"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/httpfields"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
)

// PlaceholderPrefix is the beginning of the names of all placeholders. The placeholder of just
// this name holds the outermost limiter's state of a request.
const PlaceholderPrefix = keys.OwnPrefix

// String makes {http.rate_limit} the empty text. Only limiters use its value.
func (*State) String() string { return "" }

// lookUpPlaceholder returns the value of {http.rate_limit.exceeded.<field>}, of
// {http.rate_limit.<zone>.<field>} or of {http.rate_limit.instant}, and whether there is a placeholder of
// this name. It is called on the outermost state, and looks into the states of all limiters. If a zone of
// the configuration doesn't limit the request, its values are empty.
func (state *State) lookUpPlaceholder(name string) (value any, ok bool) {
	rest, ok := strings.CutPrefix(name, PlaceholderPrefix)
	if !ok {
		return nil, false
	}
	if rest == "" {
		return state, true
	}
	if name == PlaceholderPrefix+".instant" {
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
	if state.Limiter.Shared.HasZone(zone) && slices.Contains(keys.ZoneFields, field) {
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

// exceededField returns the value of a field about the denial of the request, and whether there is
// such a field. All fields are empty if no zone denied the request.
func (state *State) exceededField(field string) (value any, ok bool) {
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

// exceeded returns the denial of the request. Of several denials that is the last one: a limiter in
// error routes can deny the request again. A ban leaves limit and remaining empty.
func (state *State) exceeded() (x exceeded) {
	denied := state.innermost
	for denied != nil && denied.denying == nil {
		denied = denied.outer
	}
	if denied == nil {
		return x
	}
	e := denied.denying
	x.name, x.reason, x.retryAfter = e.Zone.Name, e.clientReason(), httpfields.FormatRetryAfter(denied.retryAfter)
	x.id = denied.denialID
	quota, remaining := int64(0), int64(0)
	switch reason, n := e.DenialReason(); reason {
	case denials.ReasonLimit:
		quota = e.Limits[n].Burst
		remaining = min(e.Outcome.Decisions[n].Remaining, quota) // smooth grants one more
	case denials.ReasonConcurrency:
		quota, remaining = e.Slots.Limit, e.SlotsDecision().Remaining
	}
	if x.reason != denials.ReasonBan {
		x.limit, x.remaining = strconv.FormatInt(quota, 10), strconv.FormatInt(remaining, 10)
	}
	return x
}

// placeholderField returns the value of a field of the zone, and whether there is such a field.
func (e *Entry) placeholderField(field string) (value any, ok bool) {
	d, quota := e.tightestLimit()
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
