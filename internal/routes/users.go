package routes

import (
	"slices"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// WarnOfLateUsers has the limiters in the routes of a server warn of zones that decide by the user before the
// user is known.
func WarnOfLateUsers(server *caddyhttp.Server) {
	s := userSearch{namedRoutes: server.NamedRoutes}
	s.search(server.Routes, false, func(bool) bool { return false })
}

// userSearch searches the routes of a server for rate_limit handlers before authentication. It doesn't
// know which requests a matcher matches. In doubt it finds nothing.
type userSearch struct {
	namedRoutes map[string]*caddyhttp.Route
	invoked     int // how often it has looked into a named route, up to maxSteps
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
			if h, ok := handler.(RateLimit); ok && !known && s.invoked < maxSteps {
				h.Limiter().WarnOfLateUsers(laterThanHandler)
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
		if route := s.namedRoutes[h.Name]; route != nil && s.invoked < maxSteps {
			s.invoked++
			return caddyhttp.RouteList{*route}
		}
	}
	return nil
}

func authenticates(h caddyhttp.MiddlewareHandler) bool { return nameOf(h) == "authentication" }

// maySetUser reports whether a handler, without the routes in it, may set the user.
func maySetUser(h caddyhttp.MiddlewareHandler) bool { return actionOf(h) == assume }
