package ratelimit

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/racetest"
)

// loadHandler returns a handler with the store in memory and these zones, until the test ends.
func loadHandler(tb testing.TB, zones string) *Handler {
	tb.Helper()
	h, end := provision(tb, `{"rate_limits":{`+zones+`}}`)
	tb.Cleanup(end)
	return h
}

// handlersByWork returns handlers by what they do.
func handlersByWork(tb testing.TB) map[string]caddyhttp.MiddlewareHandler {
	tb.Helper()
	const key, limit = `"key":"{http.request.header.X-Key}"`, `"limits":[{"algorithm":"token_bucket","events":1000000,"window":"1s"}]`
	handlers := map[string]caddyhttp.MiddlewareHandler{"nothing": passOn{}}
	for name, zones := range map[string]string{
		"one limit":   `"z":{` + key + `,` + limit + `}`,
		"denied":      `"d":{` + key + `,"limits":[{"algorithm":"gcra","events":1,"window":"100h"}]}`,
		"two zones":   `"a":{` + key + `,` + limit + `},"b":{"limits":[{"algorithm":"gcra","events":1000000,"window":"1s"}]}`,
		"concurrency": `"c":{` + key + `,` + limit + `,"concurrency":10}`,
		"may wait":    `"w":{` + key + `,` + limit + `,"concurrency":10,"delay":{"max":"10s"}}`,
		"ban":         `"e":{` + key + `,` + limit + `,"ban":{"duration":"1h"}}`,
		"settle":      `"s":{` + key + `,` + limit + `,"settle":{"match":{"status_code":[401]}}}`,
	} {
		handlers[name] = loadHandler(tb, zones)
	}
	return handlers
}

// serving returns a function that has a handler serve a request.
func serving(ctx context.Context, h caddyhttp.MiddlewareHandler) func() {
	r := httptest.NewRequestWithContext(ctx, "GET", "/", nil)
	r.Header.Set("X-Key", "somebody")
	w := httptest.NewRecorder()
	next := caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error { return nil })
	return func() {
		repl := caddy.NewReplacer()
		request := caddyhttp.PrepareRequest(r, repl, w, nil)
		clear(w.Header())
		_ = h.ServeHTTP(w, request, next)
	}
}

// The handler allocates the answer, a placeholder for it, and two header fields with their values. Denials, further
// zones, and responses that are looked at cost more. A request that finds a slot allocates nothing for lines, also if it
// could wait. settle also writes the charge into the line of the access log.
func TestServeHTTPAllocates(t *testing.T) {
	if racetest.Enabled {
		t.Skip("allocations can't be counted")
	}
	handlers := handlersByWork(t)
	nothing := testing.AllocsPerRun(1000, serving(context.Background(), handlers["nothing"]))
	for name, want := range map[string]float64{"one limit": 4, "denied": 6, "two zones": 9, "concurrency": 6, "may wait": 6, "ban": 4, "settle": 14} {
		serve := serving(context.Background(), handlers[name])
		for range 2000 { // the key is watched at first
			serve()
		}
		if got := testing.AllocsPerRun(1000, serve) - nothing; got > want {
			t.Errorf("%s: %v allocations, want %v", name, got, want)
		}
	}
}

// traceContext returns a context with a span.
func traceContext(tb testing.TB, sampler sdktrace.Sampler) context.Context {
	tb.Helper()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSampler(sampler))
	ctx, span := provider.Tracer("test").Start(context.Background(), "request")
	if span.IsRecording() != (sampler == sdktrace.AlwaysSample()) {
		tb.Fatalf("%v: the span is recorded: %v", sampler, span.IsRecording())
	}
	return ctx
}

// A span that isn't sampled costs no allocation.
func TestUnsampledSpanAllocatesNothing(t *testing.T) {
	if racetest.Enabled {
		t.Skip("allocations can't be counted")
	}
	h := loadHandler(t, `"z":{"limits":[{"algorithm":"token_bucket","events":1000000,"window":"1s"}]}`)
	without := testing.AllocsPerRun(1000, serving(context.Background(), h))
	if with := testing.AllocsPerRun(1000, serving(traceContext(t, sdktrace.NeverSample()), h)); with != without {
		t.Errorf("%v allocations with a span that isn't sampled, want %v", with, without)
	}
	sampled := testing.AllocsPerRun(1000, serving(traceContext(t, sdktrace.AlwaysSample()), h))
	if sampled <= without {
		t.Errorf("%v allocations with a span that is sampled: nothing is measured", sampled)
	}
}

type passOn struct{}

func (passOn) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	return next.ServeHTTP(w, r)
}
