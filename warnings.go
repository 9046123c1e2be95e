package ratelimit

import (
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/placeholder"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/routes"
)

// This file warns about settings that are valid, but can't mean what they say.

// warnOfCosts warns about a zone that denies each request because of its cost, or none, and about a weight without effect.
func (z *liveZone) warnOfCosts() {
	if z.Factor == "0" || z.Cost == nil && z.FixedCost == 0 {
		z.Logger.Warn("the limits of a zone deny no request, because its factor or cost is always 0: "+
			"write a number above 0, or leave the option out", zap.String("zone", z.Name))
	}
	if s := z.config.Share; s != nil && s.Weight != "" && !s.Weight.varies() {
		z.Logger.Warn("weight is the same for all tenants of a zone, so it has no effect: "+
			"write a placeholder, such as {http.auth.user.weight}, or leave weight out", zap.String("zone", z.Name))
	}
	if z.Mode != algorithms.Binary && z.Mode != algorithms.Uniform {
		return
	}
	for _, set := range z.SetsWithoutOverrides() {
		for _, l := range set.Limits {
			if z.FixedCost > l.Burst && !l.Algorithm().BinaryOnly {
				z.Logger.Warn("each request costs more than a limit of its zone ever allows, so the zone denies them all: "+
					"write a lower cost, or a limit with more events or a larger burst",
					zap.String("zone", z.Name), zap.Int64("cost", z.FixedCost), zap.Stringer("limit", l))
				return
			}
		}
	}
}

// warnOfCalendars warns about calendars in memory.
func (z *liveZone) warnOfCalendars() {
	for _, set := range z.Sets() {
		if z.Identity.Store == "memory" && set.HasCalendar() {
			z.Logger.Warn("a calendar in memory begins again when Caddy restarts: write redis <host:port> to keep it",
				zap.String("zone", z.Name), zap.Strings("limits", set.LimitTexts()))
			return
		}
	}
}

// unsurePlaceholder is a placeholder of a zone that only routes or plugins may define.
type unsurePlaceholder struct {
	zone string
	placeholder.Use
}

// warnOfRoutes warns about placeholders that are always empty, because the routes don't define them, or because there is no
// response yet, and about keys that clients make up. All routes are loaded by then. Routes inside other handlers can define
// more, so this is no error.
func (a *App) warnOfRoutes() {
	app, err := a.ctx.AppIfConfigured("http")
	if err != nil || len(a.zonesByName) == 0 {
		return
	}
	defined := make(map[string]bool)
	for _, server := range app.(*caddyhttp.App).Servers {
		survey := &routes.Survey{Named: server.NamedRoutes, Defined: defined}
		survey.Add(server.Routes, nil, "")
		for _, at := range survey.RateLimits {
			for _, z := range at.RateLimit.(*Handler).zones {
				if z.limitsAddresses() {
					survey.AddCheck(at.Path + routes.PathOf(z.Matchers))
				}
			}
		}
		for _, at := range survey.RateLimits {
			warnOfOutcome(at)
			warnOfMadeUpKeys(at, survey)
		}
		if server.Errors != nil { // where the outcome is known
			survey.Add(server.Errors.Routes, nil, "")
		}
	}
	for _, use := range a.unsure {
		if defined[use.Name] {
			continue
		}
		a.logger.Warn("a zone has a placeholder that neither Caddy nor this configuration provides: "+
			"unless a plugin provides it, it is always empty"+use.Suggestion(),
			zap.String("zone", use.zone), zap.String("option", use.Option), zap.String("placeholder", "{"+use.Name+"}"))
	}
}

// warnOfMadeUpKeys warns about the zones of a handler with a value in their keys or tenants that only clients choose. It does
// not warn if the routes may check the value, if the response decides what is charged, or if another zone limits these addresses.
func warnOfMadeUpKeys(at routes.Placed, survey *routes.Survey) {
	for _, z := range at.RateLimit.(*Handler).zones {
		mayCheck := func(value string) bool { return survey.MayCheck(at.Path+routes.PathOf(z.Matchers), value) }
		texts := z.KeyTexts()
		if s := z.config.Share; s != nil {
			texts = append(texts, s.By, string(s.Weight))
		}
		name := limiter.MadeUpValue(texts, mayCheck)
		if name == "" || z.source.warnedOfKey || z.config.Settle != nil && z.config.Settle.Match != nil {
			continue
		}
		z.source.warnedOfKey = true
		z.Logger.Warn("the key or the tenant of a zone is a value that only clients choose: nothing here checks it in all these requests, "+
			"so a client gets a new budget, or more slots, for each value that it makes up; "+
			"write one that is known after a check, such as {http.auth.user.id} after basic_auth, or a value of map, "+
			"or add a zone with key {client_ip} and the same match; if a server in front of Caddy checks the value, change nothing",
			zap.String("zone", z.Name), zap.String("placeholder", "{"+name+"}"))
	}
}

// limitsAddresses reports whether the zone counts and denies all its requests, by their addresses alone.
func (z *liveZone) limitsAddresses() bool {
	isOther := func(t keys.Template) bool { return !t.Address }
	return !z.config.Shadow && z.config.Enforce == nil && z.config.Settle == nil && !slices.ContainsFunc(z.Keys, isOther)
}

// warnOfOutcome warns about the zones of a handler that decide by the outcome of a request, or match by its body.
func warnOfOutcome(at routes.Placed) {
	var around []placeholder.Use
	for _, text := range routes.MatcherTexts(at.Around) {
		around = append(around, placeholder.UsesInMatcher("matcher of rate_limit", text)...)
	}
	for _, z := range at.RateLimit.(*Handler).zones {
		if z.source.warned {
			continue
		}
		for _, use := range slices.Concat(z.config.decidingPlaceholders(), around) {
			if p := earlyPlaceholder(use); p.isOutcome() || p.isBody() {
				z.source.warned = true
				z.Logger.Warn(p.message(),
					zap.String("zone", z.Name), zap.String("option", use.Option), zap.String("placeholder", "{"+use.Name+"}"))
				break
			}
		}
	}
}

// earlyPlaceholder is a placeholder that may be empty, because rate_limit decides before it has its value.
type earlyPlaceholder placeholder.Use

// isOutcome reports whether the placeholder has no value before the request has a response. Other placeholders of
// reverse_proxy may have one, because forward_auth sets them.
func (p earlyPlaceholder) isOutcome() bool {
	prefixes := []string{"http.error.", "http.intercept.", "http.response.", "http.reverse_proxy.status_", keys.OwnPrefix + ".response."}
	return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(p.Name, prefix) })
}

// isBody reports whether a matcher has a value of the request's body.
func (p earlyPlaceholder) isBody() bool {
	return p.InMatcher && limiter.BodyKindsOf("{"+p.Name+"}") != 0
}

func (p earlyPlaceholder) message() string {
	if p.isBody() {
		return "a matcher of the zone has a value of the request's body, but matchers don't read bodies: " +
			"unless an earlier rate_limit directive has read it, the value is empty"
	}
	instead := "write settle { match status 401 } instead, with the status that you mean"
	switch {
	case p.Option == "cost":
		instead = "write settle { cost {http.response.header.X-Cost} } instead, with the placeholder that you mean"
	case !p.InMatcher:
		instead = "write a placeholder of the request instead, such as {http.request.header.X-Plan}, " +
			"because the outcome can't choose the " + p.Option
	}
	return "a zone uses a placeholder of the outcome of the request, which is not known yet when rate_limit decides, " +
		"so the placeholder is empty: " + instead + " (logged once)"
}
