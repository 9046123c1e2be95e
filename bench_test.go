package ratelimit

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// BenchmarkServeHTTP is the handler alone, with the store in memory. What the
// request costs without it (a replacer, a response writer) is subtracted by
// comparing with "nothing".
func BenchmarkServeHTTP(b *testing.B) {
	ctx, err := caddy.ProvisionContext(&caddy.Config{Admin: &caddy.AdminConfig{Disabled: true}})
	if err != nil {
		b.Fatal(err)
	}
	next := caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error { return nil })
	handlers := map[string]caddyhttp.MiddlewareHandler{"nothing": passOn{}}
	for name, config := range map[string]string{
		"one limit": `{"rate_limits":{"z":{"key":"{http.request.header.X-Key}","limits":[{"algorithm":"token_bucket","events":1000000,"window":"1s"}]}}}`,
		"denied":    `{"rate_limits":{"d":{"key":"{http.request.header.X-Key}","limits":[{"algorithm":"gcra","events":1,"window":"100h"}]}}}`,
		"two zones": `{"rate_limits":{"a":{"key":"{http.request.header.X-Key}","limits":[{"algorithm":"token_bucket","events":1000000,"window":"1s"}]},"b":{"limits":[{"algorithm":"gcra","events":1000000,"window":"1s"}]}}}`,
	} {
		h, err := ctx.LoadModuleByID("http.handlers.rate_limit", []byte(config))
		if err != nil {
			b.Fatal(err)
		}
		handlers[name] = h.(*Handler)
	}
	for name, h := range handlers {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			r := httptest.NewRequest("GET", "/", nil)
			r.Header.Set("X-Key", "somebody")
			w := httptest.NewRecorder()
			for b.Loop() {
				repl := caddy.NewReplacer()
				request := caddyhttp.PrepareRequest(r, repl, w, nil)
				clear(w.Header())
				_ = h.ServeHTTP(w, request, next)
			}
		})
	}
}

type passOn struct{}

func (passOn) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	return next.ServeHTTP(w, r)
}
