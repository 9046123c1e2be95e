package ratelimit

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// This file makes the routes of a simulation from those of the configuration. They have the same matchers,
// but other handlers: steps, which find the walk of a request in its context. So the routes are compiled
// once, and serve any number of walks at the same time.

// routesOfSimulation makes the routes of a server.
type routesOfSimulation struct {
	*simulationLoader
	server *simulatedServer
}

// compile loads the matchers of routes, and makes the steps of a walk from their handlers. Behind the
// last route comes next.
func (l *routesOfSimulation) compile(routes caddyhttp.RouteList, next caddyhttp.Handler) (caddyhttp.Handler, error) {
	steps := make(caddyhttp.RouteList, len(routes))
	for i := range routes {
		if err := l.compileRoute(&routes[i], &steps[i]); err != nil {
			return nil, fmt.Errorf("route %d: %w", i, err)
		}
	}
	return steps.Compile(next), nil
}

func (l *routesOfSimulation) compileRoute(route, compiled *caddyhttp.Route) (err error) {
	for _, set := range route.MatcherSetsRaw {
		l.notes.readMatchers(set)
	}
	if err := route.ProvisionMatchers(l.ctx); err != nil {
		return err
	}
	steps := make([]caddyhttp.MiddlewareHandler, len(route.HandlersRaw))
	for i, raw := range route.HandlersRaw {
		if steps[i], err = l.step(raw); err != nil {
			return fmt.Errorf("handler %d: %w", i, err)
		}
	}
	*compiled, err = routeWith(l.ctx, route, steps)
	return err
}

// step makes the step for a handler.
func (l *routesOfSimulation) step(raw json.RawMessage) (caddyhttp.MiddlewareHandler, error) {
	var options map[string]json.RawMessage
	var name string
	if err := json.Unmarshal(raw, &options); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(options["handler"], &name); err != nil {
		return nil, fmt.Errorf("the name of the handler: %w", err)
	}
	delete(options, "handler")
	switch name {
	case "rate_limit":
		return l.loadRateLimit(options)
	case "subroute":
		subroute := new(caddyhttp.Subroute)
		if err := json.Unmarshal(raw, subroute); err != nil {
			return nil, err
		}
		l.notes.leaveOutErrors(subroute.Errors)
		routes, err := l.compile(subroute.Routes, leaveRoutes)
		return enterStep{routes}, err
	case "invoke":
		invoke := new(caddyhttp.Invoke)
		err := json.Unmarshal(raw, invoke)
		return invokeStep{invoke.Name}, err
	case "authentication":
		return &authenticationStep{l.notes.handler(name)}, nil
	case "static_response":
		response := new(caddyhttp.StaticResponse)
		if err := json.Unmarshal(raw, response); err != nil {
			return nil, err
		}
		if isEarlyHints(response) {
			return passStep{}, nil
		}
		return respondStep{}, nil
	}
	switch handlingOf(name, func(option string) bool { return isSet(options[option]) }) {
	case runs:
		l.server.changesHeader = l.server.changesHeader || name == "headers"
		l.notes.readTexts(options)
		return l.loadHandler(name, options)
	case passes:
		return passStep{}, nil
	case responds:
		return respondStep{}, nil
	}
	return passStep{l.notes.handler(name)}, nil
}

// isSet reports whether an option in JSON has another value than that of an option left out.
func isSet(option json.RawMessage) bool {
	return !slices.Contains([]string{"", "null", "false", "[]"}, string(option))
}

// loadHandler loads a handler that runs.
func (l *simulationLoader) loadHandler(name string, options map[string]json.RawMessage) (caddyhttp.MiddlewareHandler, error) {
	raw, err := json.Marshal(options)
	if err != nil {
		return nil, err
	}
	module, err := l.ctx.LoadModuleByID("http.handlers."+name, raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return module.(caddyhttp.MiddlewareHandler), nil
}

// passStep passes a request on. It stands for a handler that doesn't run.
type passStep struct{ met *atomic.Bool }

func (s passStep) ServeHTTP(rw http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	setOnce(s.met)
	return next.ServeHTTP(rw, r)
}

// setOnce sets a flag that many goroutines share. It is written only once. flag can be nil.
func setOnce(flag *atomic.Bool) {
	if flag != nil && !flag.Load() {
		flag.Store(true)
	}
}

// respondStep ends the walk. The handler that it stands for gave the response in the log.
type respondStep struct{}

func (respondStep) ServeHTTP(http.ResponseWriter, *http.Request, caddyhttp.Handler) error { return nil }

// authenticationStep lets the user of the log in. It ends the walk of a request without a user if the log
// has the status of a failed authentication.
type authenticationStep struct{ metWithoutUser *atomic.Bool }

func (s *authenticationStep) ServeHTTP(rw http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	logged := walkOf(r).logged
	switch {
	case logged.User != "":
		setUser(r, strings.Clone(logged.User))
	case logged.Status == http.StatusUnauthorized:
		return nil
	default:
		setOnce(s.metWithoutUser)
	}
	return next.ServeHTTP(rw, r)
}

// enterStep leads a request through a subroute. Behind its routes, leaveRoutes finds the next handler.
type enterStep struct{ routes caddyhttp.Handler }

func (s enterStep) ServeHTTP(rw http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	w := walkOf(r)
	w.nexts = append(w.nexts, next)
	return s.routes.ServeHTTP(rw, r)
}

// leaveRoutes is behind the last route of a subroute, or of a named route.
var leaveRoutes = caddyhttp.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) error {
	w := walkOf(r)
	last := len(w.nexts) - 1
	next := w.nexts[last]
	w.nexts = w.nexts[:last]
	return next.ServeHTTP(rw, r)
})

// invokeStep leads a request through a named route.
type invokeStep struct{ name string }

func (s invokeStep) ServeHTTP(rw http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	w := walkOf(r)
	if w.invoked++; w.invoked > maxWalkSteps {
		return errWalkTooLong
	}
	route := w.server.named[s.name]
	if route == nil {
		return fmt.Errorf("invoke %q: %w", s.name, errUnknownInvoke)
	}
	return enterStep{route}.ServeHTTP(rw, r, next)
}

// meetStep collects the zones of a rate_limit handler, and passes the request on.
type meetStep struct {
	handler *Handler
	zones   *simulatedZones
}

func (s meetStep) ServeHTTP(rw http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	w := walkOf(r)
	state := w.newState(s.handler)
	if err := state.collect(r, w.replacer, maxAttempts-1); err != nil { // the last attempt asks for no override
		return err
	}
	if len(state.entries) == 0 {
		return next.ServeHTTP(rw, r)
	}
	at := len(w.room.visit.Handlers)
	s.addTo(w.room, state)
	err := next.ServeHTTP(rw, r)
	w.settle(state, &w.room.visit.Handlers[at])
	return err
}

// addTo adds what the request meets to its Visit.
func (s meetStep) addTo(room *visitRoom, state *requestState) {
	h := room.addHandler(len(state.entries))
	for i := range state.entries {
		e := &state.entries[i]
		request, zone := *e.Request, s.zones.index[e.zone]
		request.Key, request.Outcome = visitedKey(e.Key), store.Outcome{}
		h.Requests = append(h.Requests, request)
		h.Zones = append(h.Zones, simulate.ZoneVisit{Zone: zone, Set: s.zones.sets[e.limitSet], BanOnly: e.isBanLookup})
	}
}
