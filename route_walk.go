package ratelimit

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// routeWalk leads a request through the routes of a server, with Caddy's own matchers, groups and
// terminal routes. It runs only the handlers that change nothing but the request. So no upstream is
// asked, no file is served, no password is checked, and nothing is written.
type routeWalk struct {
	ctx    caddy.Context // of the configuration
	server *caddyhttp.Server
	user   string // the ID of the user whom authentication handlers let in; may be empty
	// meet is called for each rate_limit handler that the request meets. It passes the request to
	// next, or ends the walk with an error.
	meet func(h *Handler, w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error

	notes []string // what the walk had to assume
	steps int      // the number of handlers that the request has met
	users int      // the number of these that authenticate
}

// maxWalkSteps bounds the handlers that a request meets. Named routes can invoke each other without
// an end.
const maxWalkSteps = 10_000

// The errors that end a walk for a reason of the request or of the configuration.
var (
	errWalkTooLong   = fmt.Errorf("the request met %d handlers: look for named routes that invoke each other", maxWalkSteps)
	errUnknownInvoke = errors.New("there is no named route of this name")
)

// run leads a request through the routes. The request has the context of [caddyhttp.PrepareRequest].
// A panic of a handler or a matcher becomes an error.
func (w *routeWalk) run(rw http.ResponseWriter, r *http.Request) (err error) {
	defer recoverWalk(&err)
	return w.serve(w.server.Routes, rw, r, endOfWalk)
}

// recoverWalk is deferred by a walk. It makes an error of a panic of a handler or a matcher.
func recoverWalk(err *error) {
	if reason := recover(); reason != nil {
		*err = fmt.Errorf("a handler or a matcher panicked: %v", reason)
	}
}

// endOfWalk is behind the last handler.
var endOfWalk = caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error { return nil })

// serve leads a request through a list of routes, and then to next.
func (w *routeWalk) serve(routes caddyhttp.RouteList, rw http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	copies := make(caddyhttp.RouteList, len(routes))
	for i := range routes {
		steps := make([]caddyhttp.MiddlewareHandler, len(routes[i].Handlers))
		for n, h := range routes[i].Handlers {
			steps[n] = walkStep{w, h}
		}
		var err error
		if copies[i], err = routeWith(w.ctx, &routes[i], steps); err != nil {
			return err
		}
	}
	return copies.Compile(next).ServeHTTP(rw, r)
}

// routeWith returns a copy of a route whose matchers are loaded, with other handlers.
func routeWith(ctx caddy.Context, route *caddyhttp.Route, handlers []caddyhttp.MiddlewareHandler) (caddyhttp.Route, error) {
	c := caddyhttp.Route{Group: route.Group, MatcherSets: route.MatcherSets, Terminal: route.Terminal, Handlers: handlers}
	// There is no module to load, so this only makes the chain of the handlers.
	err := c.ProvisionHandlers(ctx, nil)
	return c, err
}

// note adds a note, once.
func (w *routeWalk) note(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(w.notes, text) {
		w.notes = append(w.notes, text)
	}
}

// walkStep stands for a handler in a walk.
type walkStep struct {
	walk    *routeWalk
	handler caddyhttp.MiddlewareHandler
}

// handling says what a walk does with a handler of Caddy.
type handling uint8

const (
	unknown  handling = iota // it doesn't run, and is assumed to pass the request on
	runs                     // it changes only the request, so it runs
	passes                   // it changes only the response, so it is left out
	responds                 // it responds, so the walk ends
)

// handlings has the handlers of Caddy that need no further look, by the last part of the module ID.
var handlings = map[string]handling{
	"headers": runs, "map": runs, "request_body": runs, "rewrite": runs, "vars": runs,
	"encode": passes, "intercept": passes, "log_append": passes, "push": passes, "templates": passes, "timeouts": passes, "tracing": passes,
	"copy_response": responds, "copy_response_headers": responds, "error": responds, "metrics": responds,
}

// handlingOf returns what a walk does with a handler, by the last part of its module ID. hasSet reports
// whether an option of the handler is set, by its name in JSON.
func handlingOf(handler string, hasSet func(option string) bool) handling {
	switch handler {
	case "reverse_proxy":
		if !hasSet("handle_response") {
			return responds
		}
	case "file_server":
		if !hasSet("pass_thru") {
			return responds
		}
	}
	return handlings[handler]
}

// describeUnknown describes a handler that doesn't run, and why.
func describeUnknown(handler string) string {
	switch handler {
	case "authentication":
		return "an authentication handler, which checks nothing here"
	case "reverse_proxy":
		return "a reverse_proxy with handle_response, such as forward_auth, which is not asked"
	case "file_server":
		return "a file_server with pass_thru, which serves no file here"
	}
	return "the handler " + handler + ", which does not run here"
}

// isEarlyHints reports whether a static response is followed by the final one.
func isEarlyHints(h *caddyhttp.StaticResponse) bool {
	return h.StatusCode.Int() == http.StatusEarlyHints
}

// ServeHTTP implements [caddyhttp.MiddlewareHandler].
func (s walkStep) ServeHTTP(rw http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	w := s.walk
	if w.steps++; w.steps > maxWalkSteps {
		return errWalkTooLong
	}
	if err := r.Context().Err(); err != nil {
		return err
	}
	switch h := s.handler.(type) {
	case *Handler:
		return w.meet(h, rw, r, next)
	case *caddyhttp.Subroute:
		return w.serve(h.Routes, rw, r, next)
	case *caddyhttp.Invoke:
		route := w.server.NamedRoutes[h.Name]
		if route == nil {
			return fmt.Errorf("invoke %q: %w", h.Name, errUnknownInvoke)
		}
		return w.serve(caddyhttp.RouteList{*route}, rw, r, next)
	case *caddyhttp.StaticResponse:
		if isEarlyHints(h) {
			return next.ServeHTTP(rw, r)
		}
		return nil
	}
	name := handlerName(s.handler)
	switch handlingOf(name, func(option string) bool { return hasSet(s.handler, option) }) {
	case runs:
		return s.handler.ServeHTTP(rw, r, next)
	case responds:
		return nil
	case unknown:
		w.assumeToPassOn(name, r)
	}
	return next.ServeHTTP(rw, r)
}

// handlerName returns the last part of a handler's module ID.
func handlerName(h caddyhttp.MiddlewareHandler) string {
	return strings.TrimPrefix(caddy.GetModuleID(h), "http.handlers.")
}

// assumeToPassOn notes that an unknown handler is assumed to pass the request on.
func (w *routeWalk) assumeToPassOn(handler string, r *http.Request) {
	assumption := "it is assumed to pass the request on"
	switch handler {
	case "authentication":
		if w.users++; w.user != "" {
			setUser(r, w.user)
			return
		}
		assumption += " without a user; write user with the ID of the user whom it would let in"
	case "reverse_proxy":
		assumption += "; write header fields that it would copy into headers"
	case "file_server":
	default:
		assumption += " unchanged"
	}
	w.note("the request meets %s: %s", describeUnknown(handler), assumption)
}

// setUser sets the ID of the authenticated user.
func setUser(r *http.Request, id string) {
	repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	repl.Set("http.auth.user.id", id)
}

// hasSet reports whether an option of one of Caddy's handlers is set, by its name in JSON. The packages
// of these handlers are not imported, because then each program with this module would have them.
func hasSet(handler caddyhttp.MiddlewareHandler, option string) bool {
	v := reflect.Indirect(reflect.ValueOf(handler))
	for i := range v.NumField() {
		if name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ","); name == option {
			return !v.Field(i).IsZero()
		}
	}
	return false
}

// findServer finds the server that listens on a port, and returns its name. If several do, an address
// with the host decides. If none does, a proxy may send the request to a server without a port.
func (w *routeWalk) findServer(app *caddyhttp.App, host string, port uint) (name string, err error) {
	var best addressMatch
	var found, at string
	var listeners []string
	for _, name := range slices.Sorted(maps.Keys(app.Servers)) {
		listeners = append(listeners, fmt.Sprintf("%s on %s", name, strings.Join(app.Servers[name].Listen, " and ")))
		for _, listen := range app.Servers[name].Listen {
			address, err := caddy.ParseNetworkAddress(listen)
			if err != nil {
				continue
			}
			if match := matchAddress(address, host, port); match > best {
				best, found, at = match, name, listen
			}
		}
	}
	switch best {
	case noAddress:
		return "", adminError(http.StatusNotFound, "no server listens on port %d: write a URL with the port of a server in it, there is %s",
			port, cmp.Or(strings.Join(listeners, ", "), "none"))
	case portlessAddress:
		w.note("no server listens on port %d: the request is assumed to come to server %s at %s", port, found, at)
	}
	w.server = app.Servers[found]
	return found, nil
}

// addressMatch says how well the address of a server matches a URL.
type addressMatch uint8

const (
	noAddress       addressMatch = iota
	portlessAddress              // a unix socket, or a socket that another process has opened
	otherHost
	anyHost
	sameHost
)

func matchAddress(address caddy.NetworkAddress, host string, port uint) addressMatch {
	switch {
	case address.IsUnixNetwork() || address.IsFdNetwork():
		return portlessAddress
	case port < address.StartPort || port > address.EndPort:
		return noAddress
	case strings.EqualFold(address.Host, host):
		return sameHost
	case address.Host == "" || net.ParseIP(address.Host).IsUnspecified():
		return anyHost
	}
	return otherHost
}

// portOf returns the port of a URL's host, or the default port of its scheme.
func portOf(app *caddyhttp.App, scheme, port string) (uint, error) {
	switch {
	case port != "":
		n, err := strconv.ParseUint(port, 10, 16)
		return uint(n), err
	case scheme == "https":
		return uint(cmp.Or(app.HTTPSPort, caddyhttp.DefaultHTTPSPort)), nil
	}
	return uint(cmp.Or(app.HTTPPort, caddyhttp.DefaultHTTPPort)), nil
}

// userSearch searches the routes of a server for rate_limit handlers before authentication. It doesn't
// know which requests a matcher matches. In doubt it finds nothing.
type userSearch struct {
	namedRoutes map[string]*caddyhttp.Route
	invoked     int // how often it has looked into a named route, up to maxWalkSteps
}

// search searches routes. known is true if a handler before them may set the user. later reports whether
// authentication follows behind the routes. If partly is true, only some of the requests behind the routes
// have met the rate_limit handler. Then authentication counts only if all requests meet it.
func (s *userSearch) search(routes caddyhttp.RouteList, known bool, later func(partly bool) bool) {
	setsUser := make([]bool, len(routes))
	for i := range routes {
		route := &routes[i]
		known := known
		for n := range i {
			known = known || setsUser[n] && leadsTo(&routes[n], route)
		}
		laterThanRoute := func(partly bool) bool {
			partly = partly || !meetsAll(route)
			for n := i + 1; n < len(routes); n++ {
				if leadsTo(route, &routes[n]) && s.contains(routes[n:n+1], partly, authenticates) {
					return true
				}
			}
			return !route.Terminal && later(partly)
		}
		for n, handler := range route.Handlers {
			laterThanHandler := func(partly bool) bool {
				return s.contains(caddyhttp.RouteList{{Handlers: route.Handlers[n+1:]}}, partly, authenticates) || laterThanRoute(partly)
			}
			if h, ok := handler.(*Handler); ok && !known && s.invoked < maxWalkSteps {
				h.warnOfLateUsers(laterThanHandler)
			}
			s.search(s.routesOf(handler), known, laterThanHandler)
			setsUser[i] = setsUser[i] || s.contains(caddyhttp.RouteList{{Handlers: route.Handlers[n : n+1]}}, false, maySetUser)
			known = known || setsUser[i]
		}
	}
}

// leadsTo reports whether a request that meets a route can meet a later one of the same list.
func leadsTo(route, later *caddyhttp.Route) bool {
	return !route.Terminal && (route.Group == "" || route.Group != later.Group)
}

// meetsAll reports whether all requests that come to a route meet it.
func meetsAll(route *caddyhttp.Route) bool { return len(route.MatcherSets) == 0 && route.Group == "" }

// contains reports whether such accepts one of the handlers in routes. If always is true, only routes that
// all requests meet count: they have no matcher, and are in no group.
func (s *userSearch) contains(routes caddyhttp.RouteList, always bool, such func(caddyhttp.MiddlewareHandler) bool) bool {
	return slices.ContainsFunc(routes, func(route caddyhttp.Route) bool {
		return (meetsAll(&route) || !always) && slices.ContainsFunc(route.Handlers, func(h caddyhttp.MiddlewareHandler) bool {
			return such(h) || s.contains(s.routesOf(h), always, such)
		})
	})
}

// routesOf returns the routes that a handler leads requests through.
func (s *userSearch) routesOf(handler caddyhttp.MiddlewareHandler) caddyhttp.RouteList {
	switch h := handler.(type) {
	case *caddyhttp.Subroute:
		return h.Routes
	case *caddyhttp.Invoke:
		if route := s.namedRoutes[h.Name]; route != nil && s.invoked < maxWalkSteps {
			s.invoked++
			return caddyhttp.RouteList{*route}
		}
	}
	return nil
}

func authenticates(h caddyhttp.MiddlewareHandler) bool { return handlerName(h) == "authentication" }

// maySetUser reports whether a handler, without the routes in it, may set the user.
func maySetUser(h caddyhttp.MiddlewareHandler) bool {
	switch h.(type) {
	case *Handler, *caddyhttp.Subroute, *caddyhttp.Invoke, *caddyhttp.StaticResponse:
		return false
	}
	return handlingOf(handlerName(h), func(option string) bool { return hasSet(h, option) }) == unknown
}
