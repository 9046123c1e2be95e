package placeholder

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/jsonvalue"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/options"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/shorthand"
)

// Text is the text of a zone's option, which may have placeholders.
type Text struct {
	Option, Text  string
	AfterResponse bool // when there is a response
}

// Use is a placeholder in the text of an option, or in a matcher.
type Use struct {
	Option, Name  string
	AfterResponse bool // when there is a response
	InMatcher     bool
}

// Uses returns the placeholders of texts.
func Uses(texts []Text) (uses []Use, err error) {
	for _, t := range texts {
		names, err := keys.Placeholders(t.Text)
		if err != nil {
			return nil, fmt.Errorf("%s %q %w", t.Option, t.Text, err)
		}
		for _, name := range names {
			uses = append(uses, Use{Option: t.Option, Name: name, AfterResponse: t.AfterResponse})
		}
	}
	return uses, nil
}

// inBraces matches a placeholder in JSON.
var inBraces = regexp.MustCompile(`\{([^{}"\s]+)\}`)

// UsesInMatcher returns the placeholders of a matcher in JSON.
func UsesInMatcher(option string, matcher []byte) (uses []Use) {
	for _, found := range inBraces.FindAllSubmatch(matcher, -1) {
		name, _ := shorthand.Expand(string(found[1]))
		uses = append(uses, Use{Option: option, Name: name, InMatcher: true})
	}
	return uses
}

// Check returns an error for a placeholder that is always empty: a key made of it would be the same for every
// client. unsure are the placeholders that only routes or plugins may provide.
func Check(texts []Text) (unsure []Use, err error) {
	uses, err := Uses(texts)
	if err != nil {
		return nil, err
	}
	for _, use := range uses {
		defined, err := use.check()
		if err != nil {
			return nil, fmt.Errorf("%s: {%s} %w", use.Option, use.Name, err)
		}
		if !defined {
			unsure = append(unsure, use)
		}
	}
	return unsure, nil
}

// check reports whether Caddy or this module provides the placeholder. The error is for one that nothing can
// provide. It continues a sentence that begins with the placeholder.
func (use Use) check() (provided bool, err error) {
	own, isOwn := strings.CutPrefix(use.Name, keys.OwnPrefix+".")
	long, isShort := shorthand.Expand(use.Name)
	switch err := keys.CheckMask(use.Name); {
	case err != nil:
		return false, err
	case isOwn:
		return true, use.checkOwn(own)
	case provides(use.Name):
		return true, nil
	case isShort:
		return false, fmt.Errorf("works only in a Caddyfile, and is empty in JSON: write {%s}", long)
	case mayBeDefined(use.Name):
		return false, nil
	}
	return false, errors.New("is always empty, because nothing provides it" + use.Suggestion())
}

// checkOwn checks the name of a placeholder of this module, without its prefix.
func (use Use) checkOwn(name string) error {
	kind, rest, _ := strings.Cut(name, ".")
	switch kind {
	case "request":
		return use.checkRequest(rest)
	case "response":
		return use.checkResponse(rest)
	case "exceeded":
		return checkField("a denial", rest, keys.DenialFields)
	case "json", "form":
		if !slices.Contains(keys.ZoneFields, rest) {
			return errors.New("doesn't exist" + use.Suggestion())
		}
	case "instant":
		if rest == "" {
			return errors.New("differs for almost every request, so it is only for logs: write log_append " +
				"rate_limit_instant {" + keys.OwnPrefix + ".instant}")
		}
	}
	dot := strings.LastIndexByte(name, '.')
	if dot < 0 {
		return fmt.Errorf("has no field: write the name of a zone, a dot, and one of %s", strings.Join(keys.ZoneFields, ", "))
	}
	return checkField("a zone", name[dot+1:], keys.ZoneFields)
}

// checkRequest checks the part of a placeholder after http.rate_limit.request.
func (use Use) checkRequest(name string) error {
	kind, rest, _ := strings.Cut(name, ".")
	switch {
	case name == "basic_user":
		return nil
	case kind != "json" && kind != "form":
		return errors.New("doesn't exist: write for example {http.rate_limit.request.json.user} for a member of a JSON body, " +
			"{http.rate_limit.request.form.user} for a field of a form, or {http.rate_limit.request.basic_user} for a basic login")
	case use.AfterResponse:
		return errors.New("is empty here, because settle looks at the response: use it in key, plan, cost or factor")
	case kind == "json":
		return checkJSONPath(rest)
	case rest == "":
		return errors.New("has no field: write for example {http.rate_limit.request.form.user}")
	}
	return nil
}

// checkResponse checks the part of a placeholder after http.rate_limit.response.
func (use Use) checkResponse(name string) error {
	kind, path, _ := strings.Cut(name, ".")
	switch {
	case kind != "json" && name != "bytes" && name != "seconds":
		return errors.New("doesn't exist: write for example {http.rate_limit.response.json.usage.total_tokens}, " +
			"{http.rate_limit.response.bytes} or {http.rate_limit.response.seconds}")
	case !use.AfterResponse:
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
	// addressForm is a name that was probably meant for the address of the client.
	addressForm = regexp.MustCompile(`(?i)(?:^|[._-])(?:remote|real|client)?(?:ip|ipaddr|addr|address|client)$`)
	// namespaceForm is the part that people write in front of short names, as in {http.request.headers.X} for {header.X}.
	namespaceForm = regexp.MustCompile(`^(?:http\.)?(?:rate_limit\.)?(?:(?:request|response|vars)\.)?`)
	// kinds are the first parts of names that end in a text of the user's choice.
	kinds = []string{"header", "cookie", "query", "json", "form"}
)

// Suggestion returns the end of a message about a placeholder that nothing provides: the placeholder that was
// probably meant.
func (use Use) Suggestion() string {
	if addressForm.MatchString(use.Name) {
		return meant(keys.ClientAddress)
	}
	side, bare := "request", namespaceForm.ReplaceAllString(use.Name, "")
	if use.AfterResponse {
		side = "response"
	}
	similar := options.Suggest(bare, commonNames)
	if kind, rest, dotted := strings.Cut(bare, "."); dotted {
		switch kind = options.Suggest(kind, kinds); kind {
		case "json", "form":
			return meant(strings.Join([]string{keys.OwnPrefix, side, kind, rest}, "."))
		case "":
		default:
			bare = kind + "." + rest
		}
	}
	if similar != "" && similar[0] != bare[0] {
		similar = ""
	}
	names := []string{bare, "http.request." + bare, similar}
	if use.AfterResponse {
		names[0] = "http.response." + bare
	}
	for _, name := range names {
		if long, _ := shorthand.Expand(name); long != use.Name && provides(long) {
			return meant(name)
		}
	}
	return ": write a placeholder of Caddy, or one that map or vars defines"
}

// meant returns the end of a message with the placeholder that was probably meant, and its short form if it has one.
func meant(name string) string {
	short := strings.Trim(keys.Shorten("{"+name+"}"), "{}")
	if long, isShort := shorthand.Expand(short); isShort {
		return fmt.Sprintf(" (did you mean {%s}, in JSON {%s}?)", short, long)
	}
	return " (did you mean {" + name + "}?)"
}
