package routes

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/options"
)

// Matchers returns a repeatable option with request matchers, in a block or on one line. The matchers of one
// option must all match.
func Matchers(name, example string, field *caddyhttp.RawMatcherSets, check func(caddyhttp.RawMatcherSets) error) options.Option {
	o := options.Made(name, example, field, func(d *caddyfile.Dispenser) (caddyhttp.RawMatcherSets, error) {
		set, err := readMatchers(d)
		return append(*field, set), err
	}, check)
	o.Repeatable = true
	return o
}

func readMatchers(d *caddyfile.Dispenser) (caddy.ModuleMap, error) {
	set, err := caddyhttp.ParseCaddyfileNestedMatcherSet(d)
	if err != nil {
		if unknown := matcherMissing.FindStringSubmatch(err.Error()); unknown != nil {
			return nil, unknownMatcherError(unknown[1])
		}
		if strings.Contains(err.Error(), ", at "+d.File()+":") { // where d has stopped; Caddy's own matchers say it
			return nil, options.Positioned(err)
		}
		return nil, err
	}
	for name, matcher := range set {
		if err := checkMatcher(name, matcher); err != nil {
			return nil, err
		}
	}
	if len(set) == 0 {
		return nil, options.Must("takes at least one matcher")
	}
	return set, nil
}

// checkMatcher returns an error for a matcher without values, and for values that can't be meant as such. Caddy accepts
// any text as a method or a path.
func checkMatcher(name string, matcher []byte) error {
	if string(matcher) == "null" {
		return options.Must("%s takes at least one value", name)
	}
	var values []string
	if name != "method" && name != "path" || json.Unmarshal(matcher, &values) != nil {
		return nil
	}
	for _, value := range values {
		if _, err := caddy.GetModule("http.matchers." + value); err == nil || name == "method" && strings.Contains(value, "/") {
			return fmt.Errorf("%q is no %s: if several matchers must match, write each on its own line, in braces", value, name)
		}
	}
	return nil
}

// matcherMissing matches the error about a request matcher that Caddy doesn't know.
var matcherMissing = regexp.MustCompile(`^getting matcher module '([^']{1,100})'`)

func unknownMatcherError(name string) error {
	if name == "status" {
		return errors.New("a request has no status: to charge only some responses, write settle { match status 401 }")
	}
	var names []string
	for _, module := range caddy.GetModules("http.matchers") {
		names = append(names, module.ID.Name())
	}
	slices.Sort(names)
	if near := options.Suggest(name, names); near != "" {
		return options.Must("has no matcher %q (did you mean %s?)", name, near)
	}
	return options.Must("has no matcher %q", name)
}
