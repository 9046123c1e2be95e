package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// seen returns the answer of the admin API at a path.
func seen[T any](t *testing.T, c *caddytest.Caddy, path string) (v T) {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(c.Operate(t, 200, "GET", path, "").Text))
	decoder.DisallowUnknownFields()
	errtest.None(t, decoder.Decode(&v))
	return v
}

// keyPath, overridePath and banPath return paths about a key of zone api.
func keyPath(key string) string      { return "zones/api/keys?key=" + url.QueryEscape(key) }
func overridePath(key string) string { return "zones/api/override?key=" + url.QueryEscape(key) }
func banPath(key string) string      { return "zones/api/ban?key=" + url.QueryEscape(key) }

func seenKey(t *testing.T, c *caddytest.Caddy, key string) adminapi.Key {
	t.Helper()
	v := seen[adminapi.Key](t, c, keyPath(key))
	if v.Zone != "api" || v.Key != keys.Encoded("", key) {
		t.Errorf("zone %q, key %q, want api and %q", v.Zone, v.Key, keys.Encoded("", key))
	}
	return v
}

// limitsLeft returns the remaining events of the limits of a key, with their plans and the numbers of alternatives.
func limitsLeft(v adminapi.Key) (all []string) {
	for i, b := range v.Budgets {
		for _, l := range b.Limits {
			text := fmt.Sprintf("%s: %d", l.Limit, l.Remaining)
			if l.Plan != nil {
				text = *l.Plan + " " + text
			}
			if b.Alternative != "" {
				text = fmt.Sprint(i+1, " ", text)
			}
			all = append(all, text)
		}
	}
	return all
}

func wantRemaining(t *testing.T, v adminapi.Key, want ...string) {
	t.Helper()
	if got := limitsLeft(v); !slices.Equal(got, want) {
		t.Errorf("remaining %q, want %q", got, want)
	}
}

// wantSpan checks that a span is this, or up to a minute less.
func wantSpan(t *testing.T, what string, got, want float64) {
	t.Helper()
	if got > want || got < want-60 || got < 0 || want > 0 && got == want {
		t.Errorf("%s: %v, want %v or a little less", what, got, want)
	}
}

// shows reports whether a list shows a key as it is, or the beginning of a long one. In Redis a long one can be a hash.
func shows(shown adminapi.ShownKey, key string) bool {
	return len(key) > keys.MaxShown && shown.Key == nil || reflect.DeepEqual(shown, keys.NewShown("", key).View())
}

// Keys can have any bytes.
func TestAdminStrangeKeys(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		c := caddytest.Start(t, caddytest.Site("zone api {\n key {query.key}\n fixed_window 5 1h\n runtime_overrides\n ban 1h\n}\n"+use))
		for _, key := range []string{
			"/", ".", "..", "//", "a/b/../c", "/ban", "override", "x/override", "%", "%2F", "%%", "{}", "{query.key}", "a b+c&d=e", "+", "?x=1#y", `"\`, "é世界🙂", "\xff\x00\n\r", "keys", "zones",
			strings.Repeat("x", 1000), strings.Repeat("/", 1000), strings.Repeat("x", 1024), strings.Repeat("x", 1025), strings.Repeat("x", 4000), "",
		} {
			site := "/?key=" + url.QueryEscape(key)
			c.Get(t, site).Want(t, 200)
			wantRemaining(t, seenKey(t, c, key), "fixed_window 5 1h: 4")
			// A key can stand in a URL as answers write it.
			again := seen[adminapi.Key](t, c, "zones/api/keys?key="+seenKey(t, c, key).Key)
			wantRemaining(t, again, "fixed_window 5 1h: 4")
			c.Operate(t, 204, "PUT", banPath(key), "")
			c.Get(t, site).Want(t, 429)
			if list := listedBans(t, c, 10); len(list) != 1 || !shows(list[0].ShownKey, key) {
				t.Errorf("%.20q: %+v", key, list)
			}
			c.Operate(t, 204, "DELETE", banPath(key), "")
			c.Operate(t, 204, "PUT", overridePath(key), `{"limits":["fixed_window 2 1h"]}`)
			if list := listedOverrides(t, c, 10); len(list) != 1 || !shows(list[0].ShownKey, key) {
				t.Errorf("%.20q: %+v", key, list)
			}
			c.Get(t, site).Want(t, 200, "RateLimit-Policy", `"api";q=2;w=3600`)
			wantRemaining(t, seenKey(t, c, key), "fixed_window 2 1h: 0")
			c.Operate(t, 204, "DELETE", overridePath(key), "")
			c.Get(t, site).Want(t, 200, "RateLimit-Policy", `"api";q=5;w=3600`, "RateLimit", `"api";r=2;t=3600`)
			c.Operate(t, 204, "DELETE", keyPath(key), "")
			wantRemaining(t, seen[adminapi.Key](t, c, keyPath(key)), "fixed_window 5 1h: 5")
		}
	})
}

// Zones have strange names, too, and keys may be networks.
func TestAdminStrangeZones(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, caddytest.Site("zone \"a b%2f..?#&\" {\n fixed_window 5 1h\n}\nzone .. {\n key <none>\n fixed_window 6 1h\n}\nzone net {\n key {query.key} {client_ip}\n ipv4_prefix 24\n ipv6_prefix 64\n fixed_window 7 1h\n runtime_overrides\n override 198.51.100.0/24 unlimited\n}\n"))
	wantRemaining(t, seen[adminapi.Key](t, c, "zones/"+url.PathEscape("a b%2f..?#&")+"/keys?key="), "fixed_window 5 1h: 5")
	wantRemaining(t, seen[adminapi.Key](t, c, "zones/%2e%2E/keys?key="), "fixed_window 6 1h: 6")
	c.Get(t, "/?key=203.0.113.9").Want(t, 200)
	wantRemaining(t, seen[adminapi.Key](t, c, "zones/net/keys?key=203.0.113.0/24"), "1 fixed_window 7 1h: 6", "2 fixed_window 7 1h: 7")
	wantRemaining(t, seen[adminapi.Key](t, c, "zones/net/keys?key=nobody"), "1 fixed_window 7 1h: 7", "2 fixed_window 7 1h: 7")
	if body := c.Operate(t, 200, "GET", "zones", "").Text; strings.Contains(body, `\u00`) {
		t.Errorf("%s", body)
	}
	zones := seen[[]adminapi.Zone](t, c, "zones")
	if len(zones) != 3 || zones[1].Name != "a b%2f..?#&" || !reflect.DeepEqual(zones[2].Override, map[string][]string{"198.51.100.0%2F24": {"unlimited"}}) {
		t.Errorf("%+v", zones)
	}
}

// Errors say what to write instead, and have the right status.
func TestAdminErrors(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, caddytest.Site("zone api {\n key {query.key}\n gcra 2 1h\n runtime_overrides\n ban 1h\n delay 5s\n}\nzone plain {\n key {query.key}\n gcra 2 1h\n}\n"))
	for _, e := range []struct {
		status             int
		method, path, body string
		says               string
	}{
		{404, "GET", "", "", "no such path: write /rate_limit/ and one of status, "},
		{404, "GET", "zones/", "", "no such path"},
		{404, "GET", "zones/api/", "", "no such path"},
		{400, "GET", "zones/api/keys", "", "it takes a key: write ?key= and the key"},
		{400, "DELETE", "zones/api/ban", "", "it takes a key: write ?key= and the key"},
		{404, "DELETE", "zones/api/keys/203.0.113.0/24/ban", "", "the key after ?key=, as in zones/api/ban?key=203.0.113.0/24"},
		{404, "DELETE", "zones/a/pi/ban?key=k", "", "write each slash in a zone as %2F"},
		{404, "GET", "zones/nobody/keys?key=k", "", `there is no zone \"nobody\": write one of [\"api\" \"plain\"]"`},
		{400, "GET", "zones/api/bans?limit=0", "", `limit must be a number from 1 to 1000, not \"0\"`},
		{400, "GET", "zones/api/bans?limit=1001", "", "limit must be a number from 1 to 1000"},
		{400, "GET", "zones/api/bans?limit=1&limit=2", "", "parameter limit is given twice"},
		{400, "GET", "zones/api/bans?key=k", "", `there is no parameter \"key\": it takes limit and cursor`},
		{400, "GET", "zones/api/top?limit=1", "", `there is no parameter \"limit\": it takes none`},
		{400, "GET", "zones/api/keys?key=%zz", "", "invalid URL escape"},
		{400, "GET", "zones/api/keys?key=a;b", "", "semicolon"},
		{400, "GET", "zones/api/bans?cursor=nonsense", "", "list again from the beginning"},
		{400, "GET", "zones/api/bans?cursor=0.nonsense", "", "list again from the beginning"},
		{400, "GET", "zones/api/bans?cursor=7.", "", "list again from the beginning"},
		{400, "GET", "zones/api/overrides?cursor=0.k!", "", "list again from the beginning"},
		{405, "DELETE", "zones/api/bans", "", "use one of GET"},
		{405, "POST", "zones", "", "use one of GET"},
		{405, "PUT", keyPath("k"), "", "use one of DELETE, GET"},
		{405, "GET", banPath("k"), "", "use one of DELETE, PUT"},
		{405, "POST", "zones/api/override?key=k", "", "use one of DELETE, PUT"},
		{409, "PUT", "zones/plain/ban?key=k", "", `zone \"plain\" bans nobody: write for example ban 1h`},
		{409, "DELETE", "zones/plain/ban?key=k", "", "bans nobody"},
		{409, "GET", "zones/plain/bans", "", "bans nobody"},
		{400, "PUT", "zones/api/override?key=k", `{"limits":["token_bukket 1 1s"]}`, `limits[0] \"token_bukket 1 1s\": unknown algorithm`},
		{400, "PUT", "zones/api/override?key=k", `{"limits":["gcra 1 1s","gcra 5"]}`, `limits[1] \"gcra 5\": gcra takes events`},
		{400, "PUT", "zones/api/override?key=k", `{"limits":["gcra 1 1s","unlimited"]}`, `\"unlimited\" can't be combined with limits`},
		{400, "PUT", "zones/api/override?key=k", `{"limits":["gcra 1 1s",7]}`, "limits[1]"},
		{400, "PUT", "zones/api/override?key=k", `{"limits":"gcra 1 1s"}`, "limits must be a list, not a string"},
		{400, "PUT", "zones/api/override?key=k", `{"limits":[""]}`, "write for example token_bucket 100 1m"},
		{409, "PUT", "zones/plain/override?key=k", `{"unlimited":true}`, "write runtime_overrides in it"},
		{409, "DELETE", "zones/plain/override?key=k", "", "write runtime_overrides in it"},
		{400, "PUT", overridePath("k"), "", "write for example"},
		{400, "PUT", overridePath("k"), "nonsense", "write for example"},
		{400, "PUT", overridePath("k"), "null", "it has no limit"},
		{400, "PUT", overridePath("k"), "[]", "write for example"},
		{400, "PUT", overridePath("k"), "{}", "it has no limit"},
		{400, "PUT", overridePath("k"), `{"unlimited":true}{}`, "more text follows"},
		{400, "PUT", overridePath("k"), `{"unlimited":true,"until":"2030-01-01T00:00:00Z"}`, "until"},
		{400, "PUT", overridePath("k"), `{"unlimited":true,"ttl":"soon"}`, "write for example"},
		{400, "PUT", overridePath("k"), `{"unlimited":true,"ttl":"0s"}`, "ttl must be at least 1ms, not 0s"},
		{400, "PUT", overridePath("k"), `{"unlimited":true,"limits":[{"algorithm":"gcra","events":1,"window":"1s"}]}`, "don't go together"},
		{400, "PUT", overridePath("k"), `{"limits":[{"algorithm":"gcra","events":1,"window":"1s","brust":4}]}`, `limits[0]: unknown field \"brust\" (did you mean burst?)`},
		{400, "PUT", overridePath("k"), `{"limits":[{"algorithm":"gcra","events":2,"window":"1s","burst":0}]}`, "limits[0].burst must not be 0: leave it out for as many as events"},
		{400, "PUT", overridePath("k"), `{"limits":["gcra 2 1s 0"]}`, `gcra takes events, window and optionally a burst, not \"2 1s 0\": write gcra 2 1s`},
		{400, "PUT", overridePath("k"), `{"limits":[{"algorithm":"gcra","events":"1","window":"1s"}]}`, `limits[0].events must be a whole number, not \"1\": write 1`},
		{400, "PUT", overridePath("k"), `{"limits":[{"algorithm":"gcra","events":0,"window":"1s"}]}`, "events must be above 0"},
		{400, "PUT", overridePath("k"), `{"limits":[{"algorithm":"gcra","events":1,"window":"1s"},{"algorithm":"gcra","events":1,"window":"1s"}]}`, "are the same"},
		{400, "PUT", overridePath("k"), `{"limits":[{"algorithm":"sliding_log","events":1,"window":"1s"}]}`, "delay"}, // as in a configuration
		{413, "PUT", overridePath("k"), `{"unlimited":true` + strings.Repeat(" ", 64<<10) + "}", "at most 65536 bytes"},
		{400, "PUT", banPath("k"), "{", "write for example"},
		{400, "PUT", banPath("k"), `{"for":"1h"}`, "for"},
		{400, "PUT", banPath("k"), `{"duration":"0s"}`, "write how long it lasts"},
		{400, "PUT", banPath("k"), `{"duration":"1000000h"}`, "the duration must be at most"},
		{400, "PUT", banPath("k"), `{"duration":"1ns"}`, "must be a whole number of microseconds, not 1ns"},
	} {
		r := c.Operate(t, e.status, e.method, e.path, e.body)
		var said struct{ Error string }
		if err := json.Unmarshal([]byte(r.Text), &said); err != nil || !strings.Contains(r.Text, e.says) {
			t.Errorf("%s %s %s: %s, want %q (%v)", e.method, e.path, e.body, r.Text, e.says, err)
		}
		if strings.Contains(r.Text, `\u00`) {
			t.Errorf("%s %s: %s", e.method, e.path, r.Text)
		}
		if allow := r.Field("Allow"); (e.status == 405) != (allow != "") || !strings.HasSuffix(e.says, allow) {
			t.Errorf("%s %s: Allow %q", e.method, e.path, allow)
		}
	}
	// In part percent-encoded, as no client of Go sends it: it isn't the zone {.
	conn, err := net.Dial("tcp", c.Admin)
	errtest.None(t, err)
	defer conn.Close()
	fmt.Fprintf(conn, "DELETE /rate_limit/zones/{%%2Fban?key=k HTTP/1.0\r\nHost: %s\r\n\r\n", c.Admin)
	if answer, err := io.ReadAll(conn); !strings.Contains(string(answer), " 400 ") || !strings.Contains(string(answer), "not percent-encoded as a whole") {
		t.Errorf("%s %v", answer, err)
	}
	wantRemaining(t, seenKey(t, c, "k"), "gcra 2 1h: 2")
	if v := seenKey(t, c, "k"); v.Override != nil || v.Budgets[0].Ban.Banned {
		t.Errorf("%+v", v)
	}
}

// A configuration is only looked at and changed while it is in force.
func TestAdminReloads(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		config := func(zone string) string { return caddytest.Site("zone " + zone + "\n" + use) }
		const old = "api {\n key {query.key}\n fixed_window 5 1h\n}"
		c := caddytest.Start(t, config(old))
		c.Get(t, "/?key=k").Want(t, 200)
		want := func(remaining string, zones ...string) {
			t.Helper()
			wantRemaining(t, seenKey(t, c, "k"), remaining)
			var names []string
			for _, z := range seen[[]adminapi.Zone](t, c, "zones") {
				names = append(names, z.Name)
			}
			if !slices.Equal(names, zones) {
				t.Errorf("zones %q, want %q", names, zones)
			}
		}
		want("fixed_window 5 1h: 4", "api")
		bad := strings.Replace(config("api {\n key {query.key}\n fixed_window 9 1h\n}\nzone new {\n fixed_window 8 1h\n}"),
			"respond ok", "reverse_proxy localhost:1 {\n transport http {\n  tls\n  tls_trust_pool file /no/such/file\n }\n}\nrespond ok", 1)
		for range 2 {
			if r := c.Load(t, bad, "text/caddyfile"); r.StatusCode == 200 {
				t.Fatal("a bad configuration was accepted")
			}
			want("fixed_window 5 1h: 4", "api")
			c.Operate(t, 204, "DELETE", keyPath("k"), "")
			want("fixed_window 5 1h: 5", "api")
			c.Get(t, "/?key=k").Want(t, 200, "RateLimit", `"api";r=4;t=3600`)
		}
		c.Reload(t, config("api {\n key {query.key}\n fixed_window 9 1h\n}\nzone new {\n fixed_window 8 1h\n}"))
		want("fixed_window 9 1h: 8", "api", "new")
		c.Get(t, "/?key=k").Want(t, 200)
		c.Reload(t, config(old))
		want("fixed_window 5 1h: 3", "api") // its budgets have been kept
		c.Operate(t, 404, "GET", "zones/new/keys?key=k", "")

		c.Reload(t, "{\n\tadmin {$ADMIN}\n}\n{$SITE}\nrespond ok\n")
		r := c.Operate(t, 404, "GET", "zones", "")
		if !strings.Contains(r.Text, "no rate_limit") {
			t.Error(r.Text)
		}
		c.Operate(t, 404, "DELETE", keyPath("k"), "")
		c.Reload(t, config(old))
		want(map[bool]string{true: "fixed_window 5 1h: 5", false: "fixed_window 5 1h: 3"}[use == ""], "api") // nobody held the memory
	})
}

// While Redis is away, a key is looked at in the local budgets, if these decide, and nothing
// can be changed.
func TestAdminRedisAway(t *testing.T) {
	t.Parallel()
	server, g := redistest.Start(t), startGate(t)
	config := gated(g, fmt.Sprintf("zone api {\n key {query.key}\n fixed_window 9 1h\n concurrency 4\n runtime_overrides\n ban 1h after 1000\n}\nredis %s {\n timeout 30s\n}\non_store_error local 1/2", server.Addr))
	c := caddytest.Start(t, config)
	c.Operate(t, 204, "PUT", overridePath("vip"), `{"limits":[{"algorithm":"gcra","events":8,"window":"1h"}]}`)
	for _, key := range []string{"k", "k", "vip"} {
		c.Get(t, "/?key="+key).Want(t, 200)
	}
	if v := seenKey(t, c, "k"); v.Store != "" {
		t.Errorf("%+v, want what Redis holds", v)
	}
	server.Kill(t)
	c.Hold(t.Context(), "/hold?key=k")
	g.wait(t, 1)
	caddytest.Eventually(t, "Redis fails", func() bool {
		c.Get(t, "/?key=another")
		return strings.Contains(c.Logged(), "Redis is failing")
	})
	v := seenKey(t, c, "k")
	wantRemaining(t, v, "fixed_window 4 1h: 3")
	if slots := *v.Budgets[0].Concurrency; v.Store != "local" || slots != (adminapi.Concurrency{Limit: 2, InUse: 1}) {
		t.Errorf("%+v, slots %+v, want what the local budgets hold", v, slots)
	}
	v = seenKey(t, c, "vip")
	wantRemaining(t, v, "gcra 4 1h: 4")
	if v.Override == nil || v.Override.From != "runtime" || v.Override.Limits[0] != "gcra 8 1h" {
		t.Errorf("override %+v, want what this instance knows", v.Override)
	}
	change := func(method, path, body, says string) {
		t.Helper()
		if r := c.Operate(t, 503, method, path, body); !strings.Contains(r.Text, says) {
			t.Errorf("%s %s: %s, want %q", method, path, r.Text, says)
		}
	}
	change("DELETE", keyPath("k"), "", "nothing has changed")
	change("PUT", overridePath("k"), `{"unlimited":true}`, "nothing has changed")
	c.Operate(t, 200, "GET", "zones", "")
	c.Operate(t, 200, "GET", "zones/api/top", "")
	for _, list := range []string{"bans", "overrides"} { // they come from the store that decides
		if r := c.Operate(t, 503, "GET", "zones/api/"+list, ""); !strings.Contains(r.Text, "can't be listed") {
			t.Errorf("%s", r.Text)
		}
	}
	for _, status := range []int{200, 200, 200, 200, 429} { // by the override that this instance knows of
		c.Get(t, "/?key=vip").Want(t, status)
	}
	g.pass <- struct{}{}

	c.Reload(t, strings.Replace(config, "local 1/2", "deny", 1))
	change("GET", keyPath("k"), "", "ask again when it works")
	server.Restart(t)
	c.WaitForLog(t, "Redis works again")
	if v := seenKey(t, c, "k"); v.Store != "" {
		t.Errorf("%+v, want what Redis holds", v)
	}
}
