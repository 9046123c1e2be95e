package limiter_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

// describeSpans returns a line for each span of the module, and the attributes of the request's span, which is first.
func describeSpans(spans []sdktrace.ReadWriteSpan) string {
	var text strings.Builder
	indents := make(map[trace.SpanID]string)
	for _, s := range spans {
		indent := indents[s.Parent().SpanID()]
		indents[s.SpanContext().SpanID()] = indent + "\t"
		text.WriteString(strings.TrimPrefix("\n"+indent+s.Name(), "\nrequest"))
		for _, a := range s.Attributes() {
			fmt.Fprintf(&text, " %s=%v", strings.TrimPrefix(string(a.Key), "rate_limit."), a.Value.AsInterface())
		}
		if s.EndTime().IsZero() {
			text.WriteString(" isn't ended")
		}
		text.WriteString(strings.TrimPrefix(" failed: "+s.Status().Description, " failed: "))
	}
	return text.String()
}

// tracedRequests returns a function that sends a request to a handler with these zones, and returns its spans. The
// request runs for a second.
func tracedRequests(t *testing.T, zones string) func(ctx context.Context, path, body string) string {
	t.Helper()
	serve := serveZones(t, zones, time.Second)
	return func(ctx context.Context, path, body string) string {
		recorder := tracetest.NewSpanRecorder()
		ctx, span := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("").Start(ctx, "request")
		r := httptest.NewRequestWithContext(ctx, "POST", path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		serve(r)
		span.End()
		return describeSpans(recorder.Started())
	}
}

// The span of a request has the outcome of each zone, and a child for the decision. The key is in no span.
func TestTracing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zone := func(name, paths, more string) string {
			return fmt.Sprintf(`%q:{"match":[{"path":[%s]}],"key":"{http.rate_limit.request.json.user}",%s}`, name, paths, more)
		}
		limit := func(n int) string {
			return fmt.Sprintf(`"limits":[{"algorithm":"fixed_window","events":%d,"window":"1000h"}]`, n)
		}
		send := tracedRequests(t, strings.Join([]string{
			zone("tight", `"/one","/both"`, limit(2)),
			zone("wide", `"/both"`, limit(5)),
			zone("shadow", `"/shadow"`, limit(1)+`,"shadow":true`),
			zone("ban", `"/ban"`, limit(1)+`,"ban":{"duration":"1h"}`),
			zone("exempt", `"/exempt"`, limit(1)+`,"exempt":[{"method":["POST"]}]`),
			zone("unlimited", `"/unlimited"`, limit(1)+`,"override":{"hidden":{"unlimited":true}}`),
			zone("slots", `"/slots"`, `"concurrency":3`),
			zone("body", `"/body"`, limit(1)+`,"max_body":{"bytes":1}`),
		}, ","))
		both := func(tight, wide string) string {
			return " tight.outcome=" + tight + " tight.remaining=0 wide.outcome=" + wide + " wide.remaining=4"
		}
		const decision = "\n\trate_limit.decide store=memory cached=false"
		for _, test := range []struct{ path, want string }{
			{"/one", " tight.outcome=allowed tight.remaining=1" + decision},
			{"/both", both("allowed", "allowed") + decision},
			{"/both", both("denied", "denied_elsewhere") + " denied_by=tight reason=limit" + decision},
			{"/shadow", " shadow.outcome=allowed shadow.remaining=0" + decision},
			{"/shadow", " shadow.outcome=shadow_denied shadow.remaining=0" + decision},
			{"/ban", " ban.outcome=allowed ban.remaining=0" + decision},
			{"/ban", " ban.outcome=denied ban.remaining=0 denied_by=ban reason=limit" + decision},
			{"/ban", " ban.outcome=banned ban.remaining=0 denied_by=ban reason=ban" + decision},
			{"/exempt", " exempt.outcome=exempt"},
			{"/unlimited", " unlimited.outcome=overridden"},
			{"/slots", " slots.outcome=allowed slots.remaining=2" + decision},
			{"/body", " body.outcome=bad_body denied_by=body reason=too large"},
			{"/other", ""},
		} {
			if got := send(t.Context(), test.path, `{"user":"hidden"}`); got != test.want {
				t.Errorf("%s: the trace is\n%s\nwant\n%s", test.path, got, test.want)
			}
		}
	})
}

// The waits of a request are spans. The wait for a slot is part of the decision, and the delay by a limit comes after the
// decision. A client that leaves is no failure.
func TestTracingOfWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		send := tracedRequests(t, `"api":{"limits":[{"algorithm":"gcra","events":1,"window":"5s"}],"concurrency":1,"delay":{"max":"1h"}}`)
		go send(t.Context(), "/", "")
		synctest.Wait()
		leaves, leave := context.WithTimeout(t.Context(), time.Millisecond)
		defer leave()
		const waits = "\n\trate_limit.decide store=memory cached=false\n\t\trate_limit.wait wait_for=slot"
		if got := send(leaves, "/", ""); got != waits {
			t.Errorf("of a client that disconnected, the trace is\n%s\nwant\n%s", got, waits)
		}
		want := " api.outcome=delayed api.remaining=0" + waits + "\n\trate_limit.wait wait_for=limit"
		if got := send(t.Context(), "/", ""); got != want {
			t.Errorf("the trace is\n%s\nwant\n%s", got, want)
		}
	})
}
