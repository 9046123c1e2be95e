package caddytest

import (
	"context"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/telemetry"
)

// hold waits as long as the request's query parameter hold says, and panics if there
// is a parameter panic.
type hold struct{}

func (hold) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.test_hold", New: func() caddy.Module { return new(hold) }}
}

func (hold) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	d, _ := time.ParseDuration(r.URL.Query().Get("hold"))
	caddy.Log().Info("held", zap.Duration("for", d))
	time.Sleep(d) // as long as the test wants the handler to run, in a process with real time
	if r.URL.Query().Has("panic") {
		panic("as the request wants")
	}
	return next.ServeHTTP(w, r)
}

// recordEvent logs the events it is subscribed to.
type recordEvent struct{}

func (recordEvent) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "events.handlers.test_record", New: func() caddy.Module { return new(recordEvent) }}
}

func (*recordEvent) UnmarshalCaddyfile(*caddyfile.Dispenser) error { return nil }

func (recordEvent) Handle(_ context.Context, e caddy.Event) error {
	caddy.Log().Info("recorded event", zap.String("name", e.Name()), zap.Any("data", e.Data))
	return nil
}

// forget is an admin endpoint that sets the metrics of the process to zero.
type forget struct{}

const forgetPath = "/test/forget"

func (forget) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "admin.api.test_forget", New: func() caddy.Module { return new(forget) }}
}

func (forget) Routes() []caddy.AdminRoute {
	return []caddy.AdminRoute{{Pattern: forgetPath, Handler: caddy.AdminHandlerFunc(func(http.ResponseWriter, *http.Request) error {
		telemetry.Forget()
		return nil
	})}}
}
