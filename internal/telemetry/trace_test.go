package telemetry

import (
	"context"
	"errors"
	"fmt"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// A decision is cached if a remembered denial decided any of the zones. A failure of the store is in the span, unless local
// budgets decide. A client that leaves is no failure. An override that this instance didn't know is none, too.
func TestTraceOfDecision(t *testing.T) {
	left, leave := context.WithCancel(t.Context())
	leave()
	open := &store.Error{Reason: store.ReasonOpen, Err: store.ErrOpen}
	cached := store.ZoneRequest{Outcome: store.Outcome{Cached: true}}
	local := []store.ZoneRequest{{Outcome: store.Outcome{Local: true}}, {}}
	for _, test := range []struct {
		ctx  context.Context
		d    Decision
		want string
	}{
		{t.Context(), Decision{Requests: make([]store.ZoneRequest, 2)}, "memory false"},
		{t.Context(), Decision{Requests: []store.ZoneRequest{cached, {}}, WithRedis: true}, "redis true"},
		{t.Context(), Decision{Requests: []store.ZoneRequest{{}, cached}, WithRedis: true}, "redis true"},
		{t.Context(), Decision{Requests: local, WithRedis: true}, "local false"},
		{t.Context(), Decision{Requests: local, WithRedis: true, Err: open}, "redis false exception open"},
		{t.Context(), Decision{Requests: local, WithRedis: true, Err: errors.New("strange")}, "redis false exception other"},
		{left, Decision{Requests: local, WithRedis: true, Err: context.Canceled}, "redis false"},
		{t.Context(), Decision{Requests: local, WithRedis: true, Err: &store.OverriddenError{}}, "redis false"},
	} {
		recorder := tracetest.NewSpanRecorder()
		ctx, _ := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("").Start(test.ctx, "request")
		trace := NewTrace(ctx)
		_, span := trace.StartDecision(ctx)
		trace.EndDecision(ctx, span, test.d)
		s := recorder.Ended()[0]
		got := fmt.Sprint(s.Attributes()[0].Value.AsInterface(), " ", s.Attributes()[1].Value.AsInterface())
		for _, e := range s.Events() {
			got += fmt.Sprintf(" %s %s", e.Name, s.Status().Description)
		}
		if got != test.want {
			t.Errorf("%+v: the span is %q, want %q", test.d, got, test.want)
		}
	}
}
