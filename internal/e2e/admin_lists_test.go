package e2e

import (
	"cmp"
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
)

// listedBans returns the bans in force of zone api, on all pages.
func listedBans(t *testing.T, c *caddytest.Caddy, limit int) (bans []adminapi.ListedBan) {
	t.Helper()
	for cursor := ""; ; {
		page := seen[adminapi.BanList](t, c, fmt.Sprintf("zones/api/bans?limit=%d&cursor=%s", limit, url.QueryEscape(cursor)))
		bans = append(bans, page.Bans...)
		if cursor = page.Next; cursor == "" {
			return bans
		}
	}
}

// listedOverrides returns the overrides of zone api, on all pages.
func listedOverrides(t *testing.T, c *caddytest.Caddy, limit int) (overrides []adminapi.ListedOverride) {
	t.Helper()
	for cursor := ""; ; {
		page := seen[adminapi.OverrideList](t, c, fmt.Sprintf("zones/api/overrides?limit=%d&cursor=%s", limit, url.QueryEscape(cursor)))
		overrides = append(overrides, page.Overrides...)
		if cursor = page.Next; cursor == "" {
			return overrides
		}
	}
}

// Operators see which keys are banned, for how long, and why.
func TestAdminListsBans(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		c := caddytest.Start(t, caddytest.Site("zone api {\n key {query.key} {query.user}\n fixed_window 1 1h\n ban 1h after 2\n}\n"+use))
		for range 3 {
			c.Get(t, "/?user=a%2Fb")
		}
		c.Get(t, "/?key=free")
		c.Operate(t, 204, "PUT", "zones/api/ban?key=by+hand", `{"duration":"30m"}`)
		bans := listedBans(t, c, 2)
		slices.SortFunc(bans, func(a, b adminapi.ListedBan) int {
			return cmp.Or(strings.Compare(*b.Key, *a.Key), strings.Compare(a.Alternative, b.Alternative))
		})
		if len(bans) != 3 {
			t.Fatalf("%+v", bans)
		}
		for i, want := range []adminapi.ListedBan{
			{ShownKey: keys.Shown{Text: "by hand"}.View(), Alternative: "{http.request.uri.query.key}", Origin: "operator", Ends: 1800},
			{ShownKey: keys.Shown{Text: "by hand"}.View(), Alternative: "{http.request.uri.query.user}", Origin: "operator", Ends: 1800},
			{ShownKey: keys.Shown{Text: "a/b"}.View(), Alternative: "{http.request.uri.query.user}", Origin: "denials", Ends: 3600},
		} {
			got := bans[i]
			wantSpan(t, "ends", got.Ends, want.Ends)
			got.Ends, got.Until = want.Ends, want.Until
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%+v, want %+v", got, want)
			}
		}
	})
}

// Operators see the overrides in the configuration, then those that were set at run time.
func TestAdminListsOverrides(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		c := caddytest.Start(t, caddytest.Site("zone api {\n key {query.key}\n fixed_window 1 1h\n runtime_overrides\n override vip unlimited\n override a/b {\n gcra 5 1s\n}\n override zz unlimited\n}\n"+use))
		c.Operate(t, 204, "PUT", "zones/api/override?key=a%2Fb", `{"limits":["token_bucket 7 1h", {"algorithm":"gcra","events":2,"window":"1m"}],"ttl":"1h"}`)
		c.Operate(t, 204, "PUT", "zones/api/override?key=", `{"limits":["unlimited"]}`)
		var all []adminapi.ListedOverride
		for _, limit := range []int{1, 2, 3, 100} {
			all = listedOverrides(t, c, limit)
			slices.SortFunc(all[3:], func(a, b adminapi.ListedOverride) int { return strings.Compare(*a.Key, *b.Key) })
			if len(all) != 5 {
				t.Fatalf("limit %d: %+v", limit, all)
			}
			if until := time.Until(all[4].Until); until > time.Hour || until < 59*time.Minute {
				t.Errorf("until %v", all[4].Until)
			}
			for i, want := range []adminapi.ListedOverride{
				{ShownKey: keys.Shown{Text: "a/b"}.View(), Override: adminapi.Override{From: "config", Limits: []string{"gcra 5 1s"}}},
				{ShownKey: keys.Shown{Text: "vip"}.View(), Override: adminapi.Override{From: "config", Limits: []string{"unlimited"}}},
				{ShownKey: keys.Shown{Text: "zz"}.View(), Override: adminapi.Override{From: "config", Limits: []string{"unlimited"}}},
				{ShownKey: keys.Shown{Text: ""}.View(), Override: adminapi.Override{From: "runtime", Limits: []string{"unlimited"}}},
				{ShownKey: keys.Shown{Text: "a/b"}.View(), Override: adminapi.Override{From: "runtime", Limits: []string{"token_bucket 7 1h", "gcra 2 1m"}, Until: all[4].Until}},
			} {
				if !reflect.DeepEqual(all[i], want) {
					t.Errorf("limit %d: %+v, want %+v", limit, all[i], want)
				}
			}
		}
	})
}

// Memory keeps the beginning of a long key, so lists have it.
func TestAdminListsLongKeys(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, caddytest.Site("zone api {\n key {query.key}\n fixed_window 1 1h\n runtime_overrides\n ban 1h after 1\n}\n"))
	for _, length := range []int{200, 300, 3000} {
		key := strings.Repeat("x", length)
		for _, status := range []int{200, 429} {
			c.Get(t, "/?key="+key).Want(t, status)
		}
		want := keys.NewShown("", key, keys.MaxShown).View()
		if bans := listedBans(t, c, 10); len(bans) != 1 || !reflect.DeepEqual(bans[0].ShownKey, want) {
			t.Errorf("%d bytes: %+v", length, bans)
		}
		c.Operate(t, 204, "DELETE", "zones/api/ban?key="+key, "")
		c.Operate(t, 204, "PUT", "zones/api/override?key="+key, unlimitedOverride)
		c.Get(t, "/?key="+key).Want(t, 200)
		if overrides := listedOverrides(t, c, 10); len(overrides) != 1 || !reflect.DeepEqual(overrides[0].ShownKey, want) {
			t.Errorf("%d bytes: %+v", length, overrides)
		}
		c.Operate(t, 204, "DELETE", "zones/api/override?key="+key, "")
	}
}

// With hash_keys nobody sees a key. The hash is the one in the log and in Redis.
func TestAdminListsHashedKeys(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := caddytest.Start(t, caddytest.Site("zone api {\n key {query.key}\n fixed_window 1 1h\n runtime_overrides\n override vip unlimited\n ban 1h\n}\nredis "+server.Addr+" {\n timeout 30s\n hash_keys {$HASH_SECRET:a-secret-of-32-bytes-for-this-test}\n}\n"))
	keys := []string{"alice", strings.Repeat("long", 50), strings.Repeat("long", 500), ""}
	want := []string{}
	for _, key := range keys {
		c.Operate(t, 204, "PUT", "zones/api/ban?key="+key, "")
		c.Operate(t, 204, "PUT", "zones/api/override?key="+key, unlimitedOverride)
		c.Get(t, "/?key="+key).Want(t, 429)
		want = append(want, redisstore.HashedKey("a-secret-of-32-bytes-for-this-test", key))
	}
	slices.Sort(want)
	var bans, overrides []string
	for _, b := range listedBans(t, c, 10) {
		if b.Key != nil {
			t.Errorf("%+v", b)
		}
		bans = append(bans, b.HashedKey)
	}
	for _, o := range listedOverrides(t, c, 10)[1:] {
		if o.Key != nil {
			t.Errorf("%+v", o)
		}
		overrides = append(overrides, o.HashedKey)
	}
	slices.Sort(bans)
	slices.Sort(overrides)
	var denied []string
	for _, d := range seen[[]adminapi.DeniedKey](t, c, "zones/api/top") {
		denied = append(denied, d.HashedKey)
	}
	if slices.Sort(denied); !slices.Equal(denied, want) {
		t.Errorf("%q were denied, want %q", denied, want)
	}
	if !slices.Equal(bans, want) || !slices.Equal(overrides, want) {
		t.Errorf("%q and %q, want %q", bans, overrides, want)
	}
}

// A ban and an override that one instance sets are listed by another, and hold there.
func testAdminListsOfAnotherInstance(t *testing.T, use string) {
	config := caddytest.Site("zone api {\n key {query.key}\n fixed_window 5 1h\n runtime_overrides\n ban 1h\n}\n" + use)
	a, b := caddytest.Start(t, config), caddytest.Start(t, config)
	for i := range 30 { // on all nodes
		key := fmt.Sprint("/?key=k", i)
		b.Get(t, key).Want(t, 200, "RateLimit", `"api";r=4;t=3600`)
		a.Operate(t, 204, "PUT", fmt.Sprint("zones/api/ban?key=k", i), "")
		a.Operate(t, 204, "PUT", fmt.Sprint("zones/api/override?key=free", i), unlimitedOverride)
	}
	if bans, overrides := listedBans(t, b, 7), listedOverrides(t, b, 7); len(bans) != 30 || len(overrides) != 30 {
		t.Fatalf("%+v %+v", bans, overrides)
	}
	for i := range 30 {
		b.Get(t, fmt.Sprint("/?key=k", i)).Want(t, 429)
		b.Get(t, fmt.Sprint("/?key=free", i)).Want(t, 200, "RateLimit", "")
	}
	b.Operate(t, 204, "DELETE", "zones/api/ban?key=k7", "")
	if bans := listedBans(t, a, 100); len(bans) != 29 {
		t.Errorf("%d bans, want 29", len(bans))
	}
}

// A list comes from the store that decides, so there is no list while this store fails.
func TestAdminListsDuringAnOutage(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := caddytest.Start(t, caddytest.Site("zone api {\n key {query.key}\n fixed_window 1 1h\n runtime_overrides\n ban 1h\n}\nredis "+server.Addr))
	c.Operate(t, 204, "PUT", "zones/api/ban?key=k", "")
	if bans := listedBans(t, c, 1); len(bans) != 1 {
		t.Fatalf("%+v", bans)
	}
	server.Kill(t)
	for _, list := range []string{"bans", "overrides"} {
		for range 10 {
			if r := c.Operate(t, 503, "GET", "zones/api/"+list, ""); !strings.Contains(r.Text, "can't be listed") {
				t.Errorf("%s", r.Text)
			}
		}
	}
}

// A key with any bytes can be written behind ?key=.
func TestAdminKeyParameter(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, caddytest.Site("zone \"a b*[x]?\" {\n key {query.key}\n fixed_window 5 1h\n runtime_overrides\n ban 1h\n}\n"))
	zone := "zones/a%20b*%5Bx%5D%3F/"
	for _, key := range []string{"", "/", ".", "..", "a/b", "{}", "%2F", "a b+c&d=e", "\xff\x00\r\n", "é", strings.Repeat("x/", 5000)} {
		path, query := "/?key="+url.QueryEscape(key), "?key="+url.QueryEscape(key)
		c.Operate(t, 204, "PUT", zone+"override"+query, `{"limits":["gcra 3 1h"]}`)
		if v := seen[adminapi.Key](t, c, zone+"keys"+query); v.Key != url.PathEscape(key) || v.Override == nil {
			t.Errorf("%.20q: %+v", key, v)
		}
		if len(key) < 1000 { // Caddy's test client has no longer path
			c.Get(t, path).Want(t, 200, "RateLimit-Policy", `"a b*[x]?";q=3;w=3600`)
		}
		c.Operate(t, 204, "DELETE", zone+"override"+query, "")
		c.Operate(t, 204, "PUT", zone+"ban"+query, "")
		list := seen[adminapi.BanList](t, c, zone+"bans").Bans
		if len(list) != 1 || !strings.HasPrefix(url.PathEscape(key), *list[0].Key) || list[0].Cut != (len(key) > 256) {
			t.Errorf("%.20q: %+v", key, list)
		}
		if v := seen[adminapi.Key](t, c, zone+"keys"+query); !v.Budgets[0].Ban.Banned {
			t.Errorf("%.20q: %+v", key, v)
		}
		c.Operate(t, 204, "DELETE", zone+"ban"+query, "")
		c.Operate(t, 204, "DELETE", zone+"keys"+query, "")
		if list := seen[adminapi.BanList](t, c, zone+"bans").Bans; len(list) != 0 {
			t.Errorf("%.20q: %+v", key, list)
		}
	}
	if zones := seen[[]adminapi.Zone](t, c, strings.TrimSuffix(zone, "/")); len(zones) != 1 || zones[0].Name != "a b*[x]?" {
		t.Errorf("%+v", zones)
	}
}
