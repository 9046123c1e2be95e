package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// otlpCollector receives the spans that Caddy's handler tracing exports.
type otlpCollector struct {
	collectorpb.UnimplementedTraceServiceServer

	mu       sync.Mutex
	spans    []*tracepb.Span
	requests uint16 // how many trace IDs are in use
}

// clientSpan is the ID of the spans of the clients, of which those of the requests are children.
var clientSpan = []byte("a client")

// collector returns the collector of all tests. It runs until they end.
var collector = sync.OnceValue(func() *otlpCollector {
	listener, err := net.Listen("tcp", caddytest.Collector())
	if err != nil {
		panic(err)
	}
	o := new(otlpCollector)
	server := grpc.NewServer()
	collectorpb.RegisterTraceServiceServer(server, o)
	go func() { _ = server.Serve(listener) }()
	return o
})

// Export implements [collectorpb.TraceServiceServer].
func (o *otlpCollector) Export(_ context.Context, r *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, resource := range r.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			o.spans = append(o.spans, scope.Spans...)
		}
	}
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

// newTrace returns a trace ID, and the field traceparent of a request of this trace.
func (o *otlpCollector) newTrace(sampled bool) (id []byte, parent string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.requests++
	id = binary.BigEndian.AppendUint16([]byte("the trace no. "), o.requests)
	flags := "00"
	if sampled {
		flags = "01"
	}
	return id, fmt.Sprintf("00-%s-%s-%s", hex.EncodeToString(id), hex.EncodeToString(clientSpan), flags)
}

// find returns the spans of a trace, the one of the request first.
func (o *otlpCollector) find(id []byte) (spans []*tracepb.Span) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.spans {
		switch {
		case !bytes.Equal(s.TraceId, id):
		case bytes.Equal(s.ParentSpanId, clientSpan):
			spans = slices.Insert(spans, 0, s)
		default:
			spans = append(spans, s)
		}
	}
	return spans
}

// describe describes a trace, as soon as it is complete: the module's attributes of the request, and
// a line for each span of the module, behind that of its parent.
func (o *otlpCollector) describe(t *testing.T, id []byte) string {
	t.Helper()
	look := func() []*tracepb.Span { return o.find(id) }
	spans := caddytest.EventuallySees(t, "the span of the request is exported", look, func(spans []*tracepb.Span) bool {
		return len(spans) > 0 && bytes.Equal(spans[0].ParentSpanId, clientSpan)
	})
	var text strings.Builder
	describeSpan(&text, spans[0], "")
	describeChildren(&text, spans, spans[0], "\n")
	return text.String()
}

func describeChildren(text *strings.Builder, spans []*tracepb.Span, parent *tracepb.Span, indent string) {
	for _, s := range spans {
		if bytes.Equal(s.ParentSpanId, parent.SpanId) {
			describeSpan(text, s, indent+s.Name)
			describeChildren(text, spans, s, indent+"\t")
		}
	}
}

func describeSpan(text *strings.Builder, s *tracepb.Span, title string) {
	text.WriteString(title)
	slices.SortFunc(s.Attributes, func(a, b *commonpb.KeyValue) int { return strings.Compare(a.Key, b.Key) })
	for _, a := range s.Attributes {
		if name, ok := strings.CutPrefix(a.Key, "rate_limit."); ok {
			fmt.Fprintf(text, " %s=%s", name, attributeText(a.Value))
		}
	}
	for _, e := range s.Events {
		fmt.Fprintf(text, " (%s)", e.Name)
	}
	if s.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR && title != "" { // not that of status 503
		fmt.Fprintf(text, " failed: %s", s.Status.Message)
	}
}

func attributeText(v *commonpb.AnyValue) string {
	switch v := v.Value.(type) {
	case *commonpb.AnyValue_StringValue:
		return v.StringValue
	case *commonpb.AnyValue_IntValue:
		return fmt.Sprint(v.IntValue)
	case *commonpb.AnyValue_BoolValue:
		return fmt.Sprint(v.BoolValue)
	default:
		return fmt.Sprint(v)
	}
}

// tracedSite adds Caddy's handler tracing to a site.
func tracedSite(site string) string {
	return strings.Replace(site, "{$SITE}\n", "{$SITE}\ntracing {\n span request\n}\n", 1)
}

// traced sends a request, and returns the description of its trace.
func traced(t *testing.T, c *caddytest.Caddy, o *otlpCollector, method, path, body string, header ...string) string {
	t.Helper()
	id, parent := o.newTrace(true)
	if _, err := c.Do(method, "http://"+c.Site+path, body, append(header, "traceparent", parent)...); err != nil {
		t.Fatal(err)
	}
	return o.describe(t, id)
}

// The span of a request has the outcome of each zone, and a child for the decision.
func TestTracing(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		o := collector()
		zone := func(name, options string) string {
			return fmt.Sprintf("zone %s {\n match path /%s\n key {header.X-Key}\n %s\n}\n", name, name, options)
		}
		c := caddytest.Start(t, tracedSite(caddytest.Site(
			zone("one", "fixed_window 2 1000h")+
				strings.Replace(zone("wide", "fixed_window 5 1000h"), "/wide", "/both", 1)+
				strings.Replace(zone("tight", "fixed_window 1 1000h"), "/tight", "/both", 1)+
				zone("shadow", "fixed_window 1 1000h\n shadow")+
				zone("ban", "fixed_window 1 1000h\n ban 1h")+
				zone("exempt", "fixed_window 1 1000h\n exempt method GET")+
				zone("unlimited", "fixed_window 1 1000h\n override hidden unlimited")+
				strings.Replace(zone("body", "fixed_window 1 1000h\n max_body 10"), "{header.X-Key}", "{http.rate_limit.request.json.user}", 1)+
				zone("slots", "concurrency 3")+
				use)))
		decision := "\nrate_limit.decide cached=false store=memory"
		if use != "" {
			decision = "\nrate_limit.decide cached=false store=redis"
		}
		for _, test := range []struct{ path, want string }{
			{"/one", " one.outcome=allowed one.remaining=1" + decision},
			{"/one", " one.outcome=allowed one.remaining=0" + decision},
			{"/one", " denied_by=one one.outcome=denied one.remaining=0 reason=limit" + decision},
			{"/both", " tight.outcome=allowed tight.remaining=0 wide.outcome=allowed wide.remaining=4" + decision},
			{"/both", " denied_by=tight reason=limit tight.outcome=denied tight.remaining=0 wide.outcome=denied_elsewhere wide.remaining=4" + decision},
			{"/shadow", " shadow.outcome=allowed shadow.remaining=0" + decision},
			{"/shadow", " shadow.outcome=shadow_denied shadow.remaining=0" + decision},
			{"/ban", " ban.outcome=allowed ban.remaining=0" + decision},
			{"/ban", " ban.outcome=denied ban.remaining=0 denied_by=ban reason=limit" + decision},
			{"/exempt", " exempt.outcome=exempt"},
			{"/unlimited", " unlimited.outcome=overridden"},
			{"/slots", " slots.outcome=allowed slots.remaining=2" + decision},
			{"/ready", ""},
		} {
			if got := traced(t, c, o, "GET", test.path, "", "X-Key", "hidden"); got != test.want {
				t.Errorf("%s: the trace is\n%s\nwant\n%s", test.path, got, test.want)
			}
		}
		got := traced(t, c, o, "POST", "/body", `{"user":"a long name"}`, "Content-Type", "application/json")
		if want := " body.outcome=bad_body denied_by=body reason=too large"; got != want {
			t.Errorf("/body: the trace is\n%s\nwant\n%s", got, want)
		}
		// If Redis has just denied a similar request, what remains is unknown.
		got = traced(t, c, o, "GET", "/ban", "", "X-Key", "hidden")
		if want := " ban.outcome=banned denied_by=ban reason=ban" + decision; strings.NewReplacer("cached=true", "cached=false", " ban.remaining=0", "").Replace(got) != want {
			t.Errorf("/ban: the trace is\n%s\nwant\n%s", got, want)
		}
		if use != "" {
			look := func() string { return traced(t, c, o, "GET", "/one", "", "X-Key", "hidden") }
			caddytest.EventuallySees(t, "a trace says that a denial was remembered", look, func(trace string) bool {
				return strings.Contains(trace, "cached=true")
			})
		}
		unsampled, parent := o.newTrace(false)
		c.Get(t, "/one", "X-Key", "hidden", "traceparent", parent)
		traced(t, c, o, "GET", "/one", "", "X-Key", "hidden")
		if spans := o.find(unsampled); len(spans) > 0 {
			t.Errorf("a request that isn't sampled has the spans %v", spans)
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		if all := fmt.Sprint(o.spans); strings.Contains(all, "hidden") {
			t.Errorf("the key is in a span: %s", all)
		}
	})
}

// The waits of a request are spans. The wait for a slot is part of the decision, and the delay by a
// limit comes after the decision.
func TestTracingOfWaits(t *testing.T) {
	t.Parallel()
	o, g := collector(), startGate(t)
	c := caddytest.Start(t, tracedSite(gated(g, "zone api {\n key static\n gcra 10 1s 1\n concurrency 1\n delay 1h\n}\n")))
	held := c.Hold(t.Context(), "/hold")
	g.wait(t, 1)
	id, parent := o.newTrace(true)
	ctx, leave := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(ctx, "GET", "http://"+c.Site+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("traceparent", parent)
	go func() { _, _ = caddytest.Client.Do(request) }()
	c.WaitForWaiters(t, 1)
	leave() // which is no failure
	if got, want := o.describe(t, id), "\nrate_limit.decide cached=false store=memory\n\trate_limit.wait wait_for=slot"; got != want {
		t.Errorf("of a client that left, the trace is\n%s\nwant\n%s", got, want)
	}
	waits := make(chan string, 1)
	go func() { waits <- traced(t, c, o, "GET", "/", "") }()
	c.WaitForWaiters(t, 1)
	g.pass <- struct{}{}
	<-held
	first := <-waits // which the limit may not have delayed, if this machine is slow
	if want := " api.outcome=delayed api.remaining=0\nrate_limit.decide cached=false store=memory\n\trate_limit.wait wait_for=slot"; !strings.HasPrefix(first, want) {
		t.Errorf("the trace is\n%s\nwant\n%s", first, want)
	}
	caddytest.EventuallySees(t, "a limit delays a request", func() string {
		go func() { _, _ = c.Do("GET", "http://"+c.Site+"/", "") }()
		return traced(t, c, o, "GET", "/", "")
	}, func(trace string) bool { return strings.HasSuffix(trace, "\nrate_limit.wait wait_for=limit") })
}

// A failure of the store is in the span of the decision. If local budgets decide, the span says so.
func TestTracingOfStoreErrors(t *testing.T) {
	t.Parallel()
	address := "127.0.0.1:" + redistest.FreePort(t)
	config := func(mode string) string {
		return tracedSite(caddytest.Site(fmt.Sprintf("zone api {\n fixed_window 5 1000h\n}\nredis %s\non_store_error %s", address, mode)))
	}
	o := collector()
	c := caddytest.Start(t, config("deny"))
	c.WaitForLog(t, "Redis did not pass the check at the start")
	caddytest.WaitForMetric(t, c, "caddy_rate_limit_store_state 1")
	for _, test := range []struct{ mode, want string }{
		{"deny", " api.outcome=error\nrate_limit.decide cached=false store=redis (exception) failed: open"},
		{"allow", " api.outcome=error\nrate_limit.decide cached=false store=redis (exception) failed: open"},
		{"local", " api.outcome=allowed api.remaining=4\nrate_limit.decide cached=false store=local"},
	} {
		c.Reload(t, config(test.mode))
		if got := traced(t, c, o, "GET", "/", ""); got != test.want {
			t.Errorf("%s: the trace is\n%s\nwant\n%s", test.mode, got, test.want)
		}
	}
}
