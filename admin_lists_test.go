package ratelimit

import (
	"cmp"
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
)

// listedBans returns the bans in force of zone api, on all pages.
func listedBans(t *testing.T, c *caddyProcess, limit int) (bans []adminapi.ListedBan) {
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
func listedOverrides(t *testing.T, c *caddyProcess, limit int) (overrides []adminapi.ListedOverride) {
	t.Helper()
	for cursor := ""; ; {
		page := seen[adminapi.OverrideList](t, c, fmt.Sprintf("zones/api/overrides?limit=%d&cursor=%s", limit, url.QueryEscape(cursor)))
		overrides = append(overrides, page.Overrides...)
		if cursor = page.Next; cursor == "" {
			return overrides
		}
	}
}

// Operators see who is banned, for how long, and who began the ban.
func TestAdminListsBans(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, use string) {
		c := startCaddy(t, site("zone api {\n key {query.key} {query.user}\n fixed_window 1 1h\n ban 1h after 2\n}\n"+use))
		for range 3 {
			c.get(t, "/?user=a%2Fb")
		}
		c.get(t, "/?key=free")
		c.operate(t, 204, "PUT", "zones/api/ban?key=by+hand", `{"duration":"30m"}`)
		bans := listedBans(t, c, 2)
		slices.SortFunc(bans, func(a, b adminapi.ListedBan) int {
			return cmp.Or(strings.Compare(*b.Key, *a.Key), a.Alternative-b.Alternative)
		})
		if len(bans) != 3 {
			t.Fatalf("%+v", bans)
		}
		for i, want := range []adminapi.ListedBan{
			{ShownKey: shownKey{text: "by hand"}.view(), Alternative: 1, Origin: "operator", Ends: 1800},
			{ShownKey: shownKey{text: "by hand"}.view(), Alternative: 2, Origin: "operator", Ends: 1800},
			{ShownKey: shownKey{text: "a/b"}.view(), Alternative: 2, Origin: "denials", Ends: 3600},
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
