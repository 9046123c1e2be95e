package e2e

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

const explainedZones = `
zone plain {
	match query zone=plain
	key {query.key}
	fixed_window 2 1h
	gcra 1 1h 5
	cost {query.cost}
	ban 2h after 2
	runtime_overrides
	override vip unlimited
	override big {
		fixed_window 100 1h
	}
}
zone planned {
	match query zone=planned
	exempt query free=1
	key {query.user} {query.key}
	plan {query.plan} {
		gold {
			gcra 50 1h
		}
		default {
			gcra 5 1h
		}
	}
}
zone slots {
	match query zone=slots
	key {query.key}
	concurrency 1
}
zone waits {
	match query zone=waits
	key {query.key}
	concurrency 1
	delay 20m
}
zone delays {
	match query zone=delays
	key {query.key}
	gcra 2 1h
	delay 40m
}
zone watches {
	match query zone=watches
	key {query.key}
	fixed_window 1 1h
	ban 1d after 1
	shadow
}
zone bodies {
	match query zone=bodies
	key {http.rate_limit.request.json.user}
	fixed_window 1 1h
}
zone handler {
	match query zone=handler
	key {query.key}
	fixed_window 1 1h
	ban 1h scope handler
}
zone settles {
	match query zone=settles
	key {query.key}
	fixed_window 5 1h
	settle {
		match status 401
	}
}
zone freed {
	match query zone=freed
	key {query.key}
	fixed_window 5 1h
	runtime_overrides
	override vip unlimited
}
zone held {
	match query zone=held
	key {query.key}
	token_bucket 5 1h {
		initial 0
	}
	sliding_log 5 1h {
		min_interval 1s
	}
}
zone partly {
	match query zone=partly
	key {query.key}
	fixed_window 5 1h
	mode nary
	cost 9
}
`

// An explanation has the verdict, what decides, and the state of options that TestExplainAgrees doesn't draw.
func TestExplainVerdicts(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, testExplainVerdicts)
}

func testExplainVerdicts(t *testing.T, use string) {
	g := startGate(t)
	c := caddytest.Start(t, gated(g, explainedZones+use))
	say := func(path string) string {
		t.Helper()
		x := c.ExplainPath(t, path)
		text := x.Verdict
		if d := x.Decides; d != nil {
			text += fmt.Sprintf(" by %s %s %s", d.Zone, d.Reason, d.Limit)
			if d.RetryAfter != nil {
				text += fmt.Sprintf(" %.1fh", *d.RetryAfter/3600)
			}
		}
		for _, h := range x.Handlers {
			for _, z := range h.Zones {
				if z.Applies == "no_match" || z.Applies == "ban_only" && z.Verdict == "allowed" {
					continue
				}
				text += fmt.Sprintf("; %s %s %s", z.Zone, z.Applies, z.Verdict)
				for _, l := range z.Limits {
					text += fmt.Sprintf(" %d", l.Remaining)
				}
			}
		}
		for _, note := range x.Notes {
			if !strings.Contains(note, "test_hold") {
				text += "; " + note
			}
		}
		return text
	}
	want := func(path, text string) {
		t.Helper()
		if got := say(path); got != text {
			t.Errorf("%s: %s, want %s", path, got, text)
		}
	}
	want("/?zone=none", "unlimited")
	want("/?zone=plain&key=a", "allowed; plain yes allowed 2 5")
	for _, status := range []int{200, 200, 429} {
		c.Get(t, "/?zone=plain&key=a").Want(t, status)
	}
	for zone, want := range map[string]string{"plain": "2 2 ", "held": ""} { // held can't tell what is used
		got := ""
		for _, l := range seen[adminapi.Key](t, c, "zones/"+zone+"/keys?key=a").Budgets[0].Limits {
			if l.Used != nil {
				got += fmt.Sprint(*l.Used, " ")
			}
		}
		if got != want {
			t.Errorf("zone %s: used %s, want %s", zone, got, want)
		}
	}
	want("/?zone=plain&key=a", "denied by plain ban  2.0h; plain yes denied 0 3")                      // the second denial bans
	want("/?zone=plain&key=c&cost=9", "denied by plain limit fixed_window 2 1h; plain yes denied 2 5") // waiting won't help
	want("/?zone=plain&key=big", "allowed; plain yes allowed 100")
	c.Operate(t, 204, "PUT", "zones/plain/override?key=b", `{"limits":[{"algorithm":"gcra","events":9,"window":"1h"}]}`)
	want("/?zone=plain&key=b", "allowed; plain yes allowed 9")
	if z := ofZone(t, c.ExplainPath(t, "/?zone=plain&key=b"), "plain"); *z.Ban != (adminapi.ExplainedBan{}) || z.Override.From != "runtime" || z.Override.Limits[0] != "gcra 9 1h" {
		t.Errorf("an override at run time, and no ban yet: %+v", z)
	}
	want("/?zone=planned&plan=gold&key=a", "allowed; planned yes allowed 50")
	want("/?zone=planned&user=a", "allowed; planned yes allowed 5")
	if z := ofZone(t, c.ExplainPath(t, "/?zone=planned&plan=gold&key=a"), "planned"); *z.Plan != "gold" || z.Alternative != "{http.request.uri.query.key}" || *z.Key.Key != "a" {
		t.Errorf("a plan: %+v", z)
	}
	want("/?zone=planned&free=1", "unlimited; planned exempt ")
	c.Get(t, "/?zone=watches&key=a").Want(t, 200)
	want("/?zone=watches&key=a", "allowed; watches yes denied 0")
	c.Get(t, "/?zone=watches&key=a").Want(t, 200)
	ban := seen[adminapi.Key](t, c, "zones/watches/keys?key=a").Budgets[0].Ban
	if list := seen[adminapi.BanList](t, c, "zones/watches/bans").Bans; !ban.Banned || !ban.Shadow || len(list) != 1 || !list[0].Shadow {
		t.Errorf("a ban in shadow mode: %+v, listed as %+v", ban, list)
	}
	want("/?zone=freed&key=vip", "unlimited; freed unlimited ")
	c.Operate(t, 204, "PUT", "zones/freed/override?key=vip", `{"limits":["gcra 7 1h"]}`)
	want("/?zone=freed&key=vip", "allowed; freed yes allowed 7")
	long := strings.Repeat("k", 2000) // which stores have short
	c.Operate(t, 204, "PUT", "zones/freed/override?key="+long, `{"limits":["gcra 6 1h"]}`)
	c.Get(t, "/?zone=freed&key="+long).Want(t, 200)
	c.Operate(t, 204, "DELETE", "zones/freed/keys?key="+long, "")
	want("/?zone=freed&key="+long, "allowed; freed yes allowed 6")
	want("/?zone=partly&key=a", "allowed; partly yes allowed 5")
	want("/?zone=settles&key=a", "allowed; settles yes allowed 5; zone settles has settle, so the true cost of the request is known only after the response")
	for _, zone := range []string{"slots", "waits"} {
		c.Hold(t.Context(), "/hold?key=a&zone="+zone)
	}
	g.wait(t, 2)
	want("/?zone=slots&key=a", "denied by slots concurrency concurrency 1 0.0h; slots yes denied")
	want("/?zone=waits&key=b", "allowed; waits yes allowed")
	want("/?zone=waits&key=a", "delayed by waits concurrency concurrency 1; waits yes delayed; zone waits delays the request until a slot is free, for at most 20m0s; then the limits decide")
	g.pass <- struct{}{}
	g.pass <- struct{}{}
	g.wait(t, 0)

	q := adminapi.ExplainedRequest{Method: "POST", URL: "http://" + c.Site + "/?zone=bodies", Headers: map[string]adminapi.Strings{"Content-Type": {"application/json"}}, Body: `{"user":`}
	if x := c.Explain(t, q); x.Verdict != "denied" || x.Decides.Reason != "body" || !strings.Contains(x.Notes[0], "status 400") {
		t.Errorf("a body that is no JSON: %+v", x)
	}
	q.Body = `{"user":"ann"}`
	if x := c.Explain(t, q); x.Verdict != "allowed" || *ofZone(t, x, "bodies").Key.Key != "ann" {
		t.Errorf("a body: %+v", x)
	}
}

// Explanations change no state in Redis, no metric and no log. TestExplainAgrees says it of the memory.
func TestExplainChangesNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	testExplainChangesNothing(t, fmt.Sprintf("redis %s {\n timeout 30s\n}\n", server.Addr), "", server)
}

// testExplainChangesNothing looks at the keys with a prefix in a Redis, or in the nodes of a cluster that are no replicas.
func testExplainChangesNothing(t *testing.T, use, prefix string, primaries ...*redistest.Server) {
	c := caddytest.Start(t, caddytest.Site(explainedZones+use))
	paths := []string{"/?zone=none&key=a", "/?zone=planned&free=1"}
	for _, zone := range []string{"plain", "planned", "slots", "waits", "delays", "watches", "bodies", "handler", "settles", "freed", "partly"} {
		paths = append(paths, "/?key=a&zone="+zone)
	}
	for _, path := range paths { // none is denied, because further denials are logged later
		c.Get(t, path)
	}
	for _, zone := range []string{"slots", "waits"} { // which can be given back after the responses
		caddytest.EventuallySees(t, "the slot of zone "+zone+" is free", func() int64 {
			return seen[adminapi.Key](t, c, "zones/"+zone+"/keys?key=a").Budgets[0].Concurrency.InUse
		}, func(n int64) bool { return n == 0 })
	}
	caddytest.EventuallySees(t, "the charge of zone settles is given back", func() int64 {
		return c.Remaining(t, "settles", "a")
	}, func(n int64) bool { return n == 5 })
	state := func() map[string]string {
		all := make(map[string]string)
		for name, value := range caddytest.Metrics(t, c, "caddy_rate_limit") {
			if strings.Contains(name, "zone=") {
				all[name] = fmt.Sprint(value)
			}
		}
		metrics := len(all)
		for _, primary := range primaries {
			for _, name := range primary.Client.Keys(t.Context(), prefix+"*").Val() {
				switch value := primary.Client.Dump(t.Context(), name).Val(); {
				case !strings.Contains(name, store.SlotsID("", "")):
					all[name] = fmt.Sprintf("%q %v", value, primary.Client.ExpireTime(t.Context(), name).Val())
				case primary.Client.StrLen(t.Context(), name).Val() > 0: // the instance sets an empty value every ten seconds
					all[name] = fmt.Sprintf("%q", value)
				}
			}
		}
		if metrics == 0 || len(all) == metrics {
			t.Fatalf("there are no metrics, or no keys: %v", all)
		}
		return all
	}
	before, denials := state(), c.Times(t, `"logger":"http.handlers.rate_limit`)
	for n := range 8 * len(paths) { // each path twice with each cost
		x := c.ExplainPath(t, paths[n%len(paths)]+fmt.Sprintf("&cost=%d", n/len(paths)%4))
		if len(x.Handlers) != 1 {
			t.Fatalf("%+v", x)
		}
	}
	if after := state(); !maps.Equal(after, before) {
		t.Errorf("before:\n%v\nafter:\n%v", before, after)
	}
	if after := c.Times(t, `"logger":"http.handlers.rate_limit`); after != denials {
		t.Errorf("%d new lines in the log", after-denials)
	}
}

// While Redis fails, on_store_error decides an explained request, too.
func TestExplainRedisAway(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	config := caddytest.Site(fmt.Sprintf("zone api {\n key {query.key}\n fixed_window 9 1h\n override staff unlimited\n}\nredis %s {\n timeout 30s\n}\non_store_error local 1/3", server.Addr))
	c := caddytest.Start(t, config)
	c.Get(t, "/?key=a").Want(t, 200)
	server.Kill(t)
	caddytest.Eventually(t, "Redis fails", func() bool {
		c.Get(t, "/?key=another")
		return strings.Contains(c.Logged(), "Redis is failing")
	})
	for _, status := range []int{200, 200, 200, 429} {
		c.Get(t, "/?key=a").Want(t, status)
	}
	x := c.ExplainPath(t, "/?key=a")
	if z := ofZone(t, x, "api"); x.Verdict != "denied" || z.Store != "local" || z.Limits[0].Limit != "fixed_window 3 1h" || x.Decides.Limit != "fixed_window 3 1h" {
		t.Errorf("local: %+v", x)
	}
	c.Reload(t, strings.Replace(config, "local 1/3", "deny", 1))
	if x := c.ExplainPath(t, "/?key=a"); x.Verdict != "denied" || x.Decides.Reason != "store" || *x.Decides.RetryAfter != 1 || !strings.Contains(x.Notes[0], "503") {
		t.Errorf("deny: %+v", x)
	}
	if k := seen[adminapi.Key](t, c, keyPath("staff")); k.Override == nil { // of the configuration: nobody asks Redis
		t.Errorf("the key: %+v", k)
	}
	c.Reload(t, strings.Replace(config, "local 1/3", "allow", 1))
	if x := c.ExplainPath(t, "/?key=a"); x.Verdict != "allowed" || !strings.Contains(x.Notes[0], "passes the request on") {
		t.Errorf("allow: %+v", x)
	}
}

// Explanations continue while configurations are loaded, also while one is rejected.
func TestExplainWhileReloading(t *testing.T) {
	t.Parallel()
	config := caddytest.Site("zone api {\n fixed_window 5 1h\n}")
	c := caddytest.Start(t, config)
	const rejected = "reverse_proxy localhost:1 {\n transport http {\n tls\n tls_trust_pool file /no/such/file\n }\n}\n"
	var explained atomic.Int64
	ctx, end := context.WithCancel(t.Context())
	var asks sync.WaitGroup
	asks.Go(func() {
		for ctx.Err() == nil {
			r, err := c.Do("POST", "http://"+c.Admin+"/rate_limit/explain", `{"url":"http://`+c.Site+`/"}`)
			switch {
			case err != nil: // the admin endpoint was just replaced
			case r.StatusCode != 200 || !strings.Contains(r.Text, `"remaining":5`):
				t.Errorf("%d %s", r.StatusCode, r.Text)
			default:
				explained.Add(1)
			}
		}
	})
	for n := range 10 {
		before := explained.Load()
		c.Load(t, fmt.Sprintf("%s# %d\n%s", config, n, []string{"", rejected}[n%2]), "text/caddyfile")
		caddytest.Eventually(t, "a request is explained", func() bool { return explained.Load() > before })
	}
	end()
	asks.Wait()
}
