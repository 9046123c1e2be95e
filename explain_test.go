package ratelimit

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/admin"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// hangingStore is a store that never decides.
type hangingStore struct{ store.Store }

func (hangingStore) Take(ctx context.Context, _ []store.ZoneRequest) (bool, error) {
	<-ctx.Done()
	return false, ctx.Err()
}

// An explanation ends after 10 s, as docs/admin.md says, also if the store never decides. It is then an error, not
// a verdict about a part of the way.
func TestExplainTakesTooLong(t *testing.T) {
	app := loadExplained(t)
	h := app.zonesByName["api"][0].handler
	h.Store = hangingStore{h.Store}
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		_, err := (&admin.OperatorRequest{Ctx: t.Context(), Configuration: app.forAdmin(), Body: explainedBody}).Explain()
		var answer caddy.APIError
		if took := time.Since(start); !errors.As(err, &answer) || answer.HTTPStatus != http.StatusGatewayTimeout || took != 10*time.Second {
			t.Errorf("%v after %v, want status 504 after 10s", err, took)
		}
	})
}

// A zone whose factor is 0 concerns only the requests that it matches, as any other zone.
func TestExplainFactor0(t *testing.T) {
	loadExplained(t)
	for query, want := range map[string]string{"": "no_match", "?off=1": "unlimited", "?off=1&free=1": "exempt", "?free=1": "no_match"} {
		x, err := (&admin.OperatorRequest{Ctx: t.Context(), Body: strings.Replace(explainedBody, "/x", "/x"+query, 1)}).Explain()
		errtest.None(t, err)
		if z := x.(*adminapi.Explanation).Handlers[0].Zones[1]; z.Zone != "off" || z.Applies != want {
			t.Errorf("/x%s: zone %s applies: %s, want %s", query, z.Zone, z.Applies, want)
		}
	}
}

// An explanation gives back the memory of the body, and of its values.
func TestExplainGivesMemoryBack(t *testing.T) {
	loadExplained(t)
	describes := strings.Replace(explainedBody, "{", `{"method":"POST","body":"{\"user\":\"alice\"}",`, 1)
	describes = strings.Replace(describes, `"X-Key":"k"`, `"Content-Type":"application/json"`, 1)
	x, err := (&admin.OperatorRequest{Ctx: t.Context(), Body: describes}).Explain()
	errtest.None(t, err)
	if z := x.(*adminapi.Explanation).Handlers[0].Zones[0]; *z.Key.Key != "alice" {
		t.Errorf("the key is %q", *z.Key.Key)
	}
	if limiter.ProcessBodyMemory.Bodies.Used() != 0 || limiter.ProcessBodyMemory.Values.Used() != 0 {
		t.Errorf("%d and %d bytes taken", limiter.ProcessBodyMemory.Bodies.Used(), limiter.ProcessBodyMemory.Values.Used())
	}
}

// explainedBody describes a request to the configuration of loadExplained.
const explainedBody = `{"url":"http://example.com:0/x","headers":{"X-Key":"k"}}`

// loadExplained loads a configuration with a zone in memory, and another one whose factor is 0. The log of Caddy is
// discarded.
func loadExplained(tb testing.TB) *App {
	tb.Helper()
	config := `{"admin":{"disabled":true},"logging":{"logs":{"default":{"writer":{"output":"discard"}}}},"apps":{"http":{"servers":{"a":{
		"listen":["127.0.0.1:0"],"routes":[{"match":[{"path":["/x"]}],"handle":[{"handler":"subroute","routes":[{"handle":[
		{"handler":"rate_limit","rate_limits":{"api":{"runtime_overrides":true,"key":"{http.request.header.X-Key}{http.rate_limit.request.json.user}","limits":[{"algorithm":"gcra","events":5,"window":"1h"}]},
			"off":{"match":[{"query":{"off":["1"]}}],"exempt":[{"query":{"free":["1"]}}],"factor":0,"limits":[{"algorithm":"gcra","events":5,"window":"1h"}]}}}]}]}]}]}}}}}`
	return loadApp(tb, config)
}
