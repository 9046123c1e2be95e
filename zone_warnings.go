package ratelimit

import (
	"bytes"
	"slices"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// This file warns of settings that are valid, but can't mean what they say.

// warnOfSettings warns of settings that limit other requests than they seem to, or have no effect.
func (z *zone) warnOfSettings() {
	if pair := matchersOfOneBlock(z.config.MatcherSetsRaw); pair != nil {
		z.handler.logger.Warn("a request belongs to a zone if one match of the zone matches it, "+
			"and one of these two matchers alone matches most requests: "+
			"if a request must match both, write both in one block, match { ... }",
			zap.String("zone", z.name), zap.Strings("matchers", pair))
	}
	if pair := matchersOfOneBlock(z.config.ExemptRaw); pair != nil {
		z.handler.logger.Warn("a request is exempt if one exempt of the zone matches it, "+
			"and one of these two matchers alone matches most requests: "+
			"if a request must match both, write both in one block, exempt { ... }",
			zap.String("zone", z.name), zap.Strings("matchers", pair))
	}
	if l := z.limitBelowCost(); l != nil {
		z.handler.logger.Warn("each request costs more than a limit of its zone ever allows, so the zone denies them all: "+
			"write a lower cost, or a limit with more events or a larger burst",
			zap.String("zone", z.name), zap.Int64("cost", z.fixedCost), zap.Stringer("limit", l))
	}
	if z.ignoresKeyCase() {
		z.handler.logger.Warn("key_case changes no key, because the keys of the zone are addresses, or have no placeholder: leave it out",
			zap.String("zone", z.name))
	}
	if len(z.config.bodyFields()) == 0 && (z.config.MaxBody != nil || z.config.BodyTimeout != 0) {
		z.handler.logger.Warn("max_body and body_timeout have no effect, because the zone reads no body: leave them out, "+
			"or use a placeholder such as {http.rate_limit.request.json.user}",
			zap.String("zone", z.name))
	}
	if z.banLookup != nil && !slices.ContainsFunc(z.keys, func(t keyTemplate) bool { return !t.readsBody() }) {
		z.handler.logger.Warn("scope handler of ban has no effect, because the key is from the body, "+
			"which is read only for requests of the zone: leave it out, or use another key",
			zap.String("zone", z.name))
	}
	if z.config.matchesBody() {
		z.handler.logger.Warn("a matcher of the zone has a value of the request's body, but matchers don't read bodies: "+
			"unless a rate_limit directive before has read it, the value is empty",
			zap.String("zone", z.name))
	}
	if i := slices.IndexFunc(z.config.Key, isZoneOption); i >= 0 {
		z.handler.logger.Warn("a value of key is the name of an option of the zone, which stands on the line of key by mistake: "+
			"write the option on its own line, or the value in quotes with another one",
			zap.String("zone", z.name), zap.String("value", z.config.Key[i]))
		return
	}
	for _, t := range z.keys[:max(len(z.keys)-1, 0)] {
		if t.neverEmpty() {
			z.handler.logger.Warn("a value of key is never empty, so the values behind it are never used: "+
				"write all of them in quotes to make one key of them",
				zap.String("zone", z.name), zap.String("value", shortenPlaceholders(t.text)))
		}
	}
}

func isZoneOption(name string) bool { return slices.Contains(zoneOptions(), name) }

// wideMatchers are request matchers that match most requests of a site.
var wideMatchers = []string{"method", "not", "protocol", "tls"}

// matchersOfOneBlock returns two matchers, each alone in a match or exempt, that were probably meant
// to be in one block. It returns nil if there are none. Of two alternatives that differ, a wide matcher leaves
// little for the other one. Of two nots, each matches the requests that the other leaves out.
func matchersOfOneBlock(sets caddyhttp.RawMatcherSets) []string {
	var alone []string
	for _, set := range sets {
		for name := range set {
			if len(set) == 1 {
				alone = append(alone, name)
			}
		}
	}
	for i, wide := range alone {
		for j, other := range alone {
			if i != j && slices.Contains(wideMatchers, wide) && (other != wide || other == "not") {
				return []string{wide, other}
			}
		}
	}
	return nil
}

// matchesBody reports whether a matcher of the zone has a value of a body.
func (c *Zone) matchesBody() bool {
	for _, set := range slices.Concat(c.MatcherSetsRaw, c.ExemptRaw) {
		for _, matcher := range set {
			if bytes.Contains(matcher, []byte(jsonBodyPrefix)) || bytes.Contains(matcher, []byte(formBodyPrefix)) {
				return true
			}
		}
	}
	return false
}

// limitBelowCost returns a limit, of the zone or of a plan, that denies each request because of its
// cost. It returns nil if there is none.
func (z *zone) limitBelowCost() *algorithms.Limit {
	if z.mode != algorithms.Binary && z.mode != algorithms.Uniform {
		return nil
	}
	for _, set := range z.limitSetsWithoutOverride() {
		for _, l := range set.limits {
			if z.fixedCost > l.Burst && !l.Algorithm().BinaryOnly {
				return l
			}
		}
	}
	return nil
}

// neverEmpty reports whether all placeholders of the text have a value in every request.
func (t *keyTemplate) neverEmpty() bool {
	names, _ := placeholderNames(t.text) // checked before
	always := []string{clientAddress, remoteHost, remoteAddress, "http.request.method", "http.request.uri.path"}
	return !slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(always, name) })
}

// readsBody reports whether the text has a placeholder of the request's body.
func (t *keyTemplate) readsBody() bool {
	names, _ := placeholderNames(t.text) // checked before
	return slices.ContainsFunc(names, isOfBody)
}
