package ratelimit

import (
	"bytes"
	"slices"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/bodies"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/routes"
)

// This file warns of settings that are valid, but can't mean what they say.

// warnOfSettings warns of settings that limit other requests than they seem to, or have no effect.
func (z *liveZone) warnOfSettings() {
	if pair := matchersOfOneBlock(z.config.MatcherSetsRaw); pair != nil {
		z.Logger.Warn("a request belongs to a zone if one match of the zone matches it, "+
			"and one of these two matchers alone matches most requests: "+
			"if a request must match both, write both in one block, match { ... }",
			zap.String("zone", z.Name), zap.Strings("matchers", pair))
	}
	if pair := matchersOfOneBlock(z.config.ExemptRaw); pair != nil {
		z.Logger.Warn("a request is exempt if one exempt of the zone matches it, "+
			"and one of these two matchers alone matches most requests: "+
			"if a request must match both, write both in one block, exempt { ... }",
			zap.String("zone", z.Name), zap.Strings("matchers", pair))
	}
	if l := z.limitBelowCost(); l != nil {
		z.Logger.Warn("each request costs more than a limit of its zone ever allows, so the zone denies them all: "+
			"write a lower cost, or a limit with more events or a larger burst",
			zap.String("zone", z.Name), zap.Int64("cost", z.FixedCost), zap.Stringer("limit", l))
	}
	if option := z.optionThatIs0(); option != "" {
		z.Logger.Warn("the limits of a zone deny no request, because its factor or cost is always 0: "+
			"write a number above 0, or leave the option out",
			zap.String("zone", z.Name), zap.String("option", option))
	}
	if z.ignoresKeyCase() {
		z.Logger.Warn("key_case changes no key, because the keys of the zone are addresses, or have no placeholder: leave it out",
			zap.String("zone", z.Name))
	}
	if !z.config.readsBody() && (z.config.MaxBody != nil || z.config.BodyTimeout != 0) {
		z.Logger.Warn("max_body and body_timeout have no effect, because the zone reads no body: leave them out, "+
			"or use a placeholder such as {http.rate_limit.request.json.user}",
			zap.String("zone", z.Name))
	}
	if z.BanLookup != nil && !slices.Contains(z.BodyNeeds.Keys, 0) {
		z.Logger.Warn("scope handler of ban has no effect, because the key is from the body, "+
			"which is read only for requests of the zone: leave it out, or use another key",
			zap.String("zone", z.Name))
	}
	if z.config.matchesBody() {
		z.Logger.Warn("a matcher of the zone has a value of the request's body, but matchers don't read bodies: "+
			"unless a rate_limit directive before has read it, the value is empty",
			zap.String("zone", z.Name))
	}
	if i := slices.IndexFunc(z.config.Key, isZoneOption); i >= 0 {
		z.Logger.Warn("a value of key is the name of an option of the zone, which stands on the line of key by mistake: "+
			"write the option on its own line, or the value in quotes with another one",
			zap.String("zone", z.Name), zap.String("value", z.config.Key[i]))
		return
	}
	for _, t := range z.Keys[:max(len(z.Keys)-1, 0)] {
		if neverEmpty(&t) {
			z.Logger.Warn("a value of key is never empty, so the values behind it are never used: "+
				"write all of them in quotes to make one key of them",
				zap.String("zone", z.Name), zap.String("value", keys.Shorten(t.Text)))
		}
	}
}

func isZoneOption(name string) bool { return slices.Contains(zoneOptions(), name) }

// isWide reports whether a matcher matches most requests of a site.
func isWide(name string, matcher []byte) bool {
	switch name {
	case "method":
		return bytes.Contains(matcher, []byte(`"GET"`)) || bytes.Contains(matcher, []byte(`"POST"`))
	case "protocol":
		return !slices.Contains([]string{`"grpc"`, `"http/1.0"`}, string(matcher))
	}
	return name == "not" || name == "tls"
}

// matchersOfOneBlock returns two matchers, each alone in a match or exempt, that were probably meant
// to be in one block. It returns nil if there are none. Of two alternatives that differ, a wide matcher leaves
// little for the other one. Of two nots, each matches the requests that the other leaves out.
func matchersOfOneBlock(sets caddyhttp.RawMatcherSets) []string {
	type lone struct {
		name string
		wide bool
	}
	var alone []lone
	for _, set := range sets {
		for name, matcher := range set {
			if len(set) == 1 {
				alone = append(alone, lone{name, isWide(name, matcher)})
			}
		}
	}
	for i, one := range alone {
		for j, other := range alone {
			if i != j && one.wide && (other.name != one.name || other.name == "not") {
				return []string{one.name, other.name}
			}
		}
	}
	return nil
}

// matchesBody reports whether a matcher of the zone has a value of a body.
func (c *Zone) matchesBody() bool {
	for _, set := range slices.Concat(c.MatcherSetsRaw, c.ExemptRaw) {
		for _, matcher := range set {
			if bytes.Contains(matcher, []byte(bodies.JSONPrefix)) || bytes.Contains(matcher, []byte(bodies.FormPrefix)) {
				return true
			}
		}
	}
	return false
}

// limitBelowCost returns a limit, of the zone or of a plan, that denies each request because of its
// cost. It returns nil if there is none.
func (z *liveZone) limitBelowCost() *algorithms.Limit {
	if z.Mode != algorithms.Binary && z.Mode != algorithms.Uniform {
		return nil
	}
	for _, set := range z.SetsWithoutOverrides() {
		for _, l := range set.Limits {
			if z.FixedCost > l.Burst && !l.Algorithm().BinaryOnly {
				return l
			}
		}
	}
	return nil
}

// optionThatIs0 returns the option that lets all requests pass the limits, or "".
func (z *liveZone) optionThatIs0() string {
	switch {
	case z.Factor == "0":
		return "factor"
	case z.Cost == nil && z.FixedCost == 0:
		return "cost"
	}
	return ""
}

// neverEmpty reports whether all placeholders of the text have a value in every request.
func neverEmpty(t *keys.Template) bool {
	names, _ := keys.Placeholders(t.Text) // checked before
	always := []string{keys.ClientAddress, keys.RemoteHost, keys.RemoteAddress, "http.request.method", "http.request.uri.path"}
	return !slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(always, name) })
}

// warnOfCalendars warns of calendars in memory.
func (h *Handler) warnOfCalendars(zones []*liveZone) {
	if h.storeName() != "memory" {
		return
	}
	for _, z := range zones {
		for _, set := range z.Sets() {
			if set.HasCalendar() {
				z.Logger.Warn("a calendar in memory begins again when Caddy restarts: write redis <host:port> to keep it",
					zap.String("zone", z.Name), zap.String("limits", set.Describe()))
				break
			}
		}
	}
}

// warnOfAddresses warns of zones in which one client can have many keys.
func (h *Handler) warnOfAddresses(zones []*liveZone) {
	var names []string
	for _, z := range zones {
		if z.ManyKeysPerClient {
			names = append(names, z.Name)
		}
	}
	if names != nil {
		h.logger.Warn("the keys of zones are addresses, and over IPv6 one client has more of them than can be counted: "+
			"write ipv6_prefix 64, or 128 for single addresses",
			zap.Strings("zones", names))
	}
}

// warnOfOrder warns of zones that the routes show to stand before or behind another handler by mistake. If the routes
// don't show the order, the limiter may find it at the first requests.
func (a *App) warnOfOrder() {
	if app, err := a.ctx.AppIfConfigured("http"); err == nil && len(a.zonesByName) > 0 {
		for _, server := range app.(*caddyhttp.App).Servers {
			routes.WarnOfOrder(server)
		}
	}
}
