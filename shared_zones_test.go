package ratelimit

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
)

// Errors of shared zones name the place, also in zones that no handler uses.
func TestSharedZonesInJSON(t *testing.T) {
	t.Parallel()
	const limit = `"limits":[{"algorithm":"gcra","events":1,"window":"1s"}]`
	const handler = `{"handler":"rate_limit"}`
	api := `"api":{` + limit + `}`
	for _, test := range []struct {
		shared, handlers string
		want             string // of the error; "" for none
	}{
		{api, handler, ""},
		{api, `{"handler":"rate_limit","rate_limits":{},"zones":[]}`, ""},
		{api + `,"b":{` + limit + `}`, `{"handler":"rate_limit","zones":["b","api"],"rate_limits":{"c":{` + limit + `}}}`, ""},
		{api, `{"handler":"rate_limit","rate_limits":{"api":{` + limit + `}}},` + handler, ""},
		{api + `,"b":{"key":"{http.rate_limit.api.remaining}",` + limit + `}`, handler, ""},
		{`"api":{"match":[{"path_regexp":{"name":"user","pattern":"^/users/([0-9]+)"}}],"key":"{http.regexp.user.1}",` + limit + `}`, handler + "," + handler, ""},

		{api, `{"handler":"rate_limit","zones":["api","apo"]}`, `rate_limit: zones[1]: there is no shared zone "apo" (did you mean api?): apps.rate_limit.rate_limits has api`},
		{"", `{"handler":"rate_limit","zones":["api"]}`, `zones[0]: there is no shared zone "api": write it into apps.rate_limit.rate_limits`},
		{api, `{"handler":"rate_limit","zones":["api","api"]}`, `the shared zone "api" is named twice`},
		{api, `{"handler":"rate_limit","zones":["api"],"rate_limits":{"api":{` + limit + `}}}`, `zone "api" has the name of a shared zone that this rate_limit uses, too`},
		{api, `{"handler":"rate_limit","zones":"api"}`, "zones must be a list, not a string"},
		{api, handler + `,{"handler":"rate_limit","redis":{"address":["127.0.0.1:1"]}}`, `shared zone "api": used with two stores, memory and redis 127.0.0.1:1`},
		{`"api":{"key":"{http.request.ip}",` + limit + `}`, handler, `shared zone "api": key: {http.request.ip} is always empty`},

		// Caddy finds these in a configuration without handlers, too.
		{`"api":{"limits":[{"algorithm":"gcra","evnts":1,"window":"1s"}]}`, "", `rate_limits.api.limits[0]: unknown field "evnts" (did you mean events?)`},
		{`"api":{"limits":[{"algorithm":"gcra","events":"1","window":"1s"}]}`, "", `rate_limits.api.limits[0].events must be a whole number, not "1": write 1`},
		{`"api":{"limit":[]}`, "", `rate_limits.api: unknown field "limit" (did you mean limits?)`},
		{`"api":null`, "", `shared zone "api": it is null`},
		{`"api":{}`, "", `shared zone "api": it has no limit`},
		{`"a{b":{` + limit + `}`, "", `shared zone "a{b": "a{b" is not a valid zone name`},
		{`"api":{"match":[{"path_regexp":{"pattern":"("}}],` + limit + `}`, "", `shared zone "api": match: `},
		{`"api":{"status":200,` + limit + `}`, "", `shared zone "api": status must be from 400 to 599, not 200`},
		{
			`"api":{"cost":"{http.request.header.C}","limits":[{"algorithm":"sliding_log","events":200000,"window":"1h"},{"algorithm":"sliding_log","events":200000,"window":"2h"},{"algorithm":"sliding_log","events":200000,"window":"3h"}]}`,
			"", `shared zone "api": the limits of all zones together take too long`,
		},
	} {
		config := strings.Replace(handlerConfig(test.handlers), `"apps":{`, `"apps":{"rate_limit":{"rate_limits":{`+test.shared+`}},`, 1)
		err := caddytest.Validate(config)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %q", config, err, test.want)
		}
	}
	for field, want := range map[string]string{
		`"zones":{}`:      `rate_limit: unknown field "zones" (did you mean rate_limits?)`,
		`"rate_limit":{}`: `rate_limit: unknown field "rate_limit" (did you mean rate_limits?)`,
	} {
		errtest.Says(t, caddytest.Validate(`{"admin":{"disabled":true},"apps":{"rate_limit":{`+field+`}}}`), want, field)
	}
}

// The handlers of a shared zone have its limits in common, as far as on_store_error is the same.
func TestSharedZonesAreCompiledOnce(t *testing.T) {
	ctx, end := newContext(t)
	defer end()
	load := func(id, config string) any {
		t.Helper()
		m, err := ctx.LoadModuleByID(id, json.RawMessage(config))
		errtest.None(t, err)
		return m
	}
	load("rate_limit", `{"rate_limits":{"api":{"limits":[{"algorithm":"gcra","events":30,"window":"1s"}]}},"redis":{"address":["127.0.0.1:1"]}}`)
	var zones []*liveZone
	for _, config := range []string{`{}`, `{"zones":["api"]}`, `{"on_store_error":"local 1/3"}`} {
		zones = append(zones, load("http.handlers.rate_limit", config).(*Handler).zones...)
	}
	if len(zones) != 3 {
		t.Fatalf("%d zones, want 3", len(zones))
	}
	if zones[0].LimitSets != zones[1].LimitSets || zones[0].KeyWarnings != zones[2].KeyWarnings {
		t.Error("two handlers have the limits of a shared zone twice")
	}
	for i, want := range []int64{30, 30, 10} {
		l := zones[i].DefaultSet.Budgets[0].Limits[0]
		granted := l.Limit
		if l.Share != nil {
			granted = l.Share
		}
		if granted.Burst != want {
			t.Errorf("handler %d grants %d events in an outage, want %d", i+1, granted.Burst, want)
		}
	}
}
