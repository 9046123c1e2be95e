package ratelimit

import (
	"context"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/admin"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
)

// explainedBody describes a request to the configuration of loadExplained.
const explainedBody = `{"url":"http://example.com:0/x","headers":{"X-Key":"k"}}`

// loadExplained loads a configuration with a zone in memory, and another one whose factor is 0. The log of Caddy is
// discarded.
func loadExplained(tb testing.TB) {
	tb.Helper()
	config := `{"admin":{"disabled":true},"logging":{"logs":{"default":{"writer":{"output":"discard"}}}},"apps":{"http":{"servers":{"a":{
		"listen":["127.0.0.1:0"],"routes":[{"match":[{"path":["/x"]}],"handle":[{"handler":"subroute","routes":[{"handle":[
		{"handler":"rate_limit","rate_limits":{"api":{"runtime_overrides":true,"key":"{http.request.header.X-Key}{http.rate_limit.request.json.user}","limits":[{"algorithm":"gcra","events":5,"window":"1h"}]},
			"off":{"match":[{"query":{"off":["1"]}}],"exempt":[{"query":{"free":["1"]}}],"factor":0,"limits":[{"algorithm":"gcra","events":5,"window":"1h"}]}}}]}]}]}]}}}}}`
	if err := caddy.Load([]byte(config), true); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = caddy.Stop() })
}

// BenchmarkExplain measures an explanation of a request that meets one zone in memory.
func BenchmarkExplain(b *testing.B) {
	loadExplained(b)
	a := &admin.Request{Ctx: context.Background(), Body: explainedBody}
	b.ReportAllocs()
	for b.Loop() {
		x, err := a.Explain()
		if err != nil || x.(*adminapi.Explanation).Verdict != "allowed" {
			b.Fatal(x, err)
		}
	}
}
