package ratelimit

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/bodies"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// loadHandler returns a handler with the store in memory and these zones, until the test ends.
func loadHandler(tb testing.TB, zones string) *Handler {
	tb.Helper()
	caddytest.Provisioning.Lock()
	provisioned, err := caddy.ProvisionContext(&caddy.Config{Admin: &caddy.AdminConfig{Disabled: true}})
	caddytest.Provisioning.Unlock()
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := caddy.NewContext(provisioned)
	tb.Cleanup(cancel)
	h, err := ctx.LoadModuleByID("http.handlers.rate_limit", []byte(`{"rate_limits":{`+zones+`}}`))
	if err != nil {
		tb.Fatal(err)
	}
	return h.(*Handler)
}

// benchHandlers returns handlers by what they do.
func benchHandlers(tb testing.TB) map[string]caddyhttp.MiddlewareHandler {
	tb.Helper()
	const key, limit = `"key":"{http.request.header.X-Key}"`, `"limits":[{"algorithm":"token_bucket","events":1000000,"window":"1s"}]`
	handlers := map[string]caddyhttp.MiddlewareHandler{"nothing": passOn{}}
	for name, zones := range map[string]string{
		"one limit":   `"z":{` + key + `,` + limit + `}`,
		"denied":      `"d":{` + key + `,"limits":[{"algorithm":"gcra","events":1,"window":"100h"}]}`,
		"two zones":   `"a":{` + key + `,` + limit + `},"b":{"limits":[{"algorithm":"gcra","events":1000000,"window":"1s"}]}`,
		"concurrency": `"c":{` + key + `,` + limit + `,"concurrency":10}`,
		"ban":         `"e":{` + key + `,` + limit + `,"ban":{"duration":"1h"}}`,
		"settle":      `"s":{` + key + `,` + limit + `,"settle":{"match":{"status_code":[401]}}}`,
	} {
		handlers[name] = loadHandler(tb, zones)
	}
	return handlers
}

// benchRequest returns a function that has a handler serve a request.
func benchRequest(h caddyhttp.MiddlewareHandler) func() {
	return benchRequestIn(context.Background(), h)
}

func benchRequestIn(ctx context.Context, h caddyhttp.MiddlewareHandler) func() {
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

// BenchmarkServeHTTP is the handler alone, with the store in memory. Compare it with the cost of
// the request itself (a replacer, a response writer), which "nothing" measures.
func BenchmarkServeHTTP(b *testing.B) {
	for name, h := range benchHandlers(b) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			serve := benchRequest(h)
			for b.Loop() {
				serve()
			}
		})
	}
}

// The handler allocates the answer, a placeholder for it, and two header fields with their
// values. Denials, further zones, and responses that are looked at cost a little more. settle also writes the
// charge into the line of the access log.
func TestServeHTTPAllocates(t *testing.T) {
	if caddytest.RaceEnabled {
		t.Skip("allocations can't be counted")
	}
	handlers := benchHandlers(t)
	nothing := testing.AllocsPerRun(1000, benchRequest(handlers["nothing"]))
	for name, want := range map[string]float64{"one limit": 4, "denied": 6, "two zones": 9, "concurrency": 6, "ban": 4, "settle": 12} {
		serve := benchRequest(handlers[name])
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

// BenchmarkTracing is the handler in requests without a span, with one that isn't sampled, and with one
// that is.
func BenchmarkTracing(b *testing.B) {
	h := loadHandler(b, `"z":{"limits":[{"algorithm":"token_bucket","events":1000000,"window":"1s"}]}`)
	for _, test := range []struct {
		name string
		ctx  context.Context
	}{
		{"none", context.Background()},
		{"unsampled", traceContext(b, sdktrace.NeverSample())},
		{"sampled", traceContext(b, sdktrace.AlwaysSample())},
	} {
		b.Run(test.name, func(b *testing.B) {
			b.ReportAllocs()
			serve := benchRequestIn(test.ctx, h)
			for b.Loop() {
				serve()
			}
		})
	}
}

// A span that isn't sampled costs no allocation.
func TestUnsampledSpanAllocatesNothing(t *testing.T) {
	if caddytest.RaceEnabled {
		t.Skip("allocations can't be counted")
	}
	h := loadHandler(t, `"z":{"limits":[{"algorithm":"token_bucket","events":1000000,"window":"1s"}]}`)
	without := testing.AllocsPerRun(1000, benchRequest(h))
	with := testing.AllocsPerRun(1000, benchRequestIn(traceContext(t, sdktrace.NeverSample()), h))
	if with != without {
		t.Errorf("%v allocations with a span that isn't sampled, want %v", with, without)
	}
	sampled := testing.AllocsPerRun(1000, benchRequestIn(traceContext(t, sdktrace.AlwaysSample()), h))
	if sampled <= without {
		t.Errorf("%v allocations with a span that is sampled: nothing is measured", sampled)
	}
}

type passOn struct{}

func (passOn) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	return next.ServeHTTP(w, r)
}

// BenchmarkBodies reads a value from bodies of 4 kB, 1000 at a time, and has the next handler read
// them.
func BenchmarkBodies(b *testing.B) {
	h := loadHandler(b, `"z":{"key":"{http.rate_limit.request.json.user}","limits":[{"algorithm":"token_bucket","events":1000000,"window":"1s"}]}`)
	h.limiter.BodyMemory = bodies.NewMemory()
	body := []byte(`{"user":"alice","padding":"` + strings.Repeat("x", 4000) + `"}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	b.SetParallelism(1000 / runtime.GOMAXPROCS(0))
	next := caddyhttp.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) error {
		_, err := io.Copy(io.Discard, r.Body)
		return err
	})
	var most atomic.Int64
	b.RunParallel(func(pb *testing.PB) {
		w := httptest.NewRecorder()
		for pb.Next() {
			r := httptest.NewRequest("POST", "/", bytes.NewReader(body))
			r.Header.Set("Content-Type", "application/json")
			clear(w.Header())
			if err := h.ServeHTTP(w, caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, nil), next); err != nil {
				b.Error(err)
			}
			if used := h.limiter.BodyMemory.Bodies.Used(); used > most.Load() {
				most.Store(used)
			}
		}
	})
	b.ReportMetric(float64(most.Load()), "bytes-taken")
	if used := h.limiter.BodyMemory.Bodies.Used(); used != 0 {
		b.Errorf("%d bytes are still taken", used)
	}
}
