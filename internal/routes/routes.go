// Package routes leads requests through the routes of Caddy's servers, with Caddy's own matchers, groups and
// terminal routes. It never runs a handler that changes more than the request: no upstream is asked, no file is
// served, no password is checked, and nothing is written.
package routes

import (
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
)

// Routes are the routes of a server, compiled for any number of walks at the same time.
type Routes struct {
	first caddyhttp.Handler // leads through the routes of the server
	named map[string]caddyhttp.Handler
}

// Compile compiles the routes of a server. Their matchers and handlers are loaded, except that an [Unloaded]
// may stand for a handler.
func Compile(ctx caddy.Context, server *caddyhttp.Server) (*Routes, error) {
	c := &Routes{named: make(map[string]caddyhttp.Handler, len(server.NamedRoutes))}
	var err error
	for name, route := range server.NamedRoutes {
		if c.named[name], err = compile(ctx, caddyhttp.RouteList{*route}, leave); err != nil {
			return nil, err
		}
	}
	c.first, err = compile(ctx, server.Routes, endOfRoutes)
	return c, err
}

// compile makes copies of routes, with steps for their handlers. Behind the last route comes next.
func compile(ctx caddy.Context, routes caddyhttp.RouteList, next caddyhttp.HandlerFunc) (caddyhttp.Handler, error) {
	copies := make(caddyhttp.RouteList, len(routes))
	for i := range routes {
		c := &copies[i]
		c.Group, c.MatcherSets, c.Terminal = routes[i].Group, routes[i].MatcherSets, routes[i].Terminal
		for _, h := range routes[i].Handlers {
			s, err := newStep(ctx, h)
			if err != nil {
				return nil, err
			}
			c.Handlers = append(c.Handlers, s)
		}
		// There is no module to load, so this only makes the chain of the handlers.
		if err := c.ProvisionHandlers(ctx, nil); err != nil {
			return nil, err
		}
	}
	return copies.Compile(next), nil
}

// step leads a request past a handler in a walk.
type step func(w *Walk, rw http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error

// MarshalJSON is for the debug log of Caddy, which shows handlers.
func (step) MarshalJSON() ([]byte, error) { return []byte("{}"), nil }

// newStep returns the step that stands for a handler.
func newStep(ctx caddy.Context, handler caddyhttp.MiddlewareHandler) (step, error) {
	switch h := handler.(type) {
	case RateLimit:
		return func(w *Walk, rw http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
			return w.visitor.Meet(h.Limiter(), rw, r, next)
		}, nil
	case *caddyhttp.Subroute:
		routes, err := compile(ctx, h.Routes, leave)
		return func(w *Walk, rw http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
			return w.enter(routes, rw, r, next)
		}, err
	case *caddyhttp.Invoke:
		return func(w *Walk, rw http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
			return w.invoke(h.Name, rw, r, next)
		}, nil
	case *caddyhttp.StaticResponse:
		if h.StatusCode.Int() == http.StatusEarlyHints { // the final response follows
			return pass, nil
		}
		return respond, nil
	}
	name := nameOf(handler)
	if Runs(name) {
		return func(_ *Walk, rw http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
			return handler.ServeHTTP(rw, r, next)
		}, nil
	}
	if !effectUnknown(name, handler) {
		return steps[name], nil
	}
	return func(w *Walk, rw http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
		if !w.visitor.Assume(name, r) {
			return nil
		}
		return next.ServeHTTP(rw, r)
	}, nil
}

// Runs reports whether walks run a handler, by the last part of its module ID, because it changes only the request. Then
// it must be loaded.
func Runs(handler string) bool {
	return slices.Contains([]string{"headers", "map", "request_body", "rewrite", "vars"}, handler)
}

// effectUnknown reports whether only a run of a handler can tell what it does with a request.
func effectUnknown(name string, handler caddyhttp.MiddlewareHandler) bool {
	return !Runs(name) && (steps[name] == nil ||
		name == "reverse_proxy" && hasSet(handler, "handle_response") || name == "file_server" && hasSet(handler, "pass_thru"))
}

// steps has the steps for the handlers of Caddy that need no closer look, by the last part of the module ID.
var steps = map[string]step{
	"encode": pass, "intercept": pass, "log_append": pass, "push": pass, "templates": pass, "timeouts": pass, "tracing": pass,
	"copy_response": respond, "copy_response_headers": respond, "error": respond, "file_server": respond,
	"metrics": respond, "reverse_proxy": respond,
}

// pass leaves a handler out that changes only the response.
func pass(_ *Walk, rw http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	return next.ServeHTTP(rw, r)
}

// respond ends a walk at a handler that responds.
func respond(*Walk, http.ResponseWriter, *http.Request, caddyhttp.Handler) error { return nil }

// RateLimit is a rate_limit handler.
type RateLimit interface {
	caddyhttp.MiddlewareHandler
	Limiter() *limiter.Limiter
}

// Unloaded stands for a handler that doesn't run, and so need not be loaded.
type Unloaded struct {
	Name    string // the last part of the module ID
	Options map[string]json.RawMessage
}

// ServeHTTP implements [caddyhttp.MiddlewareHandler]. It is never called.
func (*Unloaded) ServeHTTP(http.ResponseWriter, *http.Request, caddyhttp.Handler) error { return nil }

// nameOf returns the last part of a handler's module ID.
func nameOf(h caddyhttp.MiddlewareHandler) string {
	if u, is := h.(*Unloaded); is {
		return u.Name
	}
	return strings.TrimPrefix(caddy.GetModuleID(h), "http.handlers.")
}

// hasSet reports whether an option of one of Caddy's handlers is set, by its name in JSON. The packages
// of these handlers are not imported, because then each program with this module would have them.
func hasSet(handler caddyhttp.MiddlewareHandler, option string) bool {
	if u, is := handler.(*Unloaded); is {
		return !slices.Contains([]string{"", "null", "false", "[]"}, string(u.Options[option]))
	}
	v := reflect.Indirect(reflect.ValueOf(handler))
	for i := range v.NumField() {
		if name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ","); name == option {
			return !v.Field(i).IsZero()
		}
	}
	return false
}

// DescribeUnknown describes a handler whose effect is not known, and why.
func DescribeUnknown(handler string) string {
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
