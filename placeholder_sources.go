package ratelimit

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	maphandler "github.com/caddyserver/caddy/v2/modules/caddyhttp/map"
)

// placeholderSources knows which placeholders a request can have. It collects those that the
// routes of a configuration define: destinations of map, variables of vars, and captures of
// regular expressions.
type placeholderSources struct {
	names             map[string]bool
	zones             map[string]bool // the names of all zones
	anyVariable       bool            // a variable has a placeholder in its name
	regexpExpressions bool            // a CEL expression has a regular expression, whose captures are unknown
	plugins           bool            // a handler or matcher isn't Caddy's, and may set any placeholder
	routesUnknown     bool            // there is no http app whose routes could be read
	caddyReplacer     *caddy.Replacer // has the placeholders of every request
}

// placeholderSources returns the placeholders that the configuration defines, in any server, route
// or shared zone. It reads the configuration once. When the first handler calls it, the http app is still
// loading its routes. The app keeps the JSON of a route until all handlers of the route are
// loaded. So each route can be read whole: as JSON, or as modules if it was loaded before.
func (a *App) placeholderSources(ctx caddy.Context) *placeholderSources {
	if a.cachedSources != nil {
		return a.cachedSources
	}
	for _, module := range ctx.Modules() {
		if app, ok := module.(*caddyhttp.App); ok {
			return a.readPlaceholderSources(app)
		}
	}
	return a.readPlaceholderSources(nil)
}

// readPlaceholderSources reads the placeholders that the configuration defines. app can be nil.
func (a *App) readPlaceholderSources(app *caddyhttp.App) *placeholderSources {
	sources := &placeholderSources{
		names: make(map[string]bool), zones: make(map[string]bool), caddyReplacer: newCaddyReplacer(), routesUnknown: app == nil,
	}
	a.cachedSources = sources
	for zone := range a.RateLimits {
		sources.zones[zone] = true
	}
	if zones, err := json.Marshal(a.RateLimits); err == nil {
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

func (sources *placeholderSources) addRoutes(routes caddyhttp.RouteList) {
	for i := range routes {
		sources.addRoute(&routes[i])
	}
}

// addRoute adds the placeholders of a route, loaded or not.
func (sources *placeholderSources) addRoute(r *caddyhttp.Route) {
	for _, raw := range r.HandlersRaw {
		sources.addJSON(raw)
	}
	for _, set := range r.MatcherSetsRaw {
		sources.addRawMatchers(set)
	}
	for _, handler := range r.Handlers {
		sources.addModule(handler)
	}
	sources.addMatcherSets(r.MatcherSets)
}

func (sources *placeholderSources) addMatcherSets(sets caddyhttp.MatcherSets) {
	for _, set := range sets {
		for _, matcher := range set {
			sources.addModule(matcher)
		}
	}
}

// addModule adds the placeholders of a loaded handler or matcher.
func (sources *placeholderSources) addModule(module any) {
	v := reflect.Indirect(reflect.ValueOf(module))
	sources.plugins = sources.plugins || !isFromCaddy(v.Type())
	switch m := module.(type) {
	case *Handler:
		for zone := range m.RateLimits {
			sources.zones[zone] = true
		}
		sources.addSettings(v)
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
func (sources *placeholderSources) addSettings(v reflect.Value) {
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
func (sources *placeholderSources) addJSON(raw json.RawMessage) {
	var value any
	if json.Unmarshal(raw, &value) == nil {
		sources.addJSONValue(value)
	}
}

func (sources *placeholderSources) addRawMatchers(set caddy.ModuleMap) {
	for name, raw := range set {
		var value any
		if json.Unmarshal(raw, &value) == nil {
			sources.addJSONMatcher(name, value)
		}
	}
}

func (sources *placeholderSources) addJSONValue(value any) {
	switch value := value.(type) {
	case []any:
		for _, one := range value {
			sources.addJSONValue(one)
		}
	case map[string]any:
		sources.addJSONObject(value)
	}
}

func (sources *placeholderSources) addJSONObject(o map[string]any) {
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
func (sources *placeholderSources) addJSONMatcherSets(sets []any) {
	for _, set := range sets {
		matchers, _ := set.(map[string]any)
		for name, value := range matchers {
			sources.addJSONMatcher(name, value)
		}
	}
}

func (sources *placeholderSources) addJSONMatcher(name string, value any) {
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
func (sources *placeholderSources) addModuleID(id string) {
	if info, err := caddy.GetModule(id); err == nil {
		sources.plugins = sources.plugins || !isFromCaddy(reflect.Indirect(reflect.ValueOf(info.New())).Type())
	}
}

// isFromCaddy reports whether the type of a module is part of Caddy, or is a [Handler].
func isFromCaddy(t reflect.Type) bool {
	return strings.HasPrefix(t.PkgPath(), "github.com/caddyserver/caddy/v2/") || t == reflect.TypeFor[Handler]()
}

func (sources *placeholderSources) addVariable(name string) {
	sources.names["http.vars."+name] = true
	sources.anyVariable = sources.anyVariable || strings.Contains(name, "{")
}

func (sources *placeholderSources) addExpression(text string) {
	sources.regexpExpressions = sources.regexpExpressions || strings.Contains(text, "regexp")
}

// addCaptures adds the placeholders of the captures of a regular expression: by number and by name,
// with and without the name of the expression.
func (sources *placeholderSources) addCaptures(name, pattern string) {
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

// openPrefixes are the prefixes of placeholders whose names end in a text of the user's choice.
var openPrefixes = []struct {
	prefix string
	header bool // the name ends in a header field
}{
	{"http.request.header.", true},
	{"http.response.header.", true},
	{"http.reverse_proxy.header.", true},
	{"http.intercept.header.", true},
	{"http.request.cookie.", false},
	{"http.request.uri.query.", false},
	{"http.auth.", false},
	{"http.url_pattern.", false},
	{"env.", false},
	{"file.", false},
}

// runtimePlaceholders are the placeholders that Caddy's handlers and matchers set while they handle
// a request. The replacer of [newCaddyReplacer] knows those that every request has from the
// beginning.
var runtimePlaceholders = strings.Fields(`
	http.error http.error.status_code http.error.status_text http.error.message http.error.trace http.error.id
	http.intercept.status_code
	http.matchers.file.relative http.matchers.file.absolute http.matchers.file.remainder http.matchers.file.type
	http.response.status http.response.size http.response.duration http.response.duration_ms
	http.reverse_proxy.duration http.reverse_proxy.duration_ms http.reverse_proxy.retries http.reverse_proxy.is_transport_error
	http.reverse_proxy.status_code http.reverse_proxy.status_text
	http.reverse_proxy.upstream.address http.reverse_proxy.upstream.hostport http.reverse_proxy.upstream.host
	http.reverse_proxy.upstream.port http.reverse_proxy.upstream.requests http.reverse_proxy.upstream.max_requests
	http.reverse_proxy.upstream.fails http.reverse_proxy.upstream.latency http.reverse_proxy.upstream.latency_ms
	http.reverse_proxy.upstream.duration http.reverse_proxy.upstream.duration_ms
	http.vars.client_ip http.vars.trusted_proxy http.vars.start_time http.vars.uuid http.vars.trace_id http.vars.span_id
	http.vars.matchers.error http.vars.access_logger_names
	http.shutting_down http.time_until_shutdown`)

// caddyPrefixes are the prefixes of placeholders that only Caddy sets.
var caddyPrefixes = []string{
	"http.request.", "http.response.", "http.vars.", "http.regexp.", "http.matchers.file.", "http.error.", "http.intercept.",
	"system.", "time.",
}

// newCaddyReplacer returns a replacer with the placeholders that every request has.
func newCaddyReplacer() *caddy.Replacer {
	repl := caddy.NewReplacer()
	ctx := context.WithValue(context.Background(), http.LocalAddrContextKey, new(net.TCPAddr))
	connection := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}} // has the placeholders of TLS, too
	r := (&http.Request{URL: new(url.URL), Header: make(http.Header), TLS: connection}).WithContext(ctx)
	caddyhttp.PrepareRequest(r, repl, nil, new(caddyhttp.Server))
	return repl
}

// caddyAlone returns the placeholders that requests have in any configuration.
func caddyAlone() *placeholderSources {
	return &placeholderSources{caddyReplacer: newCaddyReplacer()}
}

// provides reports whether this module, Caddy or the configuration provides the placeholder of this name.
func (sources *placeholderSources) provides(name string) bool {
	if strings.HasPrefix(name, placeholderPrefix+".") { // checkOwnPlaceholder reports errors
		return true
	}
	for _, open := range openPrefixes {
		if rest, ok := strings.CutPrefix(name, open.prefix); ok {
			return rest != "" && (!open.header || isFieldName(rest))
		}
	}
	if sources.names[name] || slices.Contains(runtimePlaceholders, name) {
		return true
	}
	if strings.HasPrefix(name, "http.vars.") { // a replacer knows every such name
		return sources.anyVariable
	}
	if sources.regexpExpressions && strings.HasPrefix(name, "http.regexp.") { // CEL expressions are not parsed
		return true
	}
	_, known := sources.caddyReplacer.Get(name)
	return known
}

// The fields of {http.rate_limit.<zone>.<field>} and of {http.rate_limit.exceeded.<field>}.
var (
	zoneFields     = strings.Fields("limit remaining reset retry_after allowed charged banned")
	exceededFields = strings.Fields("name limit remaining retry_after reason id")
)

// isFieldName reports whether a header field can have this name.
func isFieldName(name string) bool {
	return !strings.ContainsFunc(name, func(c rune) bool {
		return c <= ' ' || c > '~' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, c)
	})
}

// pluginMayProvide reports whether a plugin may provide a placeholder that Caddy doesn't.
func (sources *placeholderSources) pluginMayProvide(name string) bool {
	_, short := expandShorthand(name)
	if sources.routesUnknown || short {
		return sources.routesUnknown
	}
	if sources.plugins {
		return true
	}
	namespace, _, dotted := strings.Cut(name, ".")
	_, short = expandShorthand(namespace + ".x")
	return dotted && !short && !slices.ContainsFunc(caddyPrefixes, func(own string) bool { return strings.HasPrefix(name, own) })
}
