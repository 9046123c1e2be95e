package ratelimit

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// grpcService is a gRPC server. It ends every call without an error.
type grpcService struct {
	testpb.UnimplementedTestServiceServer
}

// startGRPC starts a gRPC server, and returns its address.
func startGRPC(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	testpb.RegisterTestServiceServer(server, grpcService{})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return listener.Addr().String()
}

// UnaryCall answers with the number of attempts that the client made before: "" if there was none.
func (grpcService) UnaryCall(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return &testpb.SimpleResponse{Username: previousAttempts(ctx)}, nil
}

func previousAttempts(ctx context.Context) string {
	fields, _ := metadata.FromIncomingContext(ctx)
	return strings.Join(fields["grpc-previous-rpc-attempts"], ",")
}

func (grpcService) StreamingOutputCall(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	return s.Send(&testpb.StreamingOutputCallResponse{Payload: &testpb.Payload{Body: []byte(previousAttempts(s.Context()))}})
}

func (grpcService) StreamingInputCall(s grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]) error {
	for {
		if _, err := s.Recv(); err != nil {
			return s.SendAndClose(&testpb.StreamingInputCallResponse{})
		}
	}
}

func (grpcService) FullDuplexCall(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	for {
		if _, err := s.Recv(); err != nil {
			return nil
		}
		if err := s.Send(&testpb.StreamingOutputCallResponse{}); err != nil {
			return err
		}
	}
}

// grpcClient makes calls through a Caddy.
type grpcClient struct {
	testpb.TestServiceClient
	fields []string // sent with every call: pairs of name and value
}

// newGRPCClient returns a client of a Caddy, over TLS or without it.
func newGRPCClient(t *testing.T, address string, overTLS bool, options ...grpc.DialOption) grpcClient {
	t.Helper()
	security := insecure.NewCredentials()
	if overTLS {
		security = credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})
	}
	conn, err := grpc.NewClient("passthrough:///"+address, append(options, grpc.WithTransportCredentials(security))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return grpcClient{TestServiceClient: testpb.NewTestServiceClient(conn)}
}

// retryAtOnce is a retry policy that comes back after a millisecond, unless the server pushes back.
var retryAtOnce = grpc.WithDefaultServiceConfig(`{"methodConfig": [{"name": [{}], "retryPolicy": {
	"maxAttempts": 5, "initialBackoff": "0.001s", "maxBackoff": "0.001s", "backoffMultiplier": 1,
	"retryableStatusCodes": ["RESOURCE_EXHAUSTED", "UNAVAILABLE"]
}}]}`)

// grpcKinds are the kinds of calls.
var grpcKinds = []string{"unary", "server streaming", "client streaming", "both streaming"}

// grpcResult is the end of a call. It also has what the client sees of the response's header, which
// a response without messages has in its trailer.
type grpcResult struct {
	error
	attempts string // before the one that passed
	trailer  metadata.MD
}

// call makes a call of a kind.
func (c grpcClient) call(t *testing.T, kind string) (result grpcResult) {
	t.Helper()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(context.Background(), c.fields...), patient)
	defer cancel()
	var err error
	switch trailer := grpc.Trailer(&result.trailer); kind {
	case "unary":
		var r *testpb.SimpleResponse
		r, err = c.UnaryCall(ctx, &testpb.SimpleRequest{}, trailer)
		result.attempts = r.GetUsername()
	case "server streaming":
		stream, e := c.StreamingOutputCall(ctx, &testpb.StreamingOutputCallRequest{}, trailer)
		for err = e; err == nil; {
			var r *testpb.StreamingOutputCallResponse
			r, err = stream.Recv()
			result.attempts += string(r.GetPayload().GetBody())
		}
	case "client streaming":
		stream, e := c.StreamingInputCall(ctx, trailer)
		if err = e; err == nil {
			_ = stream.Send(&testpb.StreamingInputCallRequest{}) // its error comes from CloseAndRecv
			_, err = stream.CloseAndRecv()
		}
	case "both streaming":
		stream, e := c.FullDuplexCall(ctx, trailer)
		if err = e; err == nil {
			_ = stream.Send(&testpb.StreamingOutputCallRequest{})
			_, err = stream.Recv()
		}
		for err == nil {
			_ = stream.CloseSend()
			_, err = stream.Recv()
		}
	}
	if !errors.Is(err, io.EOF) {
		result.error = err
	}
	return result
}

// want checks how a call ended: its code and message, and fields given as pairs of name and value. It
// also checks that message, retry-after and push-back agree.
func (r grpcResult) want(t *testing.T, code codes.Code, message string, fields ...string) {
	t.Helper()
	if got := status.Code(r.error); got != code {
		t.Fatalf("the call ended with %v: %v; want %v", got, r.error, code)
	}
	field := func(name string) string { return strings.Join(r.trailer[name], ", ") }
	for i := 0; i < len(fields); i += 2 {
		wantText(t, fields[i], field(fields[i]), fields[i+1])
	}
	if code == codes.OK {
		return
	}
	seconds, pushback := field("retry-after"), field("grpc-retry-pushback-ms")
	if seconds != "" {
		message += ", retry after " + seconds + " s"
	}
	if got := status.Convert(r.error).Message(); got != message {
		t.Errorf("message %q, want %q", got, message)
	}
	if pushback == "-1" {
		return
	}
	var s, ms int
	if _, err := fmt.Sscan(seconds+" "+pushback, &s, &ms); err != nil || ms <= (s-1)*1000 || ms > s*1000 {
		t.Errorf("grpc-retry-pushback-ms %q and retry-after %q", pushback, seconds)
	}
}

// grpcConfig is a Caddyfile whose sites limit calls to a gRPC server.
func grpcConfig(server, rateLimit, more string, cert redistest.Certificates) string {
	return `{
	admin {$ADMIN}
	auto_https disable_redirects
	servers {
		protocols h1 h2 h2c
	}
}
(all) {
	encode
	@limited not path /ready
	rate_limit @limited {
` + rateLimit + `
	}
	handle /ready {
		respond ok
	}
	reverse_proxy h2c://` + server + `
` + more + `
}
{$SITE} {
	import all
}
{$TLS} {
	tls ` + cert.Cert + " " + cert.Key + `
	import all
}
`
}

// A denied gRPC call ends with ResourceExhausted, however other requests are answered.
func TestGRPCDenials(t *testing.T) {
	t.Parallel()
	server, cert := startGRPC(t), redistest.NewCertificates(t)
	const routes = "handle_errors {\n respond \"a page\" 418\n}\n"
	eachStore(t, func(t *testing.T, use string) {
		var c *caddyProcess
		for n, variant := range []struct{ zone, handler, site string }{
			{},
			{handler: "problem_json\nheaders draft x_ratelimit"},
			{zone: "status 503", site: routes},
			{handler: "problem_json", site: routes},
		} {
			config := grpcConfig(server, fmt.Sprintf("zone calls%d {\n key {scheme}{path}\n fixed_window 1 1h\n %s\n}\n%s\n%s",
				n, variant.zone, variant.handler, use), variant.site, cert)
			if c == nil {
				c = startCaddy(t, config)
			} else {
				c.reload(t, config)
			}
			for address, overTLS := range map[string]bool{c.site: false, c.tls: true} {
				calls := newGRPCClient(t, address, overTLS)
				for _, kind := range grpcKinds {
					calls.call(t, kind).want(t, codes.OK, "")
					calls.call(t, kind).want(t, codes.ResourceExhausted, "rate limit exceeded",
						"content-type", "application/grpc", "retry-after", "3600",
						"ratelimit", fmt.Sprintf(`"calls%d";r=0;t=3600`, n), "ratelimit-policy", fmt.Sprintf(`"calls%d";q=1;w=3600`, n))
				}
			}
		}
	})
}

// A client with a retry policy comes back when the call can pass, and not before.
func TestGRPCPushback(t *testing.T) {
	t.Parallel()
	server, cert := startGRPC(t), redistest.NewCertificates(t)
	zone := func(name, options string) string {
		return "zone " + name + " {\n match header Case " + name + "\n key {header.Case}{path}{scheme}\n " + options + "\n}\n"
	}
	eachStore(t, func(t *testing.T, use string) {
		c := startCaddy(t, grpcConfig(server, zone("soon", "fixed_window 1 1s")+
			zone("never", "fixed_window 1 1h\n cost 2")+zone("late", "fixed_window 1 60d")+
			"problem_json\njitter 0.5\n"+use, "handle_errors {\n respond \"a page\"\n}\n", cert))
		for address, overTLS := range map[string]bool{c.site: false, c.tls: true} {
			calls := newGRPCClient(t, address, overTLS, retryAtOnce)
			calls.fields = []string{"case", "soon", "accept-encoding", "gzip"}
			for _, kind := range grpcKinds[:2] {
				eventually(t, "a call was denied, and then passed", func() bool {
					r := calls.call(t, kind)
					if r.want(t, codes.OK, ""); r.attempts != "" && r.attempts != "1" {
						t.Fatalf("the call passed after %s denials, want one", r.attempts)
					}
					return r.attempts == "1"
				})
			}
		}
		calls := newGRPCClient(t, c.site, false, retryAtOnce)
		calls.fields = []string{"case", "never"}
		calls.call(t, "unary").want(t, codes.ResourceExhausted, "rate limit exceeded", "grpc-retry-pushback-ms", "-1", "retry-after", "")
		calls.fields = []string{"case", "late"}
		calls.call(t, "unary").want(t, codes.OK, "")
		calls.call(t, "unary").want(t, codes.ResourceExhausted, "rate limit exceeded", "grpc-retry-pushback-ms", "-1")
		for _, name := range []string{"never", "late"} {
			metric := fmt.Sprintf(`caddy_rate_limit_requests_total{outcome="denied",zone=%q}`, name)
			if n := metrics(t, c, metric)[metric]; n != 1 {
				t.Errorf("zone %s denied %v attempts, want 1, because the client must not retry", name, n)
			}
		}
	})
}

// The client of a denied call learns the reason.
func TestGRPCReasons(t *testing.T) {
	t.Parallel()
	server, cert := startGRPC(t), redistest.NewCertificates(t)
	eachStore(t, func(t *testing.T, use string) {
		config := grpcConfig(server, `zone slots {
	match path /*/FullDuplexCall
	concurrency 1
}
zone banned {
	match path /*/UnaryCall
	fixed_window 1 1h
	ban 2h
}
`+use, "log\nlog_append denied {http.rate_limit.exceeded.reason}\n", cert)
		c := startCaddy(t, config)
		calls := newGRPCClient(t, c.site, false)
		calls.call(t, "unary").want(t, codes.OK, "")
		for range 2 { // the denial that begins the ban, and one by the ban
			calls.call(t, "unary").want(t, codes.ResourceExhausted, "banned after too many requests", "retry-after", "7200")
		}
		stream, err := calls.FullDuplexCall(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&testpb.StreamingOutputCallRequest{}); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		calls.call(t, "both streaming").want(t, codes.ResourceExhausted, "too many requests in flight", "grpc-retry-pushback-ms", "1000")
		if err := stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		calls.call(t, "both streaming").want(t, codes.OK, "")
		c.waitForLog(t, `"denied":"concurrency"`)
	})

	c := startCaddy(t, grpcConfig(server, "zone api {\n fixed_window 1 1h\n}\nredis localhost:1\non_store_error deny\nproblem_json", "handle_errors {\n respond \"a page\"\n}\n", cert))
	for _, kind := range grpcKinds {
		newGRPCClient(t, c.site, false).call(t, kind).want(t, codes.Unavailable, "rate limits are unavailable",
			"grpc-retry-pushback-ms", "1000", "retry-after", "1")
	}
}

// The push-back never ends before the wait, and has 32 bits.
func TestGRPCPushbackValues(t *testing.T) {
	for wait, want := range map[algorithms.Micros]string{
		1: "1", 1000: "1", 1001: "2", 3_600_000_000: "3600000",
		2147483647000: "2147483647", 2147483647001: "-1", algorithms.Forever - 1: "-1", algorithms.Forever: "-1",
	} {
		if got := formatPushback(wait); got != want {
			t.Errorf("after %d µs: %s, want %s", wait, got, want)
		}
	}
}

// Only requests that a gRPC or gRPC-Web client sends get the response of a gRPC call.
func TestGRPCContentTypes(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, site("zone api {\n fixed_window 1 1h\n cost 2\n}\n"))
	for _, test := range []struct{ method, contentType, want string }{
		{"POST", "application/grpc", "application/grpc"},
		{"POST", "application/grpc+proto", "application/grpc+proto"},
		{"POST", "application/grpc+json", "application/grpc+json"},
		{"POST", "application/grpc-web", "application/grpc-web"},
		{"POST", "application/grpc-web+proto", "application/grpc-web+proto"},
		{"POST", "application/grpc-web-text", "application/grpc-web-text"},
		{"POST", "application/grpc-web-text+proto", "application/grpc-web-text+proto"},
		{"POST", "Application/GRPC+Proto", "application/grpc+proto"},
		{"POST", "application/grpc ; charset=utf-8", "application/grpc"},
		{"POST", "application/grpc+vnd.example-2", "application/grpc+vnd.example-2"},
		{"POST", "application/grpc+", "application/grpc"},
		{"POST", "application/grpc+<b>", "application/grpc"},
		{"POST", "application/grpc+\xff", "application/grpc"},
		{"POST", "application/grpc-web+a, text/html", "application/grpc-web"},
		{"POST", "application/grpc+" + strings.Repeat("x", 65), "application/grpc"},
		{"POST", "application/grpcfoo", ""},
		{"POST", "application/grpc-webfoo", ""},
		{"POST", "application/grpc/x", ""},
		{"POST", "application/json", ""},
		{"POST", "", ""},
		{"GET", "application/grpc", ""},
		{"HEAD", "application/grpc", ""},
		{"PUT", "application/grpc", ""},
	} {
		r, err := c.do(test.method, "http://"+c.site+"/", "body", "Content-Type", test.contentType)
		if err != nil {
			t.Fatal(err)
		}
		if test.want == "" {
			r.want(t, http.StatusTooManyRequests, "Content-Type", "", "Grpc-Status", "")
			continue
		}
		r.want(t, http.StatusOK, "Content-Type", test.want, "Grpc-Status", "8", "Grpc-Message", "rate limit exceeded",
			"Grpc-Retry-Pushback-Ms", "-1", "RateLimit-Policy", `"api";q=1;w=3600`)
		if r.body != "" || len(r.Trailer) > 0 {
			t.Errorf("%s: body %q, trailer %v", test.contentType, r.body, r.Trailer)
		}
	}
}
