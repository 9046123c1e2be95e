package limiter

import (
	"net/http"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/placeholder"
)

// This file warns about zones that decide by a placeholder before it has its value: a handler after rate_limit sets it.
// Only requests show this for certain, because matchers choose the handlers of each request.

// The prefixes of placeholders that later handlers can set.
const (
	UserPrefix  = "http.auth."           // authentication sets it
	FieldPrefix = "http.request.header." // forward_auth, for example, sets it
)

// An empty value says less than one that stays as it is, because a later handler may set it for few requests only. So
// the latter counts as much as setCost checks of maxLateChecks.
const (
	setCost       = 100
	maxLateChecks = 1000 * setCost
)

// isLate reports whether a later handler can set a placeholder so that a zone decides wrongly. Handlers may well change
// the header fields that a matcher looks at.
func isLate(use placeholder.Use) bool {
	return strings.HasPrefix(use.Name, UserPrefix) || strings.HasPrefix(use.Name, FieldPrefix) && !use.InMatcher
}

// watchedPlaceholder is a late placeholder of a zone, and its value before the later handlers run.
type watchedPlaceholder struct {
	zone  *Zone
	use   placeholder.Use
	value string
}

// watchLatePlaceholders returns next, wrapped to compare the late placeholders of the request's zones before and after it.
// A placeholder in a matcher may be the reason why a request doesn't match. Denied requests never reach next.
func (state *State) watchLatePlaceholders(next caddyhttp.Handler, repl *caddy.Replacer) caddyhttp.Handler {
	var watched []watchedPlaceholder
	for i, z := range state.Limiter.Zones {
		if z.lateChecksLeft.Load() <= 0 {
			continue
		}
		for _, use := range z.late {
			if state.matched>>i&1 == 1 || use.InMatcher {
				value, _ := repl.GetString(use.Name)
				watched = append(watched, watchedPlaceholder{z, use, value})
			}
		}
	}
	if watched == nil {
		return next
	}
	return caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
		defer func() {
			for _, p := range watched {
				p.compare(repl)
			}
		}()
		return next.ServeHTTP(w, r)
	})
}

// compare warns if a later handler has set the placeholder. Handlers often remove credentials, so an empty value is
// no reason to warn.
func (p watchedPlaceholder) compare(repl *caddy.Replacer) {
	switch value, _ := repl.GetString(p.use.Name); {
	case value == "":
		p.zone.lateChecksLeft.Add(-1)
	case value == p.value:
		p.zone.lateChecksLeft.Add(-setCost)
	case p.zone.lateChecksLeft.Swap(0) <= 0: // another request was faster
	default:
		p.zone.Logger.Warn(p.message(),
			zap.String("zone", p.zone.Name), zap.String("option", p.use.Option), zap.String("placeholder", "{"+p.use.Name+"}"))
	}
}

func (p watchedPlaceholder) message() string {
	if strings.HasPrefix(p.use.Name, UserPrefix) {
		return "a zone uses a placeholder of the user, who is not known yet when rate_limit decides, " +
			"so the placeholder is empty, and requests that fail to authenticate are charged, too: " +
			"write order rate_limit after basic_auth (or after the directive that authenticates) in the global options, " +
			"or both directives in this order into a route block (logged once)"
	}
	return "a handler after rate_limit sets a header field that a zone decides by, so clients can choose its value: " +
		"write order rate_limit after forward_auth (or after the directive that sets it) in the global options (logged once)"
}
