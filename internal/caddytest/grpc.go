package caddytest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// grpcService is a gRPC server. It ends every call without an error.
type grpcService struct {
	testpb.UnimplementedTestServiceServer
}

// StartGRPC starts a gRPC server, and returns its address.
func StartGRPC(t *testing.T) string {
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

func (grpcService) StreamingOutputCall(
	_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse],
) error {
	return s.Send(&testpb.StreamingOutputCallResponse{Payload: &testpb.Payload{Body: []byte(previousAttempts(s.Context()))}})
}

func (grpcService) StreamingInputCall(
	s grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse],
) error {
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

// GRPCClient makes calls through a Caddy.
type GRPCClient struct {
	testpb.TestServiceClient
	Fields []string // sent with every call: pairs of name and value
}

// NewGRPCClient returns a client of a Caddy, over TLS or without it.
func NewGRPCClient(t *testing.T, address string, overTLS bool, options ...grpc.DialOption) GRPCClient {
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
	return GRPCClient{TestServiceClient: testpb.NewTestServiceClient(conn)}
}

// GRPCResult is the end of a call. It also has what the client sees of the response's header, which
// a response without messages has in its trailer.
type GRPCResult struct {
	error
	Attempts string // before the one that passed
	trailer  metadata.MD
}

// Call makes a call of a kind.
func (c GRPCClient) Call(t *testing.T, kind string) (result GRPCResult) {
	t.Helper()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(context.Background(), c.Fields...), Patient)
	defer cancel()
	var err error
	switch trailer := grpc.Trailer(&result.trailer); kind {
	case "unary":
		var r *testpb.SimpleResponse
		r, err = c.UnaryCall(ctx, &testpb.SimpleRequest{}, trailer)
		result.Attempts = r.GetUsername()
	case "server streaming":
		stream, e := c.StreamingOutputCall(ctx, &testpb.StreamingOutputCallRequest{}, trailer)
		for err = e; err == nil; {
			var r *testpb.StreamingOutputCallResponse
			r, err = stream.Recv()
			result.Attempts += string(r.GetPayload().GetBody())
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

// OK reports whether the call ended without an error.
func (r GRPCResult) OK() bool { return r.error == nil }

// Want checks how a call ended: its code and message, and fields given as pairs of name and value. It
// also checks that message, retry-after and push-back agree.
func (r GRPCResult) Want(t *testing.T, code codes.Code, message string, fields ...string) {
	t.Helper()
	if got := status.Code(r.error); got != code {
		t.Fatalf("the call ended with %v: %v; want %v", got, r.error, code)
	}
	field := func(name string) string { return strings.Join(r.trailer[name], ", ") }
	for i := 0; i < len(fields); i += 2 {
		WantText(t, fields[i], field(fields[i]), fields[i+1])
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
