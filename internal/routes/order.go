package routes

import (
	"reflect"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
)

// WarnOfOrder has the limiters in the routes of a server warn of zones that stand before or behind another handler by
// mistake. It doesn't look into the routes for errors, nor into those for responses of reverse_proxy and intercept.
func WarnOfOrder(server *caddyhttp.Server) {
	s := orderSearch{namedRoutes: server.NamedRoutes}
	s.search(server.Routes, nil, func(counts, kind) bool { return false }, func(bool, kind) bool { return false })
}

type (
	kind   func(caddyhttp.MiddlewareHandler) bool // of handlers
	counts func(*caddyhttp.Route) bool            // selects the routes to look into
)

// orderSearch searches the routes of a server for rate_limit handlers, and for the handlers before and behind them. It
// doesn't know which requests a matcher matches. In doubt it finds nothing.
type orderSearch struct {
	namedRoutes map[string]*caddyhttp.Route
	invoked     int // how often it has looked into a named route, up to maxSteps
}

// search searches routes. around are the matchers of the routes around them. earlier reports whether a handler of a
// kind is before the routes, in routes that count. later reports whether one follows behind the routes. If partly is
// true, only some of the requests behind the routes have met the rate_limit handler. Then only a handler counts that
// all requests meet.
func (s *orderSearch) search(routes caddyhttp.RouteList, around caddyhttp.MatcherSets,
	earlier func(count counts, such kind) bool, later func(partly bool, such kind) bool,
) {
	for i := range routes {
		route := &routes[i]
		around := slices.Concat(around, route.MatcherSets)
		earlierThanRoute := func(count counts, such kind) bool {
			return slices.ContainsFunc(routes[:i], func(before caddyhttp.Route) bool {
				return leadsTo(&before, route) && s.contains(caddyhttp.RouteList{before}, count, such)
			}) || earlier(count, such)
		}
		laterThanRoute := func(partly bool, such kind) bool {
			partly = partly || !meetsAll(route)
			return slices.ContainsFunc(routes[i+1:], func(behind caddyhttp.Route) bool {
				return leadsTo(route, &behind) && s.contains(caddyhttp.RouteList{behind}, counted(partly), such)
			}) || !route.Terminal && later(partly, such)
		}
		for n, handler := range route.Handlers {
			earlierThanHandler := func(count counts, such kind) bool {
				return s.contains(caddyhttp.RouteList{{Handlers: route.Handlers[:n]}}, count, such) || earlierThanRoute(count, such)
			}
			laterThanHandler := func(partly bool, such kind) bool {
				return s.contains(caddyhttp.RouteList{{Handlers: route.Handlers[n+1:]}}, counted(partly), such) || laterThanRoute(partly, such)
			}
			if h, ok := handler.(RateLimit); ok && s.invoked < maxSteps {
				h.Limiter().WarnOfPlace(limiter.Place{
					Matchers: around,
					IsEmpty: func(placeholder string, partly bool) bool {
						return !earlierThanHandler(counted(false), maySet(placeholder)) &&
							(!isOfUser(placeholder) || laterThanHandler(partly, authenticates)) && s.invoked < maxSteps
					},
					IsBehindLogin: func(matchers caddyhttp.MatcherSets) bool {
						return earlierThanHandler(func(r *caddyhttp.Route) bool {
							return meetsAll(r) || r.Group == "" && reflect.DeepEqual(r.MatcherSets, matchers)
						}, answersFailedLogins)
					},
				})
			}
			s.search(s.routesOf(handler), around, earlierThanHandler, laterThanHandler)
		}
	}
}

// leadsTo reports whether a request that meets a route can meet a later one of the same list.
func leadsTo(route, later *caddyhttp.Route) bool {
	return !route.Terminal && (route.Group == "" || route.Group != later.Group)
}

// meetsAll reports whether all requests that come to a route meet it.
func meetsAll(route *caddyhttp.Route) bool { return len(route.MatcherSets) == 0 && route.Group == "" }

// counted returns which routes count: all of them, or if partly is true those that all requests meet.
func counted(partly bool) counts {
	return func(r *caddyhttp.Route) bool { return !partly || meetsAll(r) }
}

// contains reports whether routes that count have a handler of a kind.
func (s *orderSearch) contains(routes caddyhttp.RouteList, count counts, such kind) bool {
	return slices.ContainsFunc(routes, func(route caddyhttp.Route) bool {
		return count(&route) && slices.ContainsFunc(route.Handlers, func(h caddyhttp.MiddlewareHandler) bool {
			return such(h) || s.contains(s.routesOf(h), count, such)
		})
	})
}

// routesOf returns the routes that a handler leads requests through.
func (s *orderSearch) routesOf(handler caddyhttp.MiddlewareHandler) caddyhttp.RouteList {
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

func isOfUser(placeholder string) bool { return strings.HasPrefix(placeholder, limiter.UserPrefix) }

func authenticates(h caddyhttp.MiddlewareHandler) bool { return nameOf(h) == "authentication" }

// answersFailedLogins reports whether a handler is authentication, or forward_auth.
func answersFailedLogins(h caddyhttp.MiddlewareHandler) bool {
	return authenticates(h) || nameOf(h) == "reverse_proxy" && actionOf(h) == assume
}

// maySet returns the handlers that may set a placeholder before they pass the request on. The routes in them are left out.
func maySet(placeholder string) kind {
	return func(h caddyhttp.MiddlewareHandler) bool {
		switch nameOf(h) {
		case "authentication":
			return isOfUser(placeholder)
		case "headers":
			return strings.HasPrefix(placeholder, "http.response.header.")
		case "reverse_proxy": // such as forward_auth, behind which there is no error
			return actionOf(h) == assume && !strings.HasPrefix(placeholder, "http.error.")
		case "subroute":
			sub, is := h.(*caddyhttp.Subroute)
			return is && sub.Errors != nil // these routes can pass on a request that has failed
		}
		return actionOf(h) == assume
	}
}
