package limiter

import (
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
)

// This file warns of zones that decide by a placeholder before it has its value. It also warns of zones that count failed
// logins, but stand behind the login.

// The prefixes of placeholders that later handlers can set. Authentication sets UserPrefix.
// forward_auth, for example, sets FieldPrefix.
const (
	UserPrefix  = "http.auth."
	FieldPrefix = "http.request.header."
)

// lateKind is a kind of placeholders that later handlers can set.
type lateKind int

// The kinds of late placeholders. Only requests show whether a later handler sets header fields.
const (
	lateUser lateKind = iota
	lateOutcome
	lateField
	notLate
)

var latePrefixes = [notLate][]string{
	lateUser:    {UserPrefix},
	lateOutcome: {"http.error.", "http.intercept.", "http.response.", "http.reverse_proxy.", keys.OwnPrefix + ".response."},
	lateField:   {FieldPrefix},
}

// message returns the warning of a placeholder.
func (p LatePlaceholder) message() string {
	switch kindOf(p.Name) {
	case lateUser:
		return "a zone uses a placeholder of the user, who is not known yet when rate_limit decides, " +
			"so the placeholder is empty, and requests that fail to authenticate are charged, too: " +
			"write order rate_limit after basic_auth (or after the directive that authenticates) in the global options, " +
			"or both directives in this order into a route block (said once)"
	case lateOutcome:
		return "a zone uses a placeholder of the outcome of the request, which is not known yet when rate_limit decides, " +
			"so the placeholder is empty: " + p.insteadOfOutcome() + " (said once)"
	default:
		return "a handler behind rate_limit sets a header field that a zone decides by, so clients can choose its value: " +
			"write order rate_limit after forward_auth (or after the directive that sets it) in the global options (said once)"
	}
}

// insteadOfOutcome returns what to write instead of a placeholder of the outcome.
func (p LatePlaceholder) insteadOfOutcome() string {
	switch p.Option {
	case "cost":
		return "write settle { cost {http.response.header.X-Cost} } instead, with the placeholder that you mean"
	case "factor", "key", "plan":
		return "write a placeholder of the request instead, such as {http.request.header.X-Plan}, " +
			"because the outcome can't choose the " + p.Option
	}
	return "write settle { match status 401 } instead, with the status that you mean"
}

// kindOf returns the kind of a placeholder.
func kindOf(placeholder string) lateKind {
	isOfKind := func(prefix string) bool { return strings.HasPrefix(placeholder+".", prefix) }
	for kind, prefixes := range latePrefixes {
		if slices.ContainsFunc(prefixes, isOfKind) {
			return lateKind(kind)
		}
	}
	return notLate
}

// IsLate reports whether later handlers can set a placeholder.
func IsLate(placeholder string) bool { return kindOf(placeholder) != notLate }

// LatePlaceholder is a placeholder in the text of a zone's option, or in a matcher.
type LatePlaceholder struct{ Option, Name string }

const (
	// maxLateChecks bounds the checks of placeholders that later handlers leave unchanged. A check
	// that finds a value takes unchangedLateCost from this number.
	maxLateChecks = 1000 * unchangedLateCost
	// unchangedLateCost is how many checks of an empty placeholder count as much as one check of a
	// set one. Empty ones say less, because a later handler may set the placeholder for few
	// requests only.
	unchangedLateCost = 100
)

// inBraces matches a placeholder in the JSON of a matcher.
var inBraces = regexp.MustCompile(`\{([^{}"\s]+)\}`)

// lateInMatchers returns the placeholders in matchers that later handlers can set, except header fields.
func lateInMatchers(option string, sets caddyhttp.MatcherSets) (late []LatePlaceholder) {
	for _, set := range sets {
		for _, matcher := range set {
			if not, is := matcher.(*caddyhttp.MatchNot); is { // whose JSON is empty once it is loaded
				late = append(late, lateInMatchers(option, not.MatcherSets)...)
				continue
			}
			text, _ := json.Marshal(matcher) // a matcher that has no JSON has no placeholders that are known
			for _, found := range inBraces.FindAllStringSubmatch(string(text), -1) {
				name, _ := keys.ExpandShorthand(found[1])
				if kind := kindOf(name); kind == lateUser || kind == lateOutcome {
					late = append(late, LatePlaceholder{option, name})
				}
			}
		}
	}
	return late
}

// Place is where a limiter is in the routes of a server.
type Place struct {
	Matchers caddyhttp.MatcherSets // of the routes around the limiter
	// IsEmpty reports whether a placeholder of the user, or of the outcome, is empty when the limiter decides, and is set
	// later. partly is true for a zone that only some requests belong to.
	IsEmpty func(placeholder string, partly bool) bool
	// IsBehindLogin reports whether all requests that matchers match have passed a handler that answers failed logins.
	IsBehindLogin func(matchers caddyhttp.MatcherSets) bool
}

// WarnOfPlace warns of the limiter's zones that decide by a placeholder that is empty at this place. It also warns of zones
// that count failed logins behind the login.
func (l *Limiter) WarnOfPlace(place Place) {
	for _, z := range l.Zones {
		if z.lateChecksLeft.Load() <= 0 {
			continue
		}
		all := slices.Concat(z.latePlaceholders, lateInMatchers("match", z.Matchers), lateInMatchers("exempt", z.Exempt),
			lateInMatchers("matcher of rate_limit", place.Matchers))
		var late []LatePlaceholder // at most one of each kind
		for kind := range lateField {
			i := slices.IndexFunc(all, func(p LatePlaceholder) bool { return kindOf(p.Name) == kind && z.isEmpty(p, place, l.Shared) })
			if i >= 0 {
				late = append(late, all[i])
			}
		}
		missesLogins := z.Settle.countsFailedLogins() && place.IsBehindLogin(z.Matchers)
		if len(late) == 0 && !missesLogins || z.lateChecksLeft.Swap(0) <= 0 {
			continue
		}
		for _, p := range late {
			z.warnOfLate(p)
		}
		if missesLogins {
			z.Logger.Warn("a zone counts responses with status 401, but never those of the login handler before rate_limit: "+
				"to count them, write rate_limit before basic_auth or forward_auth, in a route block or without the global option order; "+
				"if the zone counts logins of the next handler, leave all as it is (said once)",
				zap.String("zone", z.Name))
		}
	}
}

// isEmpty reports whether a placeholder by which the zone decides is empty. It isn't if the routes define it, or if the
// key has an alternative without such a placeholder.
func (z *Zone) isEmpty(p LatePlaceholder, place Place, shared *Configuration) bool {
	isEarly := func(t keys.Template) bool {
		names, _ := keys.Placeholders(t.Text) // checked before
		return !slices.ContainsFunc(names, func(name string) bool { return kindOf(name) == kindOf(p.Name) })
	}
	if p.Option == "key" && slices.ContainsFunc(z.Keys, isEarly) || shared.DefinesPlaceholder(p.Name) {
		return false
	}
	inZone := slices.Contains(z.latePlaceholders, p) // and not in a matcher, which all requests meet
	return place.IsEmpty(p.Name, inZone && len(z.Matchers) > 0)
}

func (z *Zone) warnOfLate(p LatePlaceholder) {
	z.Logger.Warn(p.message(),
		zap.String("zone", z.Name), zap.String("option", p.Option), zap.String("placeholder", "{"+p.Name+"}"))
}

// earlyValue is the value of a placeholder before the later handlers run.
type earlyValue struct {
	Zone  *Zone
	From  *LatePlaceholder
	Value string
}

// watchLatePlaceholders returns next, wrapped to compare the late placeholders before and after
// it. Denied requests never reach next.
func (state *State) watchLatePlaceholders(next caddyhttp.Handler, repl *caddy.Replacer) caddyhttp.Handler {
	if state.watchedZones == 0 {
		return next
	}
	var before []earlyValue
	for i, z := range state.Limiter.Zones {
		if state.watchedZones>>i&1 == 0 {
			continue
		}
		for n := range z.latePlaceholders {
			value, _ := repl.GetString(z.latePlaceholders[n].Name)
			before = append(before, earlyValue{z, &z.latePlaceholders[n], value})
		}
	}
	return caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
		defer warnOfLatePlaceholders(before, repl)
		return next.ServeHTTP(w, r)
	})
}

// warnOfLatePlaceholders warns of zones that decide by a placeholder that a later handler has set.
// It doesn't warn if a handler removes a header field, because handlers often remove credentials.
func warnOfLatePlaceholders(before []earlyValue, repl *caddy.Replacer) {
	for _, e := range before {
		z, name := e.Zone, e.From.Name
		value, _ := repl.GetString(name)
		switch {
		case z.lateChecksLeft.Load() <= 0:
		case value == "":
			z.lateChecksLeft.Add(-1)
		case value == e.Value:
			z.lateChecksLeft.Add(-unchangedLateCost)
		case z.lateChecksLeft.Swap(0) <= 0: // another request was faster
		default:
			z.warnOfLate(*e.From)
		}
	}
}
