package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// retryAtOnce is a retry policy that comes back after a millisecond, unless the server pushes back.
var retryAtOnce = grpc.WithDefaultServiceConfig(`{"methodConfig": [{"name": [{}], "retryPolicy": {
	"maxAttempts": 5, "initialBackoff": "0.001s", "maxBackoff": "0.001s", "backoffMultiplier": 1,
	"retryableStatusCodes": ["RESOURCE_EXHAUSTED", "UNAVAILABLE"]
}}]}`)

// grpcKinds are the kinds of calls.
var grpcKinds = []string{"unary", "server streaming", "client streaming", "both streaming"}

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
	server, cert := caddytest.StartGRPC(t), redistest.NewCertificates(t)
	const routes = "handle_errors {\n respond \"a page\" 418\n}\n"
	var c *caddytest.Caddy
	for n, variant := range []struct{ zone, handler, site string }{
		{},
		{handler: "problem_json\nheaders draft x_ratelimit"},
		{zone: "status 503", site: routes},
		{handler: "problem_json", site: routes},
	} {
		config := grpcConfig(server, fmt.Sprintf("zone calls%d {\n key {scheme}{path}\n fixed_window 1 1h\n %s\n}\n%s",
			n, variant.zone, variant.handler), variant.site, cert)
		if c == nil {
			c = caddytest.Start(t, config)
		} else {
			c.Reload(t, config)
		}
		for address, overTLS := range map[string]bool{c.Site: false, c.TLS: true} {
			calls := caddytest.NewGRPCClient(t, address, overTLS)
			for _, kind := range grpcKinds {
				calls.Call(t, kind).Want(t, codes.OK, "")
				calls.Call(t, kind).Want(t, codes.ResourceExhausted, "rate limit exceeded",
					"content-type", "application/grpc", "retry-after", "3600",
					"ratelimit", fmt.Sprintf(`"calls%d";r=0;t=3600`, n), "ratelimit-policy", fmt.Sprintf(`"calls%d";q=1;w=3600`, n))
			}
		}
	}
}

// A client with a retry policy does not come back if the call can't pass soon. It learns that it is banned, or that the store
// fails.
func TestGRPCPushback(t *testing.T) {
	t.Parallel()
	server, cert := caddytest.StartGRPC(t), redistest.NewCertificates(t)
	caddytest.EachStore(t, func(t *testing.T, use string) {
		c := caddytest.Start(t, grpcConfig(server, grpcZone("never", "fixed_window 1 1h\n cost 2")+grpcZone("late", "fixed_window 1 60d")+grpcZone("banned", "fixed_window 1 1h\n ban 2h")+
			"problem_json\njitter 0.5\n"+use, "handle_errors {\n respond \"a page\"\n}\n", cert))
		calls := caddytest.NewGRPCClient(t, c.Site, false, retryAtOnce)
		calls.Fields = []string{"case", "never"}
		calls.Call(t, "unary").Want(t, codes.ResourceExhausted, "rate limit exceeded", "grpc-retry-pushback-ms", "-1", "retry-after", "")
		calls.Fields = []string{"case", "late"}
		calls.Call(t, "unary").Want(t, codes.OK, "")
		calls.Call(t, "unary").Want(t, codes.ResourceExhausted, "rate limit exceeded", "grpc-retry-pushback-ms", "-1")
		once := caddytest.NewGRPCClient(t, c.Site, false)
		once.Fields = []string{"case", "banned"}
		once.Call(t, "unary").Want(t, codes.OK, "")
		for range 2 { // the denial that begins the ban, and one by the ban
			once.Call(t, "unary").Want(t, codes.ResourceExhausted, "banned after too many requests")
		}
		for _, name := range []string{"never", "late"} {
			metric := fmt.Sprintf(`caddy_rate_limit_requests_total{outcome="denied",zone=%q}`, name)
			if n := caddytest.Metrics(t, c, metric)[metric]; n != 1 {
				t.Errorf("zone %s denied %v attempts, want 1, because the client must not retry", name, n)
			}
		}
	})
	c := caddytest.Start(t, grpcConfig(server, "zone api {\n fixed_window 1 1h\n}\nredis localhost:1\non_store_error deny\nproblem_json", "handle_errors {\n respond \"a page\"\n}\n", cert))
	for _, kind := range grpcKinds {
		caddytest.NewGRPCClient(t, c.Site, false).Call(t, kind).Want(t, codes.Unavailable, "rate limits are unavailable",
			"grpc-retry-pushback-ms", "1000", "retry-after", "1")
	}
}

// grpcZone is a zone of calls that name it.
func grpcZone(name, options string) string {
	return "zone " + name + " {\n match header Case " + name + "\n key {header.Case}{path}{scheme}\n " + options + "\n}\n"
}

// Only requests that a gRPC or gRPC-Web client sends get the response of a gRPC call.
func TestGRPCContentTypes(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, caddytest.Site("zone api {\n fixed_window 1 1h\n cost 2\n}\n"))
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
		r, err := c.Do(test.method, "http://"+c.Site+"/", "body", "Content-Type", test.contentType)
		errtest.None(t, err)
		if test.want == "" {
			r.Want(t, http.StatusTooManyRequests, "Content-Type", "", "Grpc-Status", "")
			continue
		}
		r.Want(t, http.StatusOK, "Content-Type", test.want, "Grpc-Status", "8", "Grpc-Message", "rate limit exceeded",
			"Grpc-Retry-Pushback-Ms", "-1", "RateLimit-Policy", `"api";q=1;w=3600`)
		if r.Text != "" || len(r.Trailer) > 0 {
			t.Errorf("%s: body %q, trailer %v", test.contentType, r.Text, r.Trailer)
		}
	}
}
