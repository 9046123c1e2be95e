package routes

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	maphandler "github.com/caddyserver/caddy/v2/modules/caddyhttp/map"
)

// Survey is what routes say, whatever a request meets of them. It leaves out routes in other handlers than subroute, such
// as those for responses of reverse_proxy.
type Survey struct {
	RateLimits []Placed
	Defined    map[string]bool // the placeholders that map and vars define
	checks     bytes.Buffer    // the JSON of what can depend on a value of a request
	checksAny  bool            // there is a handler whose effect is not known
}

// Placed is a rate_limit handler, with the matchers around it.
type Placed struct {
	RateLimit RateLimit
	Around    caddyhttp.MatcherSets
}

// Surrounds reports whether each request that meets q can also meet p, as far as the matchers around them tell.
func (p Placed) Surrounds(q Placed) bool {
	same := func(a, b caddyhttp.MatcherSet) bool { return reflect.DeepEqual(a, b) }
	return len(p.Around) <= len(q.Around) && slices.EqualFunc(p.Around, q.Around[:len(p.Around)], same)
}

// Add adds routes, which are loaded.
func (s *Survey) Add(routes caddyhttp.RouteList) { s.add(routes, nil) }

func (s *Survey) add(routes caddyhttp.RouteList, around caddyhttp.MatcherSets) {
	for _, route := range routes {
		around := slices.Concat(around, route.MatcherSets)
		s.checks.Write(bytes.Join(MatcherTexts(route.MatcherSets), nil))
		for _, handler := range route.Handlers {
			switch h := handler.(type) {
			case *maphandler.Handler: // which has removed the braces
				for _, name := range h.Destinations {
					s.Defined[name] = true
				}
				s.checks.WriteString(`"` + h.Source + `"`)
			case *caddyhttp.VarsMiddleware:
				for name := range *h {
					s.Defined["http.vars."+name] = true
				}
			case *caddyhttp.Subroute:
				s.add(h.Routes, around)
			case *caddyhttp.Invoke, *caddyhttp.StaticResponse:
			case RateLimit:
				s.RateLimits = append(s.RateLimits, Placed{h, around})
			default:
				if name := nameOf(h); name == "headers" && hasSet(h, "request") {
					text, _ := json.Marshal(h)
					s.checks.Write(text)
				} else if effectUnknown(name, h) {
					s.checksAny = true
				}
			}
		}
	}
}

// MayCheck reports whether a matcher or a handler can depend on a value that the client sends, or replace it. It is given
// the name of the value, without the prefix of its placeholder.
func (s *Survey) MayCheck(name string) bool {
	text := strings.ToLower(strings.ReplaceAll(s.checks.String(), `\"`, `"`))
	name = strings.ToLower(name)
	return s.checksAny || slices.ContainsFunc([]string{`"` + name + `"`, "'" + name + "'", "." + name + "}", "." + name + `"`},
		func(mention string) bool { return strings.Contains(text, mention) })
}

// MatcherTexts returns loaded matchers as JSON, without those that only look whether a header field is there.
func MatcherTexts(sets caddyhttp.MatcherSets) (texts [][]byte) {
	for _, set := range sets {
		for _, matcher := range set {
			switch m := matcher.(type) {
			case *caddyhttp.MatchNot: // whose JSON is empty once it is loaded
				texts = append(texts, MatcherTexts(m.MatcherSets)...)
				continue
			case *caddyhttp.MatchHeader:
				fields := maps.Clone(*m)
				maps.DeleteFunc(fields, func(_ string, values []string) bool { return slices.Equal(values, []string{"*"}) })
				matcher = &fields
			}
			text, _ := json.Marshal(matcher) // a matcher that has no JSON has no placeholders that are known
			texts = append(texts, text)
		}
	}
	return texts
}
