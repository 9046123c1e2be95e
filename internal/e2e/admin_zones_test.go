package e2e

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// Operators see the zones.
func TestAdminZones(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	password := func(p string) {
		errtest.None(t, server.Client.ConfigSet(t.Context(), "requirepass", p).Err())
	}
	password("another")
	c := caddytest.Start(t, strings.Replace(caddytest.Site(`zone a {
		key {query.user} {query.key}
		ipv6_prefix 64
		token_bucket 10 1s 20
		fixed_window 100 1h {
			align clock
		}
		plan {query.plan} {
			pro {
				gcra 5 1s
			}
			free unlimited
		}
		override "a/b" {
			gcra 7 1s
		}
		override staff unlimited
		runtime_overrides
		concurrency 3
		ban 1h after 5 max 1d
		enforce 25
	}
	zone b {
		mode nary
		sliding_log 2 1h
		shadow
	}
	redis redis://:hush-hush@`+server.Addr), "respond ok", "respond ok\nrate_limit {\n zone c {\n gcra 100 1h 400\n factor 2\n }\n store memory\n disable_metrics\n}", 1))
	c.Get(t, "/ready")
	quarter, one := 25.0, int64(1) // key of zone c
	counts := func(more map[string]int64) map[string]int64 {
		all := map[string]int64{
			"allowed": 0, "bad_body": 0, "banned": 0, "delayed": 0, "denied": 0, "error": 0, "exempt": 0, "overridden": 0, "shadow_denied": 0,
			"denied_elsewhere": 0,
		}
		for name, n := range more {
			all[name] = n
		}
		return all
	}
	identity := fmt.Sprintf("redis %s db 0 key_prefix %q", server.Addr, "caddy_rl")
	a := adminapi.Zone{
		Name: "a", Key: adminapi.Alternatives{"{http.request.uri.query.user}", "{http.request.uri.query.key}"}, IPv6Prefix: 64,
		Limits:   []string{"token_bucket 10 1s 20", "fixed_window 100 1h aligned to the clock"},
		Plan:     &adminapi.Plan{By: "{http.request.uri.query.plan}", Values: map[string][]string{"pro": {"gcra 5 1s"}, "free": {"unlimited"}}},
		Override: map[string][]string{"a%2Fb": {"gcra 7 1s"}, "staff": {"unlimited"}}, Runtime: true,
		Concurrency: 3, Mode: "binary", Ban: "1h0m0s after 5 max 24h0m0s", Enforce: &quarter,
		Store: identity, OnStoreError: "local", Requests: counts(nil),
	}
	b := adminapi.Zone{Name: "b", Key: adminapi.Alternatives{""}, Limits: []string{"sliding_log 2 1h"}, Mode: "nary", Shadow: true, Store: identity, OnStoreError: "local", Requests: counts(nil)}
	m := adminapi.Zone{Name: "c", Key: adminapi.Alternatives{""}, Limits: []string{"gcra 100 1h 200"}, Mode: "binary", Factor: "2", Store: "memory", Keys: &one, MaxKeys: 1_000_000}
	want := func(want ...adminapi.Zone) {
		t.Helper()
		wanted, _ := json.Marshal(want)
		var found []byte
		caddytest.EventuallySees(t, fmt.Sprintf("the zones are\n%s", wanted), func() string {
			found, _ = json.Marshal(seen[[]adminapi.Zone](t, c, "zones"))
			return string(found)
		}, func(found string) bool { return found == string(wanted) })
	}
	// As long as the password is another, the Redis fails.
	a.FailingNodes, b.FailingNodes = 1, 1
	want(a, b, m)
	if body := c.Operate(t, 200, "GET", "zones", "").Text; strings.Contains(body, "hush") {
		t.Errorf("a secret is there: %s", body)
	}
	if v := seen[adminapi.Key](t, c, "zones/a/keys?key=k"); v.Store != "local" {
		t.Errorf("%+v, want what the local budgets hold", v)
	}
	for _, request := range []string{"DELETE keys", "PUT override", "DELETE override", "PUT ban", "DELETE ban"} {
		method, what, _ := strings.Cut(request, " ")
		r := c.Operate(t, 503, method, "zones/a/"+what+"?key=k", map[bool]string{true: `{"unlimited":true}`}[request == "PUT override"])
		if !strings.Contains(r.Text, `the store of zone \"a\" fails (open: `) || !strings.Contains(r.Text, "): nothing has changed; make the change again") || strings.Contains(r.Text, "hush") {
			t.Error(r.Text)
		}
	}
	password("hush-hush")
	a.FailingNodes, b.FailingNodes = 0, 0
	want(a, b, m)
	for range 3 {
		c.Get(t, "/?user=staff").Want(t, 200)
	}
	a.Requests, b.Requests = counts(map[string]int64{"overridden": 3}), counts(map[string]int64{"allowed": 2, "shadow_denied": 1})
	want(a, b, m)
	if strings.Contains(c.Metrics(t), `zone="c"`) {
		t.Error("a zone is in the metrics that was only looked at")
	}
}

func TestAdminTop(t *testing.T) {
	t.Parallel()
	const more = "zone shadow {\n key {query.key}\n fixed_window 1 1h\n shadow\n}\n"
	config := caddytest.Site("zone api {\n key {query.key}\n fixed_window 1 1h\n}\n" + more)
	c := caddytest.Start(t, config)
	if body := c.Operate(t, 200, "GET", "zones/api/top", "").Text; body != "[]\n" {
		t.Errorf("%q", body)
	}
	long := strings.Repeat("y", 300)
	for key, n := range map[string]int{"a": 1, "b c": 5, "": 3, long + "1": 9, long + "2": 2} {
		for range n {
			c.Get(t, "/?key="+url.QueryEscape(key))
		}
	}
	began := time.Now().Add(-time.Hour)
	top := func(zone string) (list []string) {
		t.Helper()
		var keys []adminapi.DeniedKey
		errtest.None(t, json.Unmarshal([]byte(c.Operate(t, 200, "GET", "zones/"+zone+"/top", "").Text), &keys))
		for _, k := range keys {
			if k.First.Before(began) || k.Last.Before(k.First) || time.Now().Before(k.Last) || k.Limit != "fixed_window 1 1h" {
				t.Errorf("%+v", k)
			}
			list = append(list, fmt.Sprintf("%.5s %v %d of %d, %v", *k.Key, k.Cut, k.Denied, k.AtMost, k.Shadow))
		}
		return list
	}
	want := []string{"yyyyy true 8 of 8, false", "b%20c false 4 of 4, false", " false 2 of 2, false", "yyyyy true 1 of 1, false"}
	if got := top("api"); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	for i := range want {
		want[i] = strings.Replace(want[i], ", false", ", true", 1)
	}
	if got := top("shadow"); !slices.Equal(got, want) {
		t.Errorf("of a shadow: %q", got)
	}
	// Two handlers are one zone, and a reload forgets nothing.
	c.Reload(t, strings.Replace(config, "respond ok", "rate_limit {\n zone api {\n key {query.key}\n fixed_window 1 1h\n status 418\n}\n}\nrespond ok", 1))
	c.Get(t, "/?key=a").Want(t, 429)
	c.Get(t, "/ready?key=a").Want(t, 418)
	if got := top("api"); !slices.Contains(got, "a false 2 of 2, false") || !slices.Contains(got, "b%20c false 4 of 4, false") {
		t.Errorf("after a reload: %q", got)
	}
	for _, zone := range []string{"api", "shadow"} {
		var key adminapi.Key
		errtest.None(t, json.Unmarshal([]byte(c.Operate(t, 200, "GET", "zones/"+zone+"/keys?key=b%20c", "").Text), &key))
		if d := key.Denials; len(d) != 1 || *d[0].Key != "b%20c" || d[0].Denied != 4 || d[0].Shadow != (zone == "shadow") {
			t.Errorf("%s: %+v", zone, d)
		}
	}
}

// The status has the stores that the configuration uses, and no others.
func TestStatus(t *testing.T) {
	t.Parallel()
	config := "zone api {\n key {query.key}\n gcra 1 1h\n}\n"
	c := caddytest.Start(t, strings.Replace(caddytest.Site(config), "admin {$ADMIN}", "admin {$ADMIN}\n\trate_limit {\n\tmemory {\n\tmax_keys 2\n\t}\n\t}", 1))
	for key := range 5 {
		c.Get(t, fmt.Sprint("/?key=", key))
	}
	v := c.Status(t)
	if v.Memory == nil || *v.Memory != (adminapi.Memory{Keys: 2, MaxKeys: 2, Overflowed: 3}) || v.Redis != nil {
		t.Errorf("in memory: %+v %+v", v.Memory, v.Redis)
	}
	if v.Version != "(devel)" && !strings.HasPrefix(v.Version, "v") {
		t.Errorf("version %q", v.Version)
	}
	if now := time.Now(); v.Started.Before(now.Add(-24*time.Hour)) || v.Started.After(now) {
		t.Errorf("started %v, and it is %v", v.Started, now)
	}
	server := redistest.Start(t)
	c.Reload(t, caddytest.Site(config+"redis redis://:SECRET@"+server.Addr+" {\n timeout 30s\n}\non_store_error deny"))
	if v := c.Status(t); v.Memory != nil || len(v.Redis) != 1 || v.Redis[0].Address != server.Addr {
		t.Errorf("in Redis: %+v %+v", v.Memory, v.Redis)
	}
	if later := c.Status(t); !later.Started.Equal(v.Started) {
		t.Errorf("a reload moves the start from %v to %v", v.Started, later.Started)
	}
	r, err := c.Do("POST", "http://"+c.Admin+"/rate_limit/status", "")
	if err != nil || r.StatusCode != 405 || r.Field("Allow") != "GET" {
		t.Errorf("POST: %v %d, Allow: %s", err, r.StatusCode, r.Field("Allow"))
	}
}
