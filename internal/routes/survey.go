package routes

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	maphandler "github.com/caddyserver/caddy/v2/modules/caddyhttp/map"
)

// Survey has the parts of routes that matter for warnings, in any order. It leaves out routes in other handlers than subroute, such
// as those for responses of reverse_proxy.
type Survey struct {
	RateLimits []Placed
	Defined    map[string]bool // the placeholders that map and vars define
	words      map[string]bool // of what can depend on a value of a request
	checksAny  bool            // there is a handler whose effect is not known
}

// NewSurvey returns a survey of no routes yet, which adds to the defined placeholders.
func NewSurvey(defined map[string]bool) *Survey {
	return &Survey{Defined: defined, words: make(map[string]bool)}
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

// Add adds routes, which are loaded, with the matchers around them.
func (s *Survey) Add(routes caddyhttp.RouteList, around caddyhttp.MatcherSets) {
	for _, route := range routes {
		around := slices.Concat(around, route.MatcherSets)
		s.addWords(bytes.Join(MatcherTexts(route.MatcherSets), []byte(" ")))
		for _, handler := range route.Handlers {
			switch h := handler.(type) {
			case *maphandler.Handler: // which has removed the braces
				for _, name := range h.Destinations {
					s.Defined[name] = true
				}
				s.addWords([]byte(h.Source))
			case *caddyhttp.VarsMiddleware:
				for name := range *h {
					s.Defined["http.vars."+name] = true
				}
			case *caddyhttp.Subroute:
				s.Add(h.Routes, around)
			case *caddyhttp.Invoke, *caddyhttp.StaticResponse:
			case RateLimit:
				s.RateLimits = append(s.RateLimits, Placed{h, around})
			default:
				if name := nameOf(h); name == "headers" && hasSet(h, "request") {
					text, _ := json.Marshal(h)
					s.addWords(text)
				} else if effectUnknown(name, h) {
					s.checksAny = true
				}
			}
		}
	}
}

// wordForm matches the words of a text: of {http.request.header.X-Key} one is X-Key.
var wordForm = regexp.MustCompile(`[\w-]+`)

func (s *Survey) addWords(text []byte) {
	for _, word := range wordForm.FindAll(bytes.ToLower(text), -1) {
		s.words[string(word)] = true
	}
}

// MayCheck reports whether a matcher or a handler can depend on a value that the client sends under a name, or replace it.
func (s *Survey) MayCheck(name string) bool {
	words := wordForm.FindAllString(strings.ToLower(name), -1)
	return s.checksAny || !slices.ContainsFunc(words, func(word string) bool { return !s.words[word] })
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
