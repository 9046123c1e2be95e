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
	if v := seenKey(t, b, "free7"); v.Override == nil || v.Override.From != "runtime" { // nobody has asked b for it yet
		t.Errorf("%+v, want the override that the other instance set", v)
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
