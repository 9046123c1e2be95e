package limiter_test

import (
	"cmp"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
)

// serveZones returns a function that sends a request to a handler with these zones. Requests that pass run as long as given.
func serveZones(t *testing.T, zones string, runs time.Duration) func(r *http.Request) *httptest.ResponseRecorder {
	t.Helper()
	return serveWith(t, zones, func(http.ResponseWriter, *http.Request) { time.Sleep(runs) }) // virtual time
}

// serveWith returns a function that sends a request to a handler with these zones, behind which another one responds.
func serveWith(t *testing.T, zones string, respond http.HandlerFunc) func(r *http.Request) *httptest.ResponseRecorder {
	t.Helper()
	_, serve := serveNested(t, zones, "", respond)
	return serve
}

// serveNested is serveWith for two handlers. The inner one is left out if it has no zones.
func serveNested(
	t *testing.T, outer, inner string, respond http.HandlerFunc,
) (h *comboHandlers, serve func(r *http.Request) *httptest.ResponseRecorder) {
	t.Helper()
	h, err := provisionCombo(t, caddytest.ComboConfig{
		App: "{}", Outer: `{"problem_json":true,"rate_limits":{` + outer + `}}`, Inner: `{"rate_limits":{` + cmp.Or(inner, outer) + `}}`,
	})
	errtest.None(t, err)
	t.Cleanup(h.end)
	next := caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error { respond(w, r); return nil })
	behind := next
	if inner != "" {
		behind = func(w http.ResponseWriter, r *http.Request) error { return h.inner.ServeHTTP(w, r, next) }
	}
	return h, func(r *http.Request) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, nil)
		caddyhttp.SetVar(r.Context(), caddyhttp.ClientIPVarKey, "192.0.2.1")
		if denial, ok := errors.AsType[caddyhttp.HandlerError](h.outer.ServeHTTP(w, r, behind)); ok {
			w.Code = denial.StatusCode
		}
		return w
	}
}
