package ratelimit

import (
	"encoding/json"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	maphandler "github.com/caddyserver/caddy/v2/modules/caddyhttp/map"
)

// placeholderSources holds the placeholders that the routes of a configuration define: destinations
// of map, variables of vars, and captures of regular expressions.
type placeholderSources struct {
	names       map[string]bool
	anyVariable bool // a variable has a placeholder in its name
	expressions bool // there are CEL expressions with regular expressions
	plugins     bool // there are handlers or matchers that are not Caddy's: they may set any placeholder
	unseen      bool // the routes could not be seen
	caddys      *caddy.Replacer
}

// configNames returns the placeholders that the configuration defines, in any server or
// route. When the first handler asks, the http app is still loading its routes. The app keeps
// the JSON of a route until all handlers of the route are loaded. So each route can be read
// whole: as JSON, or as modules if it was loaded before.
func (a *App) configNames(ctx caddy.Context) *placeholderSources {
	if a.placeholders != nil {
		return a.placeholders
	}
	n := &placeholderSources{names: make(map[string]bool), caddys: newCaddyReplacer(), unseen: true}
	a.placeholders = n
	for _, module := range ctx.Modules() {
		app, ok := module.(*caddyhttp.App)
		if !ok {
			continue
		}
		n.unseen = false
		for _, server := range app.Servers {
			n.routes(server.Routes)
			if server.Errors != nil {
				n.routes(server.Errors.Routes)
			}
			for _, route := range server.NamedRoutes {
				n.route(route)
			}
		}
	}
	return n
}

func (n *placeholderSources) routes(routes caddyhttp.RouteList) {
	for i := range routes {
		n.route(&routes[i])
	}
}

// route reads a route, loaded or not.
func (n *placeholderSources) route(r *caddyhttp.Route) {
	for _, raw := range r.HandlersRaw {
		n.json(raw)
	}
	for _, set := range r.MatcherSetsRaw {
		n.matchers(set)
	}
	for _, handler := range r.Handlers {
		n.module(handler)
	}
	n.matcherSets(r.MatcherSets)
}

func (n *placeholderSources) matcherSets(sets caddyhttp.MatcherSets) {
	for _, set := range sets {
		for _, matcher := range set {
			n.module(matcher)
		}
	}
}

// module reads a loaded handler or matcher.
func (n *placeholderSources) module(module any) {
	v := reflect.Indirect(reflect.ValueOf(module))
	n.plugins = n.plugins || !isCaddys(v.Type())
	switch m := module.(type) {
	case *maphandler.Handler:
		for _, destination := range m.Destinations { // map has removed the braces
			n.names[destination] = true
		}
	case *caddyhttp.VarsMiddleware:
		for name := range *m {
			n.variable(name)
		}
	case *caddyhttp.MatchExpression:
		n.expression(m.Expr)
	case *caddyhttp.MatchNot:
		n.matcherSets(m.MatcherSets)
	default:
		n.settings(v)
	}
}

// settings reads the fields of a module that are part of its JSON. Other fields may change
// while they are read.
func (n *placeholderSources) settings(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			n.settings(v.Elem())
		}
	case reflect.Slice, reflect.Array:
		if raw, ok := v.Interface().(json.RawMessage); ok {
			n.json(raw)
			return
		}
		for i := range v.Len() {
			n.settings(v.Index(i))
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			n.settings(v.MapIndex(key))
		}
	case reflect.Struct:
		switch s := v.Interface().(type) {
		case caddyhttp.Route:
			n.route(&s)
			return
		case caddyhttp.MatchRegexp:
			n.captures(s.Name, s.Pattern)
			return
		}
		for i := range v.NumField() {
			field := v.Type().Field(i)
			if tag, tagged := field.Tag.Lookup("json"); field.IsExported() && (tagged && tag != "-" || field.Anonymous && !tagged) {
				n.settings(v.Field(i))
			}
		}
	}
}

// json reads JSON that may hold handlers.
func (n *placeholderSources) json(raw json.RawMessage) {
	var value any
	if json.Unmarshal(raw, &value) == nil {
		n.value(value)
	}
}

func (n *placeholderSources) matchers(set caddy.ModuleMap) {
	for name, raw := range set {
		var value any
		if json.Unmarshal(raw, &value) == nil {
			n.matcher(name, value)
		}
	}
}

func (n *placeholderSources) value(value any) {
	switch value := value.(type) {
	case []any:
		for _, one := range value {
			n.value(one)
		}
	case map[string]any:
		n.object(value)
	}
}

func (n *placeholderSources) object(o map[string]any) {
	if handler, ok := o["handler"].(string); ok {
		n.named("http.handlers." + handler)
		switch handler {
		case "map":
			destinations, _ := o["destinations"].([]any)
			for _, destination := range destinations {
				if name, ok := destination.(string); ok {
					n.names[strings.Trim(name, "{}")] = true
				}
			}
			return
		case "vars":
			for name := range o {
				n.variable(name)
			}
			return
		}
	}
	if pattern, ok := o["pattern"].(string); ok {
		name, _ := o["name"].(string)
		n.captures(name, pattern)
	}
	for name, value := range o {
		if sets, ok := value.([]any); ok && name == "match" {
			n.sets(sets)
		} else {
			n.value(value)
		}
	}
}

// sets reads matcher sets.
func (n *placeholderSources) sets(sets []any) {
	for _, set := range sets {
		matchers, _ := set.(map[string]any)
		for name, value := range matchers {
			n.matcher(name, value)
		}
	}
}

func (n *placeholderSources) matcher(name string, value any) {
	n.named("http.matchers." + name)
	switch name {
	case "expression":
		object, _ := value.(map[string]any)
		text, ok := value.(string)
		if !ok {
			text, _ = object["expr"].(string)
		}
		n.expression(text)
	case "not":
		sets, _ := value.([]any)
		n.sets(sets)
	default:
		n.value(value)
	}
}

// named notes that a module of this ID is in use.
func (n *placeholderSources) named(id string) {
	if info, err := caddy.GetModule(id); err == nil {
		n.plugins = n.plugins || !isCaddys(reflect.Indirect(reflect.ValueOf(info.New())).Type())
	}
}

// isCaddys reports whether the type of a module is one of Caddy's, or a Handler.
func isCaddys(t reflect.Type) bool {
	return strings.HasPrefix(t.PkgPath(), "github.com/caddyserver/caddy/v2/") || t == reflect.TypeFor[Handler]()
}

func (n *placeholderSources) variable(name string) {
	n.names["http.vars."+name] = true
	n.anyVariable = n.anyVariable || strings.Contains(name, "{")
}

func (n *placeholderSources) expression(text string) {
	n.expressions = n.expressions || strings.Contains(text, "regexp")
}

// captures notes the captures of a regular expression, by number and by name, with and
// without the name of the expression.
func (n *placeholderSources) captures(name, pattern string) {
	expression, err := regexp.Compile(pattern)
	if err != nil {
		return
	}
	for i, group := range expression.SubexpNames() {
		for _, suffix := range []string{strconv.Itoa(i), group} {
			if suffix != "" {
				n.names["http.regexp."+suffix] = true
				n.names["http.regexp."+name+"."+suffix] = true
			}
		}
	}
}
