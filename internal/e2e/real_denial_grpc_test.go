//go:build real

package e2e

import (
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// A client with a retry policy comes back when the call can pass, and not before.
//
// Simulated: TestGRPCPushback, TestGRPCPushbackValues.
func TestRealGRPCPushback(t *testing.T) {
	server, cert := caddytest.StartGRPC(t), redistest.NewCertificates(t)
	caddytest.EachStore(t, func(t *testing.T, use string) {
		c := caddytest.Start(t, grpcConfig(server, grpcZone("soon", "fixed_window 1 1s")+
			"problem_json\njitter 0.5\n"+use, "handle_errors {\n respond \"a page\"\n}\n", cert))
		for address, overTLS := range map[string]bool{c.Site: false, c.TLS: true} {
			calls := caddytest.NewGRPCClient(t, address, overTLS, retryAtOnce)
			calls.Fields = []string{"case", "soon", "accept-encoding", "gzip"}
			for _, kind := range grpcKinds[:2] {
				look := func() caddytest.GRPCResult { return calls.Call(t, kind) }
				caddytest.EventuallySees(t, "a call was denied, and then passed", look, func(r caddytest.GRPCResult) bool {
					if r.Want(t, codes.OK, ""); r.Attempts != "" && r.Attempts != "1" {
						t.Fatalf("the call passed after %s denials, want one", r.Attempts)
					}
					return r.Attempts == "1"
				})
			}
		}
	})
}
