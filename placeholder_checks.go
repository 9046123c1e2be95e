package ratelimit

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/accesslog"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/closest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/jsonvalue"
)

// This file finds placeholders that nothing provides. Caddy replaces such a placeholder by
// an empty text, so a key made of one is the same for every client.

// optionText is the text of a zone's option, which may have placeholders.
type optionText struct{ option, text string }

// decidingTexts returns the texts that decide on a request: plan, cost, factor, and then the
// alternatives of key.
func (c *Zone) decidingTexts() []optionText {
	all := []optionText{{"cost", string(c.Cost)}, {"factor", string(c.Factor)}}
	if c.Plan != nil {
		all = append([]optionText{{"plan", c.Plan.By}}, all...)
	}
	for _, key := range c.Key {
		all = append(all, optionText{"key", key})
	}
	return all
}

// placeholderNames returns the names of the placeholders in a text, as a [caddy.Replacer]
// finds them.
func placeholderNames(text string) (names []string, err error) {
	begin := -1 // of a name
	for i := 0; i < len(text) && err == nil; i++ {
		switch {
		case text[i] == '\\' && i+1 < len(text) && (text[i+1] == '{' || text[i+1] == '}'):
			i++ // an escaped brace
		case text[i] == '{' && begin < 0:
			begin = i + 1
		case text[i] == '}' && begin >= 0:
			names, begin = append(names, text[begin:i]), -1
		case text[i] == '{' || text[i] == '}':
			err = errBraces
		}
	}
	if begin >= 0 {
		err = errBraces
	}
	return names, err
}

var errBraces = errors.New(`has a brace without its counterpart: write placeholders as {name}, and a brace itself as \{`)

// checkBraces returns an error if the braces in an option's text don't match.
func checkBraces(option, text string) error {
	if _, err := placeholderNames(text); err != nil {
		return fmt.Errorf("%s %q %w", option, text, err)
	}
	return nil
}

// checkKeyText checks an alternative of a key.
func checkKeyText(text string) error {
	if strings.ContainsAny(text, "{}") {
		return checkBraces("key", text)
	}
	if _, short := expandShorthand(text); short || strings.HasPrefix(text, "http.") {
		return fmt.Errorf("key %q is the name of a placeholder, and without braces the same for all requests: write {%s}", text, text)
	}
	return nil
}

func (k Key) check() error {
	var errs []error
	for i, text := range k {
		errs = append(errs, checkKeyText(text))
		if i < len(k)-1 && strings.HasSuffix(text, ",") {
			errs = append(errs, fmt.Errorf("key %q ends in a comma: "+
				"write a space alone between alternatives, or one text that combines values, as in \"{client_ip}|{path}\"", text))
		}
	}
	return errors.Join(errs...)
}

// checkOverrideText returns an error if the key of an override has a placeholder.
func checkOverrideText(key string) error {
	if open := strings.IndexByte(key, '{'); open >= 0 && strings.IndexByte(key[open:], '}') > 0 {
		return fmt.Errorf("override %q has a placeholder, which is not replaced here: write one key as it is, such as 203.0.113.7", key)
	}
	return nil
}

var shorthands = sync.OnceValue(httpcaddyfile.NewShorthandReplacer)

// expandShorthand returns the full name of a placeholder, and whether the given name is a short one
// of Caddyfiles.
func expandShorthand(name string) (long string, isShort bool) {
	braced := "{" + name + "}"
	tokens := caddyfile.Segment{{Text: braced}}
	shorthands().ApplyToSegment(&tokens)
	return strings.Trim(tokens[0].Text, "{}"), tokens[0].Text != braced
}

// eachPlaceholder calls check for each placeholder of the zone until it returns an error.
func (c *Zone) eachPlaceholder(check func(option, name string) error) error {
	all := c.decidingTexts()
	if c.Settle != nil {
		all = append(all, optionText{costOfSettle, string(c.Settle.Cost)})
	}
	for _, t := range all {
		names, err := placeholderNames(t.text)
		if err != nil {
			return fmt.Errorf("%s %q %w", t.option, t.text, err)
		}
		for _, name := range names {
			if err := check(t.option, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkOwnPlaceholders checks the masks of addresses, and the placeholders of this module.
func (c *Zone) checkOwnPlaceholders(sources *placeholderSources) error {
	return c.eachPlaceholder(func(option, name string) error {
		_, _, _, err := maskOf(name)
		if err == nil {
			err = sources.checkOwnPlaceholder(name, option == costOfSettle)
		}
		if err != nil {
			return fmt.Errorf("%s: {%s} %w", option, name, err)
		}
		return nil
	})
}

// checkPlaceholders returns an error for a placeholder of the zone that nothing provides. It
// warns of a placeholder that only a plugin may provide.
func (c *Zone) checkPlaceholders(zone string, sources *placeholderSources, logger *zap.Logger) error {
	if err := c.checkOwnPlaceholders(sources); err != nil {
		return err
	}
	return c.eachPlaceholder(func(option, name string) error {
		long, short := expandShorthand(name)
		switch {
		case sources.provides(name):
		case sources.pluginMayProvide(name):
			logger.Warn("a zone has a placeholder that neither Caddy nor this configuration provides: "+
				"unless a plugin provides it, it is always empty"+sources.suggestion(name),
				zap.String("zone", zone), zap.String("option", option), zap.String("placeholder", "{"+name+"}"))
		case short:
			return fmt.Errorf("%s: the short placeholder {%s} works only in a Caddyfile, and is empty in JSON: write {%s}", option, name, long)
		default:
			return fmt.Errorf("%s: nothing provides the placeholder {%s}, so it would always be empty%s", option, name, sources.suggestion(name))
		}
		return nil
	})
}

// needsOthers reports whether the zone has a placeholder that the given sources don't provide.
func (c *Zone) needsOthers(sources *placeholderSources) (needs bool) {
	_ = c.eachPlaceholder(func(option, name string) error {
		needs = needs || !sources.provides(name) || sources.checkOwnPlaceholder(name, option == costOfSettle) != nil
		return nil
	})
	return needs
}

// dropPositions removes the positions of zones that don't need the rest of the configuration, so that
// their JSON stays short.
func dropPositions(zones map[string]*Zone, sources *placeholderSources) {
	for _, z := range zones {
		if !z.needsOthers(sources) {
			z.Position = ""
		}
	}
}

// costOfSettle is the only option that is evaluated after the response.
const costOfSettle = "cost of settle"

// checkOwnPlaceholder checks a placeholder of this module, and accepts any other. settles reports whether
// it stands in the cost of settle. The error continues a sentence that begins with the placeholder.
func (sources *placeholderSources) checkOwnPlaceholder(name string, settles bool) error {
	name, own := strings.CutPrefix(name, placeholderPrefix+".")
	if !own {
		return nil
	}
	kind, rest, _ := strings.Cut(name, ".")
	switch kind {
	case "request":
		return checkRequestPlaceholder(rest, settles)
	case "response":
		return checkResponsePlaceholder(rest, settles)
	case "exceeded":
		return checkField("a denial", rest, exceededFields)
	case "instant":
		if rest == "" {
			return errors.New("differs for almost every request, so it is only for logs: write log_append " +
				accesslog.InstantField + " {" + placeholderPrefix + ".instant}")
		}
	}
	return sources.checkZonePlaceholder(name)
}

// checkRequestPlaceholder checks the part of a placeholder after http.rate_limit.request.
func checkRequestPlaceholder(name string, settles bool) error {
	kind, rest, _ := strings.Cut(name, ".")
	switch {
	case kind != "json" && kind != "form":
		return errors.New("doesn't exist: write for example {http.rate_limit.request.json.user} for a member of a JSON body, " +
			"or {http.rate_limit.request.form.user} for a field of a form")
	case settles:
		return errors.New("is empty here, because settle looks at the response: use it in key, plan, cost or factor")
	case kind == "json":
		return checkJSONPath(rest)
	case rest == "":
		return errors.New("has no field: write for example {http.rate_limit.request.form.user}")
	}
	return nil
}

// checkResponsePlaceholder checks the part of a placeholder after http.rate_limit.response.
func checkResponsePlaceholder(name string, settles bool) error {
	kind, path, _ := strings.Cut(name, ".")
	switch {
	case kind != "json" && name != "bytes" && name != "seconds":
		return errors.New("doesn't exist: write for example {http.rate_limit.response.json.usage.total_tokens}, " +
			"{http.rate_limit.response.bytes} or {http.rate_limit.response.seconds}")
	case !settles:
		return errors.New("is empty here, because there is no response yet: use it in the cost of settle")
	case kind == "json":
		return checkJSONPath(path)
	}
	return nil
}

func checkJSONPath(path string) error {
	if _, err := jsonvalue.ParsePath(path); err != nil {
		return fmt.Errorf("leads to no value: %w", err)
	}
	return nil
}

// checkZonePlaceholder checks the part of the placeholder of a zone after http.rate_limit.
func (sources *placeholderSources) checkZonePlaceholder(name string) error {
	dot := strings.LastIndexByte(name, '.')
	if dot < 0 {
		return fmt.Errorf("has no field: write the name of a zone, a dot, and one of %s", strings.Join(zoneFields, ", "))
	}
	zone := name[:dot]
	if err := checkField("a zone", name[dot+1:], zoneFields); err != nil {
		return err
	}
	if sources.zones[zone] || sources.routesUnknown || sources.plugins { // a plugin may have handlers that can't be seen
		return nil
	}
	names := slices.Sorted(maps.Keys(sources.zones))
	if near := suggest(zone, names); near != "" {
		return fmt.Errorf("is always empty, because there is no zone %q (did you mean %s?)", zone, near)
	}
	return fmt.Errorf("is always empty, because there is no zone %q: write one of %s", zone, strings.Join(names, ", "))
}

// checkField checks the last part of a placeholder.
func checkField(of, field string, fields []string) error {
	if slices.Contains(fields, field) {
		return nil
	}
	if near := suggest(field, fields); near != "" {
		return fmt.Errorf("doesn't exist, because %s has no field %q (did you mean %s?)", of, field, near)
	}
	return fmt.Errorf("doesn't exist, because %s has no field %q: write one of %s", of, field, strings.Join(fields, ", "))
}

// commonNames are the usual placeholders of keys, plans, costs and factors, for suggestions.
var commonNames = strings.Fields(`
	client_ip remote_host remote host hostport method path uri query scheme dir file uuid labels.0 path.0
	tls_client_fingerprint tls_client_issuer tls_client_serial tls_client_subject tls_version
	http.auth.user.id http.auth.user.plan`)

// suggestion returns the end of a message about a placeholder that nothing provides: the
// placeholder that was probably meant.
func (sources *placeholderSources) suggestion(name string) string {
	for _, open := range openPrefixes {
		if strings.HasPrefix(name, open.prefix) {
			return ": nothing has such a name"
		}
	}
	namespace, rest, _ := strings.Cut(name, ".")
	if long, short := expandShorthand(namespace + ".x"); short && rest != "" {
		return ": did you mean {" + strings.TrimSuffix(long, "x") + rest + "}?"
	}
	candidates := slices.Clone(commonNames)
	for _, common := range commonNames {
		if long, short := expandShorthand(common); short {
			candidates = append(candidates, long)
		}
	}
	for known := range sources.names {
		candidates = append(candidates, known)
	}
	slices.Sort(candidates[len(commonNames):])
	candidates = slices.DeleteFunc(candidates, func(candidate string) bool { return !strings.HasPrefix(candidate, name[:min(len(name), 1)]) })
	best := ""
	if i := closest.Index(name, candidates, min(len(name)/3, 2)); i >= 0 {
		best = candidates[i]
	} else {
		words := strings.FieldsFunc(strings.ToLower(name), func(c rune) bool { return c == '_' || c == '.' || c == '-' })
		switch {
		case slices.ContainsFunc(words, func(word string) bool { return slices.Contains(addressWords, word) }):
			best = "client_ip"
		case slices.Contains(words, "user") && words[0] != "http":
			best = "http.auth.user.id"
		default:
			return ": write a placeholder of Caddy, or one that map or vars defines"
		}
	}
	if long, short := expandShorthand(best); short {
		return fmt.Sprintf(": did you mean {%s} (in JSON {%s})?", best, long)
	}
	return ": did you mean {" + best + "}?"
}

var addressWords = []string{"ip", "ipaddr", "addr", "address", "client", "remoteip", "realip", "clientip"}
