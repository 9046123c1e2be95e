package ratelimit

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/denials"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/telemetry"
)

// loadApp loads a configuration in JSON, which is in force until the test ends or loads another one.
func loadApp(tb testing.TB, config string) *App {
	tb.Helper()
	errtest.None(tb, caddy.Load([]byte(config), true))
	tb.Cleanup(func() { _ = caddy.Stop() })
	app, err := activeApp()
	errtest.None(tb, err)
	return app
}

// max_keys bounds each of the two stores in memory, so their keys are counted apart.
func TestStatusCountsKeysByStore(t *testing.T) {
	const zone = `{"key":"{http.request.header.X-Key}","limits":[{"algorithm":"gcra","events":5,"window":"1h"}]}`
	config := `{"admin":{"disabled":true},"logging":{"logs":{"default":{"writer":{"output":"discard"}}}},"apps":{
		"rate_limit":{"memory":{"max_keys":10}},
		"http":{"servers":{"s":{"listen":["unix/` + t.TempDir() + `/s"],"routes":[{"handle":[
			{"handler":"rate_limit","rate_limits":{"a":` + zone + `}},
			{"handler":"rate_limit","rate_limits":{"b":` + zone + `},"store":"redis","redis":{"address":["127.0.0.1:1"],"timeout":"10s"}}]}]}}}}}`
	app := loadApp(t, config)
	next := caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error { return nil })
	for zone, keys := range map[string]int{"a": 2, "b": 3} { // without the Redis, local budgets decide for b
		for n := range keys {
			r, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
			r.Header.Set("X-Key", fmt.Sprint("k", n))
			_ = app.zonesByName[zone][0].handler.Serve(w, caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, nil), next)
		}
	}
	got, want := [2]adminapi.Memory{*app.forAdmin().Memory(), *app.forAdmin().Local()}, [2]adminapi.Memory{{Keys: 2, MaxKeys: 10}, {Keys: 3, MaxKeys: 10}}
	if both := metricSources.MemoryKeys(); got != want || both != 5 {
		t.Errorf("in memory, and local budgets: %+v, want %+v; keys of both in the metric: %v", got, want, both)
	}
}

// A reload keeps the denied keys of its zones, as it keeps budgets. Keys are shown in one form only: before hash_keys
// came or went, they had another one. A zone that leaves the configuration is forgotten.
func TestReloadKeepsTopKeys(t *testing.T) {
	load := func(zone, options string) *App {
		t.Helper()
		config := fmt.Sprintf(`{"admin":{"disabled":true},"logging":{"logs":{"default":{"writer":{"output":"discard"}}}},"apps":{
			"rate_limit":{"store":"redis","redis":{"address":["127.0.0.1:1"]%s},"rate_limits":{%q:{"key":"{http.request.header.X-Key}","limits":[{"algorithm":"gcra","events":5,"window":"1h"}]}}},
			"http":{"servers":{"s":{"listen":["unix/%s/s"],"routes":[{"handle":[{"handler":"rate_limit"},{"handler":"rate_limit"}]}]}}}}}`, options, zone, t.TempDir())
		return loadApp(t, config)
	}
	load("api", "").zonesByName["api"][0].DeniedKeys.Add(time.Now(), "", "flood", false, denials.Cause{})
	for _, step := range []struct {
		zone, options string
		keys          int
	}{{"api", "", 1}, {"api", `,"hash_keys":"pepper"`, 0}, {"api", "", 0}, {"other", "", 0}, {"api", "", 0}} {
		zones := load(step.zone, step.options).zonesByName[step.zone]
		for _, z := range zones {
			if got := z.DeniedKeys.List(time.Now()); len(got) != step.keys {
				t.Errorf("%+v: the keys are %+v", step, got)
			}
		}
		zones[1].DeniedKeys.Add(time.Now(), step.options, "flood", false, denials.Cause{})
		if got := zones[0].DeniedKeys.List(time.Now()); len(got) != 1 {
			t.Errorf("%+v: the two handlers have different keys: %+v", step, got)
		}
		if step.keys == 1 { // twice
			zones[0].DeniedKeys.Add(time.Now(), step.options, "flood", false, denials.Cause{})
		}
	}
}

// The number of metrics stays the same, however many keys there are.
func TestMetricCardinality(t *testing.T) {
	keys := seedtest.Cases(t, 20_000)
	app := loadApp(t, `{"admin":{"disabled":true},"apps":{
		"rate_limit":{"memory":{"max_keys":10000000},"rate_limits":{
			"all":{"key":"{http.request.header.X-Key}","limits":[{"algorithm":"gcra","events":1,"window":"100h"}],
				"ban":{"duration":"1h"},"concurrency":3,"delay":{"max":"1ms"},"override":{"k1":{"unlimited":true}},"runtime_overrides":true}}},
		"http":{"servers":{"s":{"listen":["unix/`+t.TempDir()+`/s"],"routes":[{"handle":[{"handler":"rate_limit"}]}]}}}}}`)
	h := app.zonesByName["all"][0].handler
	next := caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error { return nil })
	ask := func(first, last int) {
		r, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
		for n := first; n < last; n++ {
			r.Header.Set("X-Key", fmt.Sprint("k", n))
			for range 1 + n%5/4 { // every fifth key is denied, and then banned
				clear(w.Header())
				_ = h.Serve(w, caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, nil), next)
			}
		}
	}
	gauges := make(map[string]float64) // of the zone
	series := func() (names []string) {
		registry := prometheus.NewPedanticRegistry()
		errtest.None(t, telemetry.Register(registry, metricSources))
		families, err := registry.Gather()
		errtest.None(t, err)
		for _, family := range families {
			for _, m := range family.Metric {
				names = append(names, fmt.Sprint(family.GetName(), m.GetLabel()))
				if labels := m.GetLabel(); len(labels) == 1 && labels[0].GetValue() == "all" {
					gauges[family.GetName()] = m.GetGauge().GetValue()
				}
			}
		}
		return names
	}
	ask(0, 10)
	before := series()
	var both sync.WaitGroup
	for half := range 2 {
		both.Go(func() { ask(10+half*keys/2, 10+(half+1)*keys/2) })
	}
	both.Wait()
	if after := series(); !slices.Equal(before, after) || len(before) < 20 {
		t.Errorf("%d metrics became %d: %q and then %q", len(before), len(after), before, after)
	}
	if n, ok := gauges["caddy_rate_limit_in_flight"]; n != 0 || !ok {
		t.Errorf("%v requests are in flight", n)
	}
}
