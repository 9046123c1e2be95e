package placeholder

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

// Read returns the placeholders that a configuration defines, in any server, route or shared zone. app is nil
// if the routes are not known. handlerZones returns the names of the zones of a module, and whether it is a
// handler of this module.
//
// While the first handler is provisioned, the http app is still loading its routes. The app keeps the JSON of
// a route until all handlers of the route are loaded. So each route can be read whole: as JSON, or as modules
// if it was loaded before.
func Read[Z any](app *caddyhttp.App, sharedZones map[string]Z, handlerZones func(module any) (names []string, ok bool)) *Sources {
	sources := CaddyAlone()
	sources.handlerZones, sources.routesUnknown = handlerZones, app == nil
	for zone := range sharedZones {
		sources.zones[zone] = true
	}
	if zones, err := json.Marshal(sharedZones); err == nil {
		sources.addJSON(zones) // the captures of their matchers
	}
	if app == nil {
		return sources
	}
	for _, server := range app.Servers {
		sources.addRoutes(server.Routes)
		if server.Errors != nil {
			sources.addRoutes(server.Errors.Routes)
		}
		for _, route := range server.NamedRoutes {
			sources.addRoute(route)
		}
	}
	return sources
}

func (sources *Sources) addRoutes(routes caddyhttp.RouteList) {
	for i := range routes {
		sources.addRoute(&routes[i])
	}
}

// addRoute adds the placeholders of a route, loaded or not.
func (sources *Sources) addRoute(r *caddyhttp.Route) {
	if raw, err := json.Marshal(r); err == nil { // which has what isn't loaded yet
		sources.addJSON(raw)
	}
	for _, handler := range r.Handlers {
		sources.addModule(handler)
	}
	sources.addMatcherSets(r.MatcherSets)
}

func (sources *Sources) addMatcherSets(sets caddyhttp.MatcherSets) {
	for _, set := range sets {
		for _, matcher := range set {
			sources.addModule(matcher)
		}
	}
}

// addModule adds the placeholders of a loaded handler or matcher.
func (sources *Sources) addModule(module any) {
	v := reflect.Indirect(reflect.ValueOf(module))
	sources.plugins = sources.plugins || !sources.isKnown(module)
	zones, _ := sources.handlerZones(module)
	for _, zone := range zones {
		sources.zones[zone] = true
	}
	switch m := module.(type) {
	case *maphandler.Handler:
		for _, destination := range m.Destinations { // map has removed the braces
			sources.names[destination] = true
		}
	case *caddyhttp.VarsMiddleware:
		for name := range *m {
			sources.addVariable(name)
		}
	case *caddyhttp.MatchExpression:
		sources.addExpression(m.Expr)
	case *caddyhttp.MatchNot:
		sources.addMatcherSets(m.MatcherSets)
	default:
		sources.addSettings(v)
	}
}

// addSettings adds the placeholders of a module's fields, as far as they are part of its JSON.
// Other fields may change while they are read.
func (sources *Sources) addSettings(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			sources.addSettings(v.Elem())
		}
	case reflect.Slice, reflect.Array:
		if raw, ok := v.Interface().(json.RawMessage); ok {
			sources.addJSON(raw)
			return
		}
		for i := range v.Len() {
			sources.addSettings(v.Index(i))
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			sources.addSettings(v.MapIndex(key))
		}
	case reflect.Struct:
		switch s := v.Interface().(type) {
		case caddyhttp.Route:
			sources.addRoute(&s)
			return
		case caddyhttp.MatchRegexp:
			sources.addCaptures(s.Name, s.Pattern)
			return
		}
		for i := range v.NumField() {
			field := v.Type().Field(i)
			if tag, tagged := field.Tag.Lookup("json"); field.IsExported() && (tagged && tag != "-" || field.Anonymous && !tagged) {
				sources.addSettings(v.Field(i))
			}
		}
	}
}

// addJSON adds the placeholders of JSON that may hold handlers and matchers.
func (sources *Sources) addJSON(raw json.RawMessage) {
	var value any
	if json.Unmarshal(raw, &value) == nil {
		sources.addJSONValue(value)
	}
}

func (sources *Sources) addJSONValue(value any) {
	switch value := value.(type) {
	case []any:
		for _, one := range value {
			sources.addJSONValue(one)
		}
	case map[string]any:
		sources.addJSONObject(value)
	}
}

func (sources *Sources) addJSONObject(o map[string]any) {
	if handler, ok := o["handler"].(string); ok {
		sources.addModuleID("http.handlers." + handler)
		switch handler {
		case "rate_limit":
			zones, _ := o["rate_limits"].(map[string]any)
			for zone := range zones {
				sources.zones[zone] = true
			}
		case "map":
			destinations, _ := o["destinations"].([]any)
			for _, destination := range destinations {
				if name, ok := destination.(string); ok {
					sources.names[strings.Trim(name, "{}")] = true
				}
			}
			return
		case "vars":
			for name := range o {
				sources.addVariable(name)
			}
			return
		}
	}
	if pattern, ok := o["pattern"].(string); ok {
		name, _ := o["name"].(string)
		sources.addCaptures(name, pattern)
	}
	for name, value := range o {
		if sets, ok := value.([]any); ok && name == "match" {
			sources.addJSONMatcherSets(sets)
		} else {
			sources.addJSONValue(value)
		}
	}
}

// addJSONMatcherSets adds the placeholders of decoded matcher sets.
func (sources *Sources) addJSONMatcherSets(sets []any) {
	for _, set := range sets {
		matchers, _ := set.(map[string]any)
		for name, value := range matchers {
			sources.addJSONMatcher(name, value)
		}
	}
}

func (sources *Sources) addJSONMatcher(name string, value any) {
	sources.addModuleID("http.matchers." + name)
	switch name {
	case "expression":
		object, _ := value.(map[string]any)
		text, ok := value.(string)
		if !ok {
			text, _ = object["expr"].(string)
		}
		sources.addExpression(text)
	case "not":
		sets, _ := value.([]any)
		sources.addJSONMatcherSets(sets)
	default:
		sources.addJSONValue(value)
	}
}

// addModuleID notes that a module with this ID is in use.
func (sources *Sources) addModuleID(id string) {
	if info, err := caddy.GetModule(id); err == nil {
		sources.plugins = sources.plugins || !sources.isKnown(info.New())
	}
}

// isKnown reports whether a module is part of Caddy, or is a handler of this module.
func (sources *Sources) isKnown(module any) bool {
	_, own := sources.handlerZones(module)
	return own || strings.HasPrefix(reflect.Indirect(reflect.ValueOf(module)).Type().PkgPath(), "github.com/caddyserver/caddy/v2/")
}

func (sources *Sources) addVariable(name string) {
	sources.names["http.vars."+name] = true
	sources.anyVariable = sources.anyVariable || strings.Contains(name, "{")
}

func (sources *Sources) addExpression(text string) {
	sources.regexpExpressions = sources.regexpExpressions || strings.Contains(text, "regexp")
}

// addCaptures adds the placeholders of the captures of a regular expression: by number and by name,
// with and without the name of the expression.
func (sources *Sources) addCaptures(name, pattern string) {
	expression, err := regexp.Compile(pattern)
	if err != nil {
		return
	}
	for i, group := range expression.SubexpNames() {
		for _, suffix := range []string{strconv.Itoa(i), group} {
			if suffix != "" {
				sources.names["http.regexp."+suffix] = true
				sources.names["http.regexp."+name+"."+suffix] = true
			}
		}
	}
}
