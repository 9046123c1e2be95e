package telemetry

import (
	"context"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// tracerName is the instrumentation scope of the module's spans.
const tracerName = "github.com/caddy-rate-limit/caddy-rate-limit"

// The names of the module's spans. They are children of the span of the request. The wait for a slot
// is a child of the decision, because the store decides again after the wait.
const (
	spanDecision = "rate_limit.decide"
	spanWait     = "rate_limit.wait"
)

// The attributes that name no zone; see [zoneAttribute]. The key of a request is never an attribute.
const (
	attributeDeniedBy = attribute.Key("rate_limit.denied_by") // on the span of the request
	attributeReason   = attribute.Key("rate_limit.reason")
	attributeStore    = attribute.Key("rate_limit.store") // on the span of a decision
	attributeCached   = attribute.Key("rate_limit.cached")
	attributeWaitFor  = attribute.Key("rate_limit.wait_for") // on the span of a wait
)

// zoneAttribute returns the name of an attribute about a zone: outcome or remaining.
func zoneAttribute(zone, name string) attribute.Key {
	return attribute.Key("rate_limit." + zone + "." + name)
}

// Trace adds a request's evaluation to the trace of the request. A nil Trace does
// nothing: it stands for a request without a span, or with a span that isn't recorded.
type Trace struct {
	span   trace.Span // of the request
	tracer trace.Tracer
}

// NewTrace returns the trace of the request with this context. It returns nil if the request isn't traced.
func NewTrace(ctx context.Context) *Trace {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return nil
	}
	return &Trace{span: span, tracer: span.TracerProvider().Tracer(tracerName)}
}

// StartDecision starts the span of a decision. It returns a context with this span.
func (t *Trace) StartDecision(ctx context.Context) (context.Context, trace.Span) {
	if t == nil {
		return ctx, nil
	}
	return t.tracer.Start(ctx, spanDecision)
}

// Decision is a decision of the store about a request.
type Decision struct {
	Requests  []store.ZoneRequest // one per zone
	WithRedis bool                // Redis keeps the budgets
	Err       error               // not nil: the store could not decide
}

// EndDecision ends the span of a decision. ctx is the context of the request.
func (t *Trace) EndDecision(ctx context.Context, span trace.Span, d Decision) {
	if t == nil {
		return
	}
	decidedBy := "memory"
	switch {
	case d.Err == nil && d.Requests[0].Outcome.Local:
		decidedBy = "local"
	case d.WithRedis:
		decidedBy = "redis"
	}
	isCached := func(r store.ZoneRequest) bool { return r.Outcome.Cached }
	span.SetAttributes(attributeStore.String(decidedBy),
		attributeCached.Bool(d.Err == nil && slices.ContainsFunc(d.Requests, isCached)))
	if d.Err != nil && ctx.Err() == nil && !store.IsOverridden(d.Err) { // else the store hasn't failed
		span.RecordError(d.Err)
		span.SetStatus(codes.Error, storeErrorReason(d.Err))
	}
	span.End()
}

// Wait starts the span of a wait for a slot or a limit, and returns a function that ends it.
func (t *Trace) Wait(ctx context.Context, awaited string) (end func()) {
	if t == nil {
		return func() {}
	}
	_, span := t.tracer.Start(ctx, spanWait, trace.WithAttributes(attributeWaitFor.String(awaited)))
	return func() { span.End() }
}

// SetOutcome sets the outcome of the request in a zone.
func (t *Trace) SetOutcome(zone string, outcome Outcome) {
	if t != nil {
		t.span.SetAttributes(zoneAttribute(zone, "outcome").String(outcome.String()))
	}
}

// SetRemaining sets how many events remain in a zone.
func (t *Trace) SetRemaining(zone string, events int64) {
	if t != nil {
		t.span.SetAttributes(zoneAttribute(zone, "remaining").Int64(events))
	}
}

// SetDenial sets the zone that denies the request, and the reason as in the log.
func (t *Trace) SetDenial(zone, reason string) {
	if t != nil {
		t.span.SetAttributes(attributeDeniedBy.String(zone), attributeReason.String(reason))
	}
}
