package routes

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	maphandler "github.com/caddyserver/caddy/v2/modules/caddyhttp/map"
)

// Survey has the parts of routes that matter for warnings, in any order. It omits routes in other handlers than
// subroute and invoke, such as those for responses of reverse_proxy.
type Survey struct {
	Named      map[string]*caddyhttp.Route // the named routes of the server
	Defined    map[string]bool             // the placeholders that map and vars define
	RateLimits []Placed
	matchers   []byte // all of them
	checks     []check
	invoked    []string // the named routes that are being added
	exclusive  int      // how many routes had others in their place
}

// Placed is a rate_limit handler.
type Placed struct {
	RateLimit RateLimit
	Around    caddyhttp.MatcherSets // the matchers around it
	Path      string                // of the routes around it: a route in others begins with their path
}

// check is a part of the routes that can depend on what a client sends, or replace it.
type check struct {
	path  string          // of the routes around it
	words map[string]bool // in it; nil if its effect is not known
	names []string        // of a map or vars, which check nothing unless a matcher has one of them
}

// AddCheck adds that something checks all requests of the routes with this path.
func (s *Survey) AddCheck(path string) { s.checks = append(s.checks, check{path: path}) }

// Add adds routes, which are loaded, in other routes with these matchers and this path.
func (s *Survey) Add(routes caddyhttp.RouteList, outer caddyhttp.MatcherSets, outerPath string) {
	for _, route := range routes {
		around, path := slices.Concat(outer, route.MatcherSets), outerPath+PathOf(route.MatcherSets)
		if route.Group != "" || route.Terminal { // a request meets it instead of others
			s.exclusive++
			path += fmt.Sprintf("%d\n", s.exclusive)
		}
		texts := MatcherTexts(route.MatcherSets)
		s.matchers = append(s.matchers, bytes.Join(texts, nil)...)
		texts = slices.DeleteFunc(texts, func(text []byte) bool { return text[0] == '[' }) // paths, hosts and methods
		s.checks = append(s.checks, check{path: outerPath, words: wordsOf(bytes.Join(texts, []byte(" ")))})
		for _, handler := range route.Handlers {
			switch h := handler.(type) {
			case *maphandler.Handler: // which has removed the braces
				s.define("", path, wordsOf([]byte(h.Source)), h.Destinations)
			case *caddyhttp.VarsMiddleware:
				text, _ := json.Marshal(h)
				s.define("http.vars.", path, wordsOf(text), slices.Collect(maps.Keys(*h)))
			case *caddyhttp.Subroute:
				s.Add(h.Routes, around, path)
			case *caddyhttp.Invoke:
				if named := s.Named[h.Name]; named != nil && !slices.Contains(s.invoked, h.Name) {
					s.invoked = append(s.invoked, h.Name)
					s.Add(caddyhttp.RouteList{*named}, around, path)
					s.invoked = s.invoked[:len(s.invoked)-1]
				}
			case *caddyhttp.StaticResponse:
			case RateLimit:
				s.RateLimits = append(s.RateLimits, Placed{h, around, path})
			default:
				if name := nameOf(h); name == "headers" && hasSet(h, "request") || name == "rewrite" {
					text, _ := json.Marshal(h)
					s.checks = append(s.checks, check{path: path, words: wordsOf(inBraces.ReplaceAll(text, nil))})
				} else if name == "authentication" && isBasic(h) {
					s.checks = append(s.checks, check{path: path, words: map[string]bool{"authorization": true, "basic_user": true}})
				} else if effectUnknown(name, h) {
					s.AddCheck(path)
				}
			}
		}
	}
}

// define adds the names that a map or vars defines, whose placeholders begin with a prefix.
func (s *Survey) define(prefix, path string, words map[string]bool, names []string) {
	for _, name := range names {
		s.Defined[prefix+name] = true
	}
	s.checks = append(s.checks, check{path, words, names})
}

// isBasic reports whether an authentication handler knows users by their passwords only.
func isBasic(h caddyhttp.MiddlewareHandler) bool {
	providers := reflect.Indirect(reflect.ValueOf(h)).FieldByName("Providers").MapKeys()
	return len(providers) == 1 && providers[0].String() == "http_basic"
}

var (
	inBraces = regexp.MustCompile(`\{[^{}"]*\}`)
	wordForm = regexp.MustCompile(`[\w-]+`) // of {http.request.header.X-Key} one is X-Key
)

func wordsOf(text []byte) map[string]bool {
	words := make(map[string]bool)
	for _, word := range wordForm.FindAll(bytes.ToLower(text), -1) {
		words[string(word)] = true
	}
	return words
}

// MayCheck reports whether something may check a value that clients send under a name, in all requests of the routes with
// this path.
func (s *Survey) MayCheck(path, name string) bool {
	words := slices.Collect(maps.Keys(wordsOf([]byte(name))))
	return len(words) > 0 && slices.ContainsFunc(s.checks, func(c check) bool {
		isMatched := func(name string) bool { return bytes.Contains(s.matchers, []byte(name)) }
		lacks := func(word string) bool { return c.words != nil && !c.words[word] }
		return strings.HasPrefix(path, c.path) && !slices.ContainsFunc(words, lacks) &&
			(c.names == nil || slices.ContainsFunc(c.names, isMatched))
	})
}

// PathOf returns the matchers of a route or a zone as a line, which is the same for equal ones, or "" for none.
func PathOf(sets caddyhttp.MatcherSets) (path string) {
	for _, set := range sets {
		var texts []string
		for _, matcher := range set {
			text, _ := json.Marshal(matcher)
			if not, is := matcher.(*caddyhttp.MatchNot); is { // whose JSON is empty once it is loaded
				text = []byte(PathOf(not.MatcherSets))
			}
			texts = append(texts, fmt.Sprintf("%T %q", matcher, text))
		}
		slices.Sort(texts)
		path += " or " + strings.Join(texts, " and ")
	}
	if path != "" {
		path += "\n"
	}
	return path
}

// MatcherTexts returns loaded matchers as JSON, without those that only look whether a header field or a value of the query
// is there.
func MatcherTexts(sets caddyhttp.MatcherSets) (texts [][]byte) {
	compared := func(fields map[string][]string) any {
		fields = maps.Clone(fields)
		maps.DeleteFunc(fields, func(_ string, values []string) bool { return len(values) == 0 || slices.Equal(values, []string{"*"}) })
		return fields
	}
	for _, set := range sets {
		for _, matcher := range set {
			var known any = matcher
			switch m := matcher.(type) {
			case *caddyhttp.MatchNot:
				texts = append(texts, MatcherTexts(m.MatcherSets)...)
				continue
			case *caddyhttp.MatchHeader:
				known = compared(*m)
			case *caddyhttp.MatchQuery:
				known = compared(*m)
			}
			if text, err := json.Marshal(known); err == nil { // one that has no JSON has no placeholders that are known
				texts = append(texts, text)
			}
		}
	}
	return texts
}
