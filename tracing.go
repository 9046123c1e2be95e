package ratelimit

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
func zoneAttribute(z *zone, name string) attribute.Key {
	return attribute.Key("rate_limit." + z.name + "." + name)
}

// requestTrace adds a request's evaluation to the trace of the request. A nil requestTrace does
// nothing: it stands for a request without a span, or with a span that isn't recorded.
type requestTrace struct {
	span     trace.Span // of the request
	tracer   trace.Tracer
	slotWait trace.Span // nil unless the request waits for a slot
}

// newRequestTrace returns the trace of the request with this context.
func newRequestTrace(ctx context.Context) *requestTrace {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return nil
	}
	return &requestTrace{span: span, tracer: span.TracerProvider().Tracer(tracerName)}
}

// startDecision starts the span of a decision. It returns a context with this span.
func (t *requestTrace) startDecision(ctx context.Context) (context.Context, trace.Span) {
	if t == nil {
		return ctx, nil
	}
	return t.tracer.Start(ctx, spanDecision)
}

// endDecision ends the span of a decision, and of the wait for a slot within it.
func (t *requestTrace) endDecision(ctx context.Context, span trace.Span, state *requestState, err error) {
	if t == nil {
		return
	}
	if t.slotWait != nil {
		t.slotWait.End()
		t.slotWait = nil
	}
	decidedBy := "memory"
	switch {
	case err == nil && state.requests[0].Outcome.Local:
		decidedBy = "local"
	case state.handler.backend != nil:
		decidedBy = "redis"
	}
	isCached := func(r store.Request) bool { return r.Outcome.Cached }
	span.SetAttributes(attributeStore.String(decidedBy),
		attributeCached.Bool(err == nil && slices.ContainsFunc(state.requests, isCached)))
	if err != nil && ctx.Err() == nil && !store.IsOverridden(err) { // else the store hasn't failed
		span.RecordError(err)
		span.SetStatus(codes.Error, storeErrorReason(err))
	}
	span.End()
}

// waitForSlot starts the span of the wait for a slot, which ends with the decision. Later calls for
// the same decision do nothing.
func (t *requestTrace) waitForSlot(ctx context.Context) {
	if t != nil && t.slotWait == nil {
		_, t.slotWait = t.tracer.Start(ctx, spanWait, trace.WithAttributes(attributeWaitFor.String(forSlot)))
	}
}

// waitForLimit starts the span of the delay by limits, and returns a function that ends it.
func (t *requestTrace) waitForLimit(ctx context.Context) (end func()) {
	if t == nil {
		return func() {}
	}
	_, span := t.tracer.Start(ctx, spanWait, trace.WithAttributes(attributeWaitFor.String(forLimit)))
	return func() { span.End() }
}

// setOutcome sets the outcome of the request in a zone.
func (t *requestTrace) setOutcome(z *zone, label outcomeLabel) {
	if t != nil {
		t.span.SetAttributes(zoneAttribute(z, "outcome").String(outcomeLabels[label]))
	}
}

// setRemaining sets how many events remain in a zone. There is no such number if the limits were not
// asked, for example because of a ban.
func (t *requestTrace) setRemaining(e *zoneEntry) {
	if t == nil {
		return
	}
	if d, _ := e.tightestLimit(); !d.NotAsked {
		t.span.SetAttributes(zoneAttribute(e.zone, "remaining").Int64(d.Remaining))
	}
}

// setDenial sets the zone that denies the request, and the reason as in the log.
func (t *requestTrace) setDenial(z *zone, reason string) {
	if t != nil {
		t.span.SetAttributes(attributeDeniedBy.String(z.name), attributeReason.String(reason))
	}
}
