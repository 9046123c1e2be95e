package ratelimit

import (
	"encoding/json"
	"net"
	"reflect"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
)

// Caddy finds the modules by their IDs, and makes new ones each time.
func TestModules(t *testing.T) {
	for id, want := range map[string]caddy.Module{"http.handlers.rate_limit": new(Handler), "rate_limit": new(App)} {
		info, err := caddy.GetModule(id)
		if err != nil {
			t.Error(err)
			continue
		}
		one, other := info.New(), info.New()
		if info.ID != caddy.ModuleID(id) || one.CaddyModule().ID != info.ID || reflect.TypeOf(one) != reflect.TypeOf(want) || one == other {
			t.Errorf("module %s: ID %s, new modules %T and %T, the same: %v", id, info.ID, one, other, one == other)
		}
	}
}

// newContext returns the context of a configuration. end ends it.
func newContext(tb testing.TB) (ctx caddy.Context, end func()) {
	tb.Helper()
	caddytest.Provisioning.Lock()
	outer, err := caddy.ProvisionContext(&caddy.Config{Admin: &caddy.AdminConfig{Disabled: true}})
	caddytest.Provisioning.Unlock()
	errtest.None(tb, err)
	return caddy.NewContext(outer)
}

// provision loads a handler as Caddy does. end ends its configuration.
func provision(tb testing.TB, handler string) (h *Handler, end func()) {
	tb.Helper()
	ctx, end := newContext(tb)
	m, err := ctx.LoadModuleByID("http.handlers.rate_limit", json.RawMessage(handler))
	if err != nil {
		end()
		tb.Fatal(err)
	}
	return m.(*Handler), end
}

// Provision makes the zones ready and opens no connection. Each configuration refers to
// what it uses once, however many of its handlers do, and ends only its own references.
func TestProvisionAndCleanup(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	errtest.None(t, err)
	defer listener.Close()
	zones := `{"rate_limits":{"b":{"limits":[{"algorithm":"gcra","events":1,"window":"1s"}]},"a":{"max_events":1,"window":"1m"}}`
	inRedis := zones + `,"redis":{"address":["` + listener.Addr().String() + `"]}}`
	references := func() (redis, memory, standIn int) {
		storePool.Range(func(key, _ any) bool {
			n, _ := storePool.References(key)
			switch key := key.(type) {
			case redisstore.Options:
				redis += n
			case memoryKey:
				if key == ownMemory {
					memory += n
				} else {
					standIn += n
				}
			}
			return true
		})
		return redis, memory, standIn
	}
	want := func(redis, memory, standIn int) {
		t.Helper()
		if r, m, s := references(); r != redis || m != memory || s != standIn {
			t.Errorf("%d references to Redis, %d to the memory, %d to the stand-in; want %d, %d, %d", r, m, s, redis, memory, standIn)
		}
	}
	want(0, 0, 0)
	h, endFirst := provision(t, inRedis)
	if len(h.zones) != 2 || h.zones[0].Name != "a" || h.zones[1].Name != "b" || h.limiter.Store == nil {
		t.Errorf("zones %+v", h.zones)
	}
	want(1, 0, 1)
	_, endSecond := provision(t, inRedis)
	_, endThird := provision(t, zones+"}")
	want(2, 1, 2)
	endFirst()
	want(1, 1, 1)
	endSecond()
	want(0, 1, 0)
	endThird()
	want(0, 0, 0)
	own, err := net.Dial("tcp", listener.Addr().String())
	errtest.None(t, err)
	defer own.Close()
	first, err := listener.Accept()
	errtest.None(t, err)
	defer first.Close()
	if first.RemoteAddr().String() != own.LocalAddr().String() {
		t.Error("a connection was opened before that of the test")
	}
}

// Validate changes nothing: zones are registered before, and it can be called again.
func TestValidateChangesNothing(t *testing.T) {
	h := loadHandler(t, `"a":{"limits":[{"algorithm":"gcra","events":1,"window":"1s"}]}`)
	for range 2 {
		if zones := h.app.zonesByName["a"]; len(zones) != 1 || zones[0] != h.zones[0] || h.app.memoryZones != 1 {
			t.Errorf("registered are %v, and %d zones in memory", h.app.zonesByName, h.app.memoryZones)
		}
		errtest.Report(t, h.Validate())
	}
}

// A configuration gives back all that it acquires, whether it is accepted or not.
func TestNothingIsLeftAcquired(t *testing.T) {
	limit := `"limits":[{"algorithm":"gcra","events":1,"window":"1s"}]`
	for _, handlers := range []string{
		`{"handler":"rate_limit","rate_limits":{"a":{` + limit + `}}}`,
		`{"handler":"rate_limit","rate_limits":{"a":{` + limit + `}},"redis":{"address":["h:1"]}},{"handler":"rate_limit","rate_limits":{"b":{` + limit + `}},"redis":{"address":["h:2"]}}`,
		`{"handler":"rate_limit","rate_limits":{"a":{` + limit + `}}},{"handler":"rate_limit","rate_limits":{"a":{}}}`,
		`{"handler":"rate_limit","rate_limits":{"a":{` + limit + `}},"redis":{"address":["h:1"]}},{"handler":"no_such_handler"}`,
	} {
		_ = caddytest.Validate(handlerConfig(handlers))
		storePool.Range(func(key, _ any) bool {
			t.Errorf("%T is still acquired after %s", key, handlers)
			return true
		})
	}
}

// An option of a handler replaces the default whole, and one that isn't set is the default.
func TestInherit(t *testing.T) {
	samples := map[string][2]any{ // the handler's, and the default
		"Redis":          {&Redis{Address: []string{"own:1"}}, &Redis{Address: []string{"default:1"}, Password: "x"}},
		"Store":          {"memory", "redis"},
		"OnStoreError":   {"deny", "local 1/3"},
		"Headers":        {[]string{"draft"}, []string{"draft_06", "x_ratelimit"}},
		"ProblemJSON":    {new(false), new(true)},
		"Jitter":         {0.1, 0.2},
		"LogKey":         {new(false), new(true)},
		"DisableMetrics": {true, true},
		"SweepInterval":  {caddy.Duration(1), caddy.Duration(2)},
	}
	kind := reflect.TypeFor[Options]()
	for i := range kind.NumField() {
		name := kind.Field(i).Name
		if name == "Distributed" || name == "Storage" { // which have no effect
			continue
		}
		sample, there := samples[name]
		if !there {
			t.Errorf("no samples of option %s: add two", name)
			continue
		}
		field := func(o *Options) reflect.Value { return reflect.ValueOf(o).Elem().Field(i) }
		for _, own := range []bool{true, false} {
			var o, defaults Options
			field(&defaults).Set(reflect.ValueOf(sample[1]))
			want := sample[1]
			if own {
				field(&o).Set(reflect.ValueOf(sample[0]))
				want = sample[0]
			}
			o.inherit(defaults)
			if got := field(&o).Interface(); !reflect.DeepEqual(got, want) {
				t.Errorf("%s of its own: %v; it is %+v, want %+v", name, own, got, want)
			}
		}
	}
	var o Options
	o.inherit(Options{})
	if len(o.Headers) != 1 || o.Headers[0] != "draft" {
		t.Errorf("headers %q by default, want draft", o.Headers)
	}
	o = Options{Redis: new(Redis)}
	if o.inherit(Options{Store: "memory"}); o.Store != "" {
		t.Errorf("a handler with its own Redis keeps its budgets in %s", o.Store)
	}
}

// Settings without an effect, and a handler without zones, lead to warnings.
func TestWarnings(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, caddytest.Site("zone a {\n gcra 1 1h\n}"))
	for settings, want := range map[string]string{
		`"distributed":{}`: "distributed has no effect: write redis",
		`"storage":"x"`:    "storage has no effect: budgets are kept in memory",
		`"rate_limits":{}`: "no zones are configured",
	} {
		config := strings.Replace(handlerConfig(`{"handler":"rate_limit",`+settings+`}`), `"disabled":true`, `"listen":"{$ADMIN}"`, 1)
		if r := c.Load(t, config, "application/json"); r.StatusCode != 200 {
			t.Errorf("%s: %d %s", settings, r.StatusCode, r.Text)
		}
		c.WaitForLog(t, want)
	}
}
