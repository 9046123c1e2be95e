package placeholder

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/closest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/jsonvalue"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/options"
)

// This file finds placeholders that nothing provides. Caddy replaces such a placeholder by
// an empty text, so a key made of one is the same for every client.

// Text is the text of a zone's option, which may have placeholders.
type Text struct {
	Option, Text  string
	AfterResponse bool // when there is a response
}

// eachPlaceholder calls check for each placeholder of the texts until it returns an error.
func eachPlaceholder(texts []Text, check func(t Text, name string) error) error {
	for _, t := range texts {
		names, err := keys.Placeholders(t.Text)
		if err != nil {
			return fmt.Errorf("%s %q %w", t.Option, t.Text, err)
		}
		for _, name := range names {
			if err := check(t, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// CheckOwn checks the masks of addresses, and the placeholders of this module.
func (sources *Sources) CheckOwn(texts []Text) error {
	return eachPlaceholder(texts, func(t Text, name string) error {
		err := keys.CheckMask(name)
		if err == nil {
			err = sources.checkOwn(name, t.AfterResponse)
		}
		if err != nil {
			return fmt.Errorf("%s: {%s} %w", t.Option, name, err)
		}
		return nil
	})
}

// Check returns an error for a placeholder of the zone that nothing provides. It
// warns of a placeholder that only a plugin may provide.
func (sources *Sources) Check(zone string, texts []Text, logger *zap.Logger) error {
	if err := sources.CheckOwn(texts); err != nil {
		return err
	}
	return eachPlaceholder(texts, func(t Text, name string) error {
		long, short := keys.ExpandShorthand(name)
		switch {
		case sources.provides(name):
		case sources.pluginMayProvide(name):
			logger.Warn("a zone has a placeholder that neither Caddy nor this configuration provides: "+
				"unless a plugin provides it, it is always empty"+sources.suggestion(name, t.AfterResponse),
				zap.String("zone", zone), zap.String("option", t.Option), zap.String("placeholder", "{"+name+"}"))
		case short:
			return fmt.Errorf("%s: the short placeholder {%s} works only in a Caddyfile, and is empty in JSON: write {%s}", t.Option, name, long)
		default:
			return fmt.Errorf("%s: nothing provides the placeholder {%s}, so it would always be empty%s",
				t.Option, name, sources.suggestion(name, t.AfterResponse))
		}
		return nil
	})
}

// ProvidesAll reports whether all placeholders of the texts are provided.
func (sources *Sources) ProvidesAll(texts []Text) bool {
	all := true
	_ = eachPlaceholder(texts, func(t Text, name string) error {
		all = all && sources.provides(name) && sources.checkOwn(name, t.AfterResponse) == nil
		return nil
	})
	return all
}

// checkOwn checks a placeholder of this module, and accepts any other. afterResponse reports whether
// there is a response. The error continues a sentence that begins with the placeholder.
func (sources *Sources) checkOwn(name string, afterResponse bool) error {
	name, own := strings.CutPrefix(name, keys.OwnPrefix+".")
	if !own {
		return nil
	}
	kind, rest, _ := strings.Cut(name, ".")
	switch kind {
	case "request":
		return checkRequestPlaceholder(rest, afterResponse)
	case "response":
		return checkResponsePlaceholder(rest, afterResponse)
	case "exceeded":
		return checkField("a denial", rest, keys.DenialFields)
	case "json", "form":
		if !slices.Contains(keys.ZoneFields, rest) {
			return errors.New("doesn't exist" + sources.suggestion(name, afterResponse))
		}
	case "instant":
		if rest == "" {
			return errors.New("differs for almost every request, so it is only for logs: write log_append " +
				"rate_limit_instant {" + keys.OwnPrefix + ".instant}")
		}
	}
	return sources.checkZonePlaceholder(name)
}

// checkRequestPlaceholder checks the part of a placeholder after http.rate_limit.request.
func checkRequestPlaceholder(name string, afterResponse bool) error {
	kind, rest, _ := strings.Cut(name, ".")
	switch {
	case kind != "json" && kind != "form":
		return errors.New("doesn't exist: write for example {http.rate_limit.request.json.user} for a member of a JSON body, " +
			"or {http.rate_limit.request.form.user} for a field of a form")
	case afterResponse:
		return errors.New("is empty here, because settle looks at the response: use it in key, plan, cost or factor")
	case kind == "json":
		return checkJSONPath(rest)
	case rest == "":
		return errors.New("has no field: write for example {http.rate_limit.request.form.user}")
	}
	return nil
}

// checkResponsePlaceholder checks the part of a placeholder after http.rate_limit.response.
func checkResponsePlaceholder(name string, afterResponse bool) error {
	kind, path, _ := strings.Cut(name, ".")
	switch {
	case kind != "json" && name != "bytes" && name != "seconds":
		return errors.New("doesn't exist: write for example {http.rate_limit.response.json.usage.total_tokens}, " +
			"{http.rate_limit.response.bytes} or {http.rate_limit.response.seconds}")
	case !afterResponse:
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
func (sources *Sources) checkZonePlaceholder(name string) error {
	dot := strings.LastIndexByte(name, '.')
	if dot < 0 {
		return fmt.Errorf("has no field: write the name of a zone, a dot, and one of %s", strings.Join(keys.ZoneFields, ", "))
	}
	zone := name[:dot]
	if err := checkField("a zone", name[dot+1:], keys.ZoneFields); err != nil {
		return err
	}
	if sources.zones[zone] || sources.routesUnknown || sources.plugins { // a plugin may have handlers that can't be seen
		return nil
	}
	names := slices.Sorted(maps.Keys(sources.zones))
	if near := options.Suggest(zone, names); near != "" {
		return fmt.Errorf("is always empty, because there is no zone %q (did you mean %s?)", zone, near)
	}
	return fmt.Errorf("is always empty, because there is no zone %q: write one of %s", zone, strings.Join(names, ", "))
}

// checkField checks the last part of a placeholder.
func checkField(owner, field string, fields []string) error {
	if slices.Contains(fields, field) {
		return nil
	}
	if near := options.Suggest(field, fields); near != "" {
		return fmt.Errorf("doesn't exist, because %s has no field %q (did you mean %s?)", owner, field, near)
	}
	return fmt.Errorf("doesn't exist, because %s has no field %q: write one of %s", owner, field, strings.Join(fields, ", "))
}

// commonNames are the usual placeholders of keys, plans, costs and factors, for suggestions.
var commonNames = strings.Fields(`
	client_ip remote_host remote host hostport method path uri query scheme dir file uuid labels.0 path.0
	tls_client_fingerprint tls_client_issuer tls_client_serial tls_client_subject tls_version
	http.auth.user.id http.auth.user.plan`)

var (
	// namespaceForm and pluralForm are forms that people write around short names: {http.request.headers.X} for {header.X}, and
	// {http.vars.remote_host} for {remote_host}.
	namespaceForm = regexp.MustCompile(`^(?:http\.)?(?:(?:request|response|vars)\.)?`)
	pluralForm    = regexp.MustCompile(`\b(header|cookie)s\.`)
)

// bodyForm is a name that was probably meant for a value of a body.
var bodyForm = regexp.MustCompile(`^(?:http\.)?(?:rate_limit\.)?(?:request\.|response\.)?(json|form|body)\.(.+)$`)

// suggestion returns the end of a message about a placeholder that nothing provides: the
// placeholder that was probably meant.
func (sources *Sources) suggestion(name string, afterResponse bool) string {
	if parts := bodyForm.FindStringSubmatch(name); parts != nil {
		side, kind := "request", strings.Replace(parts[1], "body", "json", 1)
		if afterResponse {
			side, kind = "response", "json"
		}
		return meant(strings.Join([]string{keys.OwnPrefix, side, kind, parts[2]}, "."))
	}
	for _, open := range openPrefixes {
		if strings.HasPrefix(name, open.prefix) {
			return ": nothing has such a name"
		}
	}
	singular := pluralForm.ReplaceAllString(name, "$1.")
	bare := namespaceForm.ReplaceAllString(singular, "")
	similarNames := []string{bare, "http.request." + bare, singular}
	if afterResponse {
		similarNames[0] = "http.response." + bare
	}
	provided := slices.IndexFunc(similarNames, func(other string) bool {
		long, _ := keys.ExpandShorthand(other)
		return long != name && sources.provides(long)
	})
	candidates := slices.Clone(commonNames)
	for _, common := range commonNames {
		if long, short := keys.ExpandShorthand(common); short {
			candidates = append(candidates, long)
		}
	}
	for known := range sources.names {
		candidates = append(candidates, known)
	}
	slices.Sort(candidates[len(commonNames):])
	candidates = slices.DeleteFunc(candidates, func(candidate string) bool { return !strings.HasPrefix(candidate, name[:min(len(name), 1)]) })
	best := ""
	words := strings.FieldsFunc(strings.ToLower(name), func(c rune) bool { return c == '_' || c == '.' || c == '-' })
	isOfAddress := func(word string) bool { return slices.Contains(addressWords, word) }
	similar := closest.Index(name, candidates)
	switch {
	case len(words) > 0 && isOfAddress(words[len(words)-1]):
		best = "client_ip"
	case provided >= 0:
		best = similarNames[provided]
	case similar >= 0:
		best = candidates[similar]
	case slices.ContainsFunc(words, isOfAddress):
		best = "client_ip"
	case slices.Contains(words, "user") && words[0] != "http":
		best = "http.auth.user.id"
	default:
		return ": write a placeholder of Caddy, or one that map or vars defines"
	}
	return meant(best)
}

// meant returns the end of a message with the placeholder that was probably meant, and its short form if it has one.
func meant(name string) string {
	short := strings.Trim(keys.Shorten("{"+name+"}"), "{}")
	if long, isShort := keys.ExpandShorthand(short); isShort {
		return fmt.Sprintf(" (did you mean {%s}, in JSON {%s}?)", short, long)
	}
	return " (did you mean {" + name + "}?)"
}

var addressWords = []string{"ip", "ipaddr", "addr", "address", "client", "remoteip", "realip", "clientip"}
