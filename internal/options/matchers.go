package options

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// MatcherSet reads an option with request matchers, in a block or on one line. zoneOptions are the options
// of the zone around it, which stand among the matchers if the block isn't closed.
func MatcherSet(d *caddyfile.Dispenser, example string, zoneOptions []string) (caddy.ModuleMap, error) {
	option, line := d.Val(), *d
	words := line.RemainingArgs() // none if the matchers are in a block
	set, err := caddyhttp.ParseCaddyfileNestedMatcherSet(d)
	if err != nil {
		if unknown := matcherMissing.FindStringSubmatch(err.Error()); unknown != nil {
			return nil, noMatcherError(option, unknown[1], words, zoneOptions)
		}
		if strings.Contains(err.Error(), "malformed header matcher: expected both field and value") {
			return nil, fmt.Errorf("%s header takes a field and a value: write for example %[1]s header X-Api-Key *, for any value", option)
		}
		if strings.Contains(err.Error(), ", at "+d.File()+":") {
			return nil, positionedError{err} // Caddy's own matchers say where they are
		}
		return nil, err
	}
	for name, matcher := range set {
		if string(matcher) == "null" {
			return nil, fmt.Errorf("%s %s takes at least one value", option, name)
		}
		if err := checkMatcherValues(option, name, matcher); err != nil {
			return nil, err
		}
	}
	if len(set) == 0 {
		return nil, fmt.Errorf("%s takes at least one matcher: write for example %s %s", option, option, example)
	}
	return set, nil
}

// checkMatcherValues returns an error for values that can't be meant as values of the matcher. Caddy accepts
// any text as a method or a path.
func checkMatcherValues(option, name string, matcher []byte) error {
	var values []string
	if name != "method" && name != "path" || json.Unmarshal(matcher, &values) != nil {
		return nil
	}
	for i, value := range values {
		_, err := caddy.GetModule("http.matchers." + value)
		kind, rest := "a matcher", strings.Join(values[i:], " ")
		if name == "method" && strings.Contains(value, "/") {
			kind, rest = "not a method", "path "+rest
		} else if err != nil {
			continue
		}
		return fmt.Errorf("%s %s: %q is %s: if both must match, write\n%s {\n\t%s\n\t%s\n}",
			option, name, value, kind, option, strings.Join(append([]string{name}, values[:i]...), " "), rest)
	}
	return nil
}

// matcherMissing matches the error about a request matcher that Caddy doesn't know.
var matcherMissing = regexp.MustCompile(`^getting matcher module '([^']{1,100})'`)

// noMatcherError returns the error for a name in match or exempt that is no request matcher. words are the
// values on the line of the option.
func noMatcherError(option, name string, words, zoneOptions []string) error {
	switch {
	case option == "match" && name == "status" && len(words) > 0:
		return fmt.Errorf("match takes matchers of requests, but status is of the response: write\nsettle {\n\tmatch %s\n}",
			strings.Join(words, " "))
	case slices.Contains(zoneOptions, name) && len(words) > 0:
		return fmt.Errorf("%s has no matcher %q, which is an option of the zone: write it on its own line, without %[1]s", option, name)
	case strings.HasPrefix(name, "@") && option == "match":
		return fmt.Errorf("match takes matchers, not the matcher name %s: write for example\n"+
			"match {\n\tmethod POST\n\tpath /login\n}\nor name it behind the directive, as in rate_limit %[1]s", name)
	case strings.HasPrefix(name, "@"):
		return fmt.Errorf("%s takes matchers, not the matcher name %s: write for example %[1]s client_ip 203.0.113.0/24", option, name)
	case strings.HasPrefix(name, "/"):
		return fmt.Errorf("%s takes matchers with their names, not %q: write %[1]s path %[2]s", option, name)
	}
	if isAddress(name) {
		return fmt.Errorf("%s takes matchers with their names, not %q: write %[1]s client_ip %[2]s", option, name)
	}
	if slices.Contains(zoneOptions, name) {
		return fmt.Errorf("%s has no matcher %q, which is an option of the zone: write } above it, to close %[1]s", option, name)
	}
	if meant := suggestMatcher(name); meant != "" {
		return fmt.Errorf("%s has no matcher %q (did you mean %s?)", option, name, meant)
	}
	return fmt.Errorf("%s has no matcher %q: write one of Caddy's request matchers, for example %[1]s path /api/*", option, name)
}

// isAddress reports whether the text is an address or a network.
func isAddress(text string) bool {
	_, err := netip.ParseAddr(text)
	if err != nil {
		_, err = netip.ParsePrefix(text)
	}
	return err == nil
}

// suggestMatcher returns the name of the request matcher that was probably meant, or "".
func suggestMatcher(name string) string {
	switch strings.ToLower(name) {
	case "address", "addr", "cidr", "ip", "network", "remote", "remote_addr", "source":
		return "client_ip"
	}
	var names []string
	for _, module := range caddy.GetModules("http.matchers") {
		names = append(names, module.ID.Name())
	}
	slices.Sort(names)
	return Suggest(name, names)
}
