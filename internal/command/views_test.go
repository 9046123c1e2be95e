package command

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminclient"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/goldentest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/terminal"
)

var now = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// from returns a body of an instance, or of a zone of an instance, such as a:1/api.
func from[T any](of string, body T) decoded[T] {
	address, zone, _ := strings.Cut(of, "/")
	return decoded[T]{target{from: adminclient.Instance(address), zone: zone}, body}
}

func TestStatusView(t *testing.T) {
	zones := func(allowed, denied, failed int64) []adminapi.Zone {
		return []adminapi.Zone{
			{
				Name: "api", Limits: []string{"token_bucket 10 1h 50", "fixed_window 10000 24h"}, Concurrency: 20, Store: "memory",
				Requests: map[string]int64{"allowed": allowed, "delayed": 2, "denied": denied, "banned": 1, "shadow_denied": 0, "error": failed},
			},
			{
				Name: "a zone\x1b[31m", Limits: []string{"gcra 5 1m"}, Plan: &adminapi.Plan{Values: map[string][]string{"free": nil, "pro": nil}}, Shadow: true,
				Enforce: new(25.0), Store: "redis.internal:6379", FailingNodes: 1, OnStoreError: "local 0.5",
				Requests: map[string]int64{"allowed": 4, "shadow_denied": 3},
			},
		}
	}
	memory := adminapi.Status{Version: "v1.2.3", Started: now.Add(-time.Hour), Memory: &adminapi.Memory{Keys: 1234, MaxKeys: 1_000_000}}
	history := func(requests ...int64) adminapi.History {
		return adminapi.History{Ages: []float64{3, 2, 0.1}, Zones: map[string]map[string][]int64{"api": {"allowed": requests}}}
	}
	one := []decoded[statusBody]{from("localhost:2019", statusBody{memory, zones(225, 13, 0), history(1, 100, 225)})}
	goldentest.Want(t, "testdata/status.txt", statusView(terminal.Style{}, now, one))

	failing := adminapi.Status{
		Started: now.Add(-50 * time.Hour),
		Memory:  &adminapi.Memory{Keys: 950_000, MaxKeys: 1_000_000, Overflowed: 12},
		Local:   &adminapi.Memory{Keys: 900_000, MaxKeys: 1_000_000},
		Redis: []adminapi.Redis{
			{Address: "redis.internal:6379", State: "down", Since: now.Add(-5 * time.Minute), FailingNodes: 1, Error: "connection refused", Queued: 1024},
			{Address: "cluster:7000", State: "partly_down", Since: now.Add(-time.Second), FailingNodes: 2, Connections: 12},
			{Address: "other:6379", State: "up", Since: now.Add(-90 * time.Minute), Connections: 3},
		},
	}
	several := append(one, from("10.0.0.2:2019", statusBody{failing, append(zones(1, 1, 7), zones(0, 0, 7)[0]), adminapi.History{}}))
	goldentest.Want(t, "testdata/status_several.txt", statusView(terminal.Style{}, now, several))
	goldentest.Want(t, "testdata/status_colors.txt", statusView(terminal.Style{Colored: true}, now, several))

	checked := []decoded[statusBody]{from("a:1", statusBody{memory, []adminapi.Zone{
		{Name: "api", Requests: map[string]int64{"allowed": 90, "denied": 60}},
		{Name: "few", Requests: map[string]int64{"denied": 9}},
		{Name: "large", Requests: map[string]int64{"allowed": 901, "denied": 100}},
		{Name: "earlier", Requests: map[string]int64{"denied": 5000}},
		{Name: "orders", Requests: map[string]int64{"allowed": 4000, "shadow_denied": 5200}},
		{Name: "unused", Requests: map[string]int64{"allowed": 0}},
		{Name: "uncounted"},
	}, adminapi.History{Ages: []float64{70, 61, 10}, Zones: map[string]map[string][]int64{
		"api": {"denied": {0, 50, 60}}, "earlier": {"denied": {0, 4991, 5000}},
	}}})}
	goldentest.Want(t, "testdata/status_check.txt", notes(terminal.Style{}, now, checked, true))
}

// recently returns denials of a key that began an hour ago, and the last of which was some seconds ago.
func recently(key adminapi.ShownKey, shadow bool, atMost, denied int64, ago time.Duration) adminapi.DeniedKey {
	return adminapi.DeniedKey{
		ShownKey: key, Shadow: shadow, Denied: denied, AtMost: atMost, First: now.Add(-time.Hour), Last: now.Add(-ago),
		Limit: fmt.Sprintf("gcra %d 1h", ago/time.Second),
	}
}

func TestTopView(t *testing.T) {
	shown := func(key string) adminapi.ShownKey { return adminapi.ShownKey{Key: &key} }
	cut := recently(adminapi.ShownKey{Key: new("a long beginning"), Cut: true}, false, 1, 1, time.Second)
	lists := []decoded[[]adminapi.DeniedKey]{
		from("a:1/api", []adminapi.DeniedKey{
			recently(shown("customer-7"), false, 812, 812, 5*time.Second),
			recently(shown("customer-7"), true, 900, 900, 6*time.Second),
			recently(shown("a%0Ab"), false, 7, 5, 7*time.Second),
			cut, cut, // these may be different keys
		}),
		from("b:1/api", []adminapi.DeniedKey{recently(shown("customer-7"), false, 1000, 1000, 3*time.Second), cut}),
		from("a:1/login", []adminapi.DeniedKey{recently(adminapi.ShownKey{HashedKey: "abc"}, false, 1, 1, time.Second)}),
	}
	goldentest.Want(t, "testdata/top.txt", topView(terminal.Style{}, now, lists, 10))
	goldentest.Want(t, "testdata/top_limit.txt", topView(terminal.Style{}, now, lists, 1))
	goldentest.Want(t, "testdata/top_empty.txt", topView(terminal.Style{}, now, nil, 10))
}

func TestListViews(t *testing.T) {
	shown := func(key string) adminapi.ShownKey { return adminapi.ShownKey{Key: &key} }
	bans := adminapi.BanList{Bans: []adminapi.ListedBan{
		{ShownKey: shown("203.0.113.9"), Ends: 1800, Until: now.Add(30 * time.Minute), Origin: "operator"},
		{ShownKey: shown("%E2%80%AE"), Ends: 86400, Until: now.Add(24 * time.Hour), Origin: "denials"},
	}}
	goldentest.Want(t, "testdata/bans.txt", bansView(terminal.Style{}, now, []decoded[adminapi.BanList]{from("a:1/login", bans)}, 0))
	alternative := adminapi.BanList{Next: "7", Bans: []adminapi.ListedBan{
		{ShownKey: shown("x"), Alternative: "{http.vars.client_ip}", Ends: 1, Until: now.Add(time.Second), Origin: "denials", Shadow: true},
	}}
	goldentest.Want(t, "testdata/bans_several.txt", bansView(terminal.Style{}, now, []decoded[adminapi.BanList]{
		from("a:1/api", adminapi.BanList{}), from("a:1/login", bans), from("b:1/login", alternative),
	}, 0))
	goldentest.Want(t, "testdata/bans_empty.txt", bansView(terminal.Style{}, now, nil, 0))

	overrides := adminapi.OverrideList{Overrides: []adminapi.ListedOverride{
		{ShownKey: shown("customer-7"), Override: adminapi.Override{From: "config", Limits: []string{"unlimited"}}},
		{ShownKey: shown("customer-8"), Override: adminapi.Override{From: "runtime", Limits: []string{"gcra 5 1s", "gcra 100 1m"}, Until: now.Add(time.Hour)}},
		{ShownKey: shown("x"), Override: adminapi.Override{From: "runtime", Error: "no\x1b limit"}},
	}}
	goldentest.Want(t, "testdata/overrides.txt", overridesView(terminal.Style{}, now, []decoded[adminapi.OverrideList]{from("a:1/api", overrides)}, 0))
}

func TestKeyView(t *testing.T) {
	key := adminapi.ShownKey{Key: new("a%20b")}
	denials := []adminapi.DeniedKey{
		recently(key, false, 44, 44, 3*time.Second), recently(key, true, 1, 1, time.Minute), recently(key, false, 9, 9, 2*time.Second),
	}
	goldentest.Want(t, "testdata/key.txt", keyView(terminal.Style{}, now, adminapi.Key{Zone: "api", Key: "a%20b", Denials: denials, Budgets: []adminapi.Budgets{{
		Limits: []adminapi.Limit{
			{Limit: "gcra 5 1h", RetryAfter: new(720.0), ResetAfter: 3600},
			{Limit: "gcra 50 1h", Plan: new("pro"), Remaining: 50, RetryAfter: new(0.0)},
			{Limit: "gcra 9 1h", Plan: new("pro"), Remaining: 9, RetryAfter: new(0.0)},
			{Limit: "gcra 50 1h", Plan: new(""), Remaining: 50, RetryAfter: new(0.0)}, // the same budget
			{Limit: "calendar 100000 month", Used: new(int64(104242)), RetryAfter: new(3600.0), ResetAfter: 3600},
		},
		Concurrency: &adminapi.Concurrency{Limit: 2, InUse: 3},
		Ban:         &adminapi.Ban{},
	}}}, ""))
	goldentest.Want(t, "testdata/key_banned.txt", keyView(terminal.Style{}, now, adminapi.Key{
		Zone: "api", Key: "%0A", Store: "local",
		Override: &adminapi.Override{From: "runtime", Limits: []string{"gcra 0 1h"}, Until: now.Add(time.Hour)},
		Budgets: []adminapi.Budgets{
			{Alternative: "{http.request.header.X-Api-Key}", Limits: []adminapi.Limit{{Limit: "gcra 0 1h"}}, Ban: &adminapi.Ban{Banned: true, Ends: 90}},
			{Alternative: "{http.vars.client_ip}", Limits: []adminapi.Limit{{Limit: "gcra 0 1h"}}, Ban: &adminapi.Ban{}},
		},
	}, ""))
	goldentest.Want(t, "testdata/key_unlimited.txt", keyView(terminal.Style{}, now, adminapi.Key{
		Zone: "api", Key: "vip", Override: &adminapi.Override{From: "config", Limits: []string{"unlimited"}}, Budgets: []adminapi.Budgets{{}},
	}, "override removed"))
}

// Only a key that has no use, and that no command has changed, may be misspelled.
func TestUnusedKeys(t *testing.T) {
	full, charged := adminapi.Limit{Limit: "gcra 5 1h"}, adminapi.Limit{Limit: "gcra 5 1h", ResetAfter: 1}
	for what, test := range map[string]struct {
		key    adminapi.Key
		ended  string
		unused bool
	}{
		"full":       {adminapi.Key{Budgets: []adminapi.Budgets{{Limits: []adminapi.Limit{full, full}}}}, "", true},
		"reset":      {adminapi.Key{Budgets: []adminapi.Budgets{{Limits: []adminapi.Limit{full}}}}, "reset", false},
		"charged":    {adminapi.Key{Budgets: []adminapi.Budgets{{Limits: []adminapi.Limit{full, charged}}}}, "", false},
		"in flight":  {adminapi.Key{Budgets: []adminapi.Budgets{{Limits: []adminapi.Limit{full}, Concurrency: &adminapi.Concurrency{InUse: 1}}}}, "", false},
		"overridden": {adminapi.Key{Budgets: []adminapi.Budgets{{Limits: []adminapi.Limit{full}}}, Override: &adminapi.Override{}}, "", false},
		"denied":     {adminapi.Key{Budgets: []adminapi.Budgets{{Limits: []adminapi.Limit{full}}}, Denials: make([]adminapi.DeniedKey, 1)}, "", false},
		"unlimited":  {adminapi.Key{Budgets: []adminapi.Budgets{{}}}, "", false},
	} {
		view := keyView(terminal.Style{}, now, test.key, test.ended)
		if unused := strings.Contains(view, "No request is charged"); unused != test.unused {
			t.Errorf("%s: %s", what, view)
		}
	}
}

func TestExplanationView(t *testing.T) {
	key := adminapi.ShownKey{Key: new("customer-7")}
	denied := adminapi.Explanation{
		Request: adminapi.ExplainedRequest{Method: "GET", URL: "https://example.com/orders", ClientIP: "203.0.113.9", User: "alice b"},
		Verdict: "denied",
		Decides: &adminapi.Decision{Zone: "api", Reason: "limit", Limit: "token_bucket 3 1h", RetryAfter: new(1198.0)},
		Handlers: []adminapi.ExplainedHandler{
			{Server: "srv0", Reached: true, Zones: []adminapi.ExplainedZone{
				{
					Zone: "api", Applies: "yes", Key: &key, Cost: 1, Verdict: "denied", Plan: new("free"),
					Denials: []adminapi.DeniedKey{recently(key, false, 44, 44, 3*time.Second)},
					Limits: []adminapi.Limit{
						{Limit: "token_bucket 3 1h", RetryAfter: new(1198.0), ResetAfter: 3600},
						{Limit: "fixed_window 10000 24h", Remaining: 9997, RetryAfter: new(0.0), ResetAfter: 80000},
					},
					Concurrency: &adminapi.Concurrency{Limit: 20, InUse: 3},
					Ban:         &adminapi.ExplainedBan{Ban: adminapi.Ban{Banned: true, Ends: 60}},
				},
				{
					Zone: "addresses", Applies: "yes", Key: &adminapi.ShownKey{Key: new("%1B")}, Alternative: "{http.vars.client_ip}", Verdict: "allowed", Cost: 5,
					Shadow: true, Store: "local",
					Override: &adminapi.Override{From: "runtime"}, Limits: []adminapi.Limit{{Limit: "gcra 0 1s"}},
				},
				{Zone: "login", Applies: "no_match"},
				{Zone: "office", Applies: "exempt"},
			}},
			{Server: "srv0", Zones: []adminapi.ExplainedZone{{Zone: "all", Applies: "yes", Verdict: "allowed", Key: &key, Limits: []adminapi.Limit{
				{Limit: "gcra 5 1s", Remaining: 5, RetryAfter: new(0.0)},
			}}}},
		},
		Notes: []string{"the body\x1b is not known"},
	}
	goldentest.Want(t, "testdata/explain_denied.txt", explanationView(terminal.Style{}, now, denied))
	goldentest.Want(t, "testdata/explain_colors.txt", explanationView(terminal.Style{Colored: true}, now, denied))

	goldentest.Want(t, "testdata/explain_delayed.txt", explanationView(terminal.Style{}, now, adminapi.Explanation{
		Request: adminapi.ExplainedRequest{Method: "GET", URL: "https://example.com/"}, Verdict: "delayed",
		Decides: &adminapi.Decision{Zone: "api", Reason: "limit", Limit: "gcra 5 1m", RetryAfter: new(0.25)},
	}))
}
