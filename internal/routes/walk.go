package routes

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
)

// Walk leads one request at a time through [Routes].
type Walk struct {
	visitor Visitor
	routes  *Routes
	nexts   []caddyhttp.Handler // behind the subroutes and named routes that the request is in
	steps   int                 // the number of handlers that the request has met
}

// Visitor meets the handlers of a request.
type Visitor interface {
	// Meet is called for each rate_limit handler. It passes the request to next, or ends the walk with an error.
	Meet(h *limiter.Limiter, w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error
	// Assume is called for each handler whose effect is not known, with the last part of its module ID. It reports
	// whether the handler passes the request on.
	Assume(handler string, r *http.Request) (passes bool)
}

// maxSteps bounds the handlers that a request meets. Named routes can invoke each other without
// an end.
const maxSteps = 10_000

// errTooLong ends a walk for a reason of the configuration.
var errTooLong = fmt.Errorf("the request met %d handlers: look for named routes that invoke each other", maxSteps)

// NewWalk returns a walk that tells a visitor which handlers a request meets.
func NewWalk(v Visitor) *Walk { return &Walk{visitor: v} }

// walkKey is the key of the walk in the context of its request.
type walkKey struct{}

// Context returns the context that requests of the walk must have.
func (w *Walk) Context(parent context.Context) context.Context {
	return context.WithValue(parent, walkKey{}, w)
}

// Run leads a request through routes. The request has the context of [caddyhttp.PrepareRequest], made from
// [Walk.Context]. A panic of a handler or a matcher becomes an error. Then the walk is ready for another request.
func (w *Walk) Run(routes *Routes, rw http.ResponseWriter, r *http.Request) (err error) {
	w.routes = routes
	defer w.end(&err)
	return routes.first.ServeHTTP(rw, r)
}

// end lets go of the request. It is deferred.
func (w *Walk) end(err *error) {
	if reason := recover(); reason != nil {
		*err = fmt.Errorf("a handler or a matcher panicked: %v", reason)
	}
	clear(w.nexts[:cap(w.nexts)])
	w.routes, w.nexts, w.steps = nil, w.nexts[:0], 0
}

// ServeHTTP implements [caddyhttp.MiddlewareHandler].
func (s step) ServeHTTP(rw http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	ctx := r.Context()
	w := ctx.Value(walkKey{}).(*Walk)
	if w.steps++; w.steps > maxSteps {
		return errTooLong
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return s(w, rw, r, next)
}

// invoke leads a request through a named route.
func (w *Walk) invoke(name string, rw http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	named := w.routes.named[name]
	if named == nil {
		return fmt.Errorf("invoke %q: there is no named route of this name", name)
	}
	return w.enter(named, rw, r, next)
}

// enter leads a request through the routes of a subroute, or a named route. Behind them, leave finds the
// next handler.
func (w *Walk) enter(routes caddyhttp.Handler, rw http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	w.nexts = append(w.nexts, next)
	return routes.ServeHTTP(rw, r)
}

// leave is behind the last route of a subroute, or of a named route.
func leave(rw http.ResponseWriter, r *http.Request) error {
	w := r.Context().Value(walkKey{}).(*Walk)
	last := len(w.nexts) - 1
	next := w.nexts[last]
	w.nexts = w.nexts[:last]
	return next.ServeHTTP(rw, r)
}

// endOfRoutes is behind the last route of a server.
func endOfRoutes(http.ResponseWriter, *http.Request) error { return nil }

// SetUser sets the ID of the authenticated user.
func SetUser(r *http.Request, id string) {
	repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	repl.Set("http.auth.user.id", id)
}

// UnsentResponse is the response to a request in a walk. Nobody gets it.
type UnsentResponse struct{ Fields http.Header }

// Header implements [http.ResponseWriter].
func (u *UnsentResponse) Header() http.Header { return u.Fields }

func (u *UnsentResponse) Write(b []byte) (int, error) { return len(b), nil }

// WriteHeader implements [http.ResponseWriter].
func (u *UnsentResponse) WriteHeader(int) {}

// SetReadDeadline does nothing. Deadlines make no difference, but Caddy logs an error if it can't set them.
func (u *UnsentResponse) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline does nothing, as SetReadDeadline.
func (u *UnsentResponse) SetWriteDeadline(time.Time) error { return nil }
