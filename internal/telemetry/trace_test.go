package telemetry

import (
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// attributeSpan is a span that keeps its attributes.
type attributeSpan struct {
	trace.Span
	attributes map[attribute.Key]attribute.Value
}

func (s *attributeSpan) SetAttributes(all ...attribute.KeyValue) {
	for _, a := range all {
		s.attributes[a.Key] = a.Value
	}
}

// A decision is cached if a remembered denial decided any of the zones.
func TestCachedDecision(t *testing.T) {
	for cached := range 4 {
		requests := make([]store.Request, 3)
		if cached < len(requests) {
			requests[cached].Outcome.Cached = true
		}
		span := &attributeSpan{noop.Span{}, make(map[attribute.Key]attribute.Value)}
		new(Trace).EndDecision(t.Context(), span, Decision{Requests: requests})
		if got := span.attributes[attributeCached].AsBool(); got != (cached < len(requests)) {
			t.Errorf("zone %d of 3: cached %t", cached, got)
		}
	}
}
