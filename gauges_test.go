package ratelimit

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// wantNoMetric checks that there is no metric whose name and labels begin so.
func wantNoMetric(t *testing.T, c *caddyProcess, name string) {
	t.Helper()
	if got := metrics(t, c, name); len(got) > 0 {
		t.Errorf("there are metrics %v", got)
	}
}

// The gauges follow requests in flight and waiting requests, however these end.
func TestGaugesOfRequests(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, use string) {
		g := startGate(t)
		zone := `zone api {
			key {query.key}
			concurrency 2
			delay 1h
		}
		`
		config := gated(g, zone+`zone slow {
			match path /slow
			gcra 1 1h
			delay 1000h
		}
		zone plain {
			gcra 1000000 1s
		}
		`+use)
		c := startCaddy(t, config)
		inFlight := func(n int) {
			t.Helper()
			waitForMetric(t, c, fmt.Sprintf(`caddy_rate_limit_in_flight{zone="api"} %d`, n))
		}
		waiting := func(zone, what string, n int) {
			t.Helper()
			waitForMetric(t, c, fmt.Sprintf(`caddy_rate_limit_waiting{for="%s",zone="%s"} %d`, what, zone, n))
		}
		inFlight(0)
		waiting("api", "slot", 0)
		waiting("slow", "limit", 0)
		for _, name := range []string{`in_flight{zone="slow"`, `in_flight{zone="plain"`, `waiting{for="slot",zone="slow"`, `waiting{for="limit",zone="plain"`} {
			wantNoMetric(t, c, "caddy_rate_limit_"+name)
		}

		// A client that waits for a slot leaves. Another one gets a slot.
		one, two := c.hold(t.Context(), "/hold"), c.hold(t.Context(), "/hold")
		g.wait(t, 2)
		inFlight(2)
		ctx, leave := context.WithCancel(t.Context())
		gone := c.hold(ctx, "/hold")
		waiting("api", "slot", 1)
		leave()
		<-gone
		waiting("api", "slot", 0)
		three := c.hold(t.Context(), "/hold")
		waiting("api", "slot", 1)
		g.pass <- struct{}{}
		waiting("api", "slot", 0)
		inFlight(2)

		// A reload, and a configuration without the zone.
		c.reload(t, config+"# again\n")
		inFlight(2)
		c.reload(t, gated(g, "zone other {\n concurrency 5\n}\n"+use))
		inFlight(2)
		waitForMetric(t, c, `caddy_rate_limit_in_flight{zone="other"} 0`)
		g.pass <- struct{}{}
		g.pass <- struct{}{}
		for _, done := range []<-chan int{one, two, three} {
			if status := <-done; status != 200 {
				t.Errorf("status %d", status)
			}
		}
		eventually(t, "the zone has left the metrics", func() bool { return len(metrics(t, c, `caddy_rate_limit_in_flight{zone="api"`)) == 0 })
		wantNoMetric(t, c, `caddy_rate_limit_waiting`)
		c.reload(t, config)

		// Panics, denials, and clients that leave.
		for range 3 {
			<-c.hold(t.Context(), "/?panic=1")
		}
		ctx, leave = context.WithCancel(t.Context())
		one = c.hold(ctx, "/hold")
		g.wait(t, 1)
		inFlight(1)
		leave()
		<-one
		inFlight(0)

		// A connection that becomes another protocol.
		conn, err := net.Dial("tcp", c.site)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhello\n", c.site)
		answer := bufio.NewReader(conn)
		for line := ""; line != "hello\n"; {
			if line, err = answer.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
		}
		inFlight(1)
		_ = conn.Close()
		inFlight(0)

		// A limit that delays, and a client that leaves meanwhile.
		c.get(t, "/slow").want(t, 200)
		ctx, leave = context.WithCancel(t.Context())
		one, two = c.hold(ctx, "/slow"), c.hold(ctx, "/slow")
		waiting("slow", "limit", 2)
		waiting("api", "limit", 0)
		inFlight(2)
		leave()
		<-one
		<-two
		waiting("slow", "limit", 0)
		inFlight(0)
	})
}

// A request that has taken its slot in Redis counts until it ends, also if Redis fails meanwhile.
func TestGaugesInOutage(t *testing.T) {
	long(t)
	t.Parallel()
	server, g := redistest.Start(t), startGate(t)
	c := startCaddy(t, gated(g, fmt.Sprintf("zone api {\n concurrency 3\n}\nredis %s {\n timeout 2s\n}\n", server.Addr)))
	one := c.hold(t.Context(), "/hold")
	g.wait(t, 1)
	server.Kill(t)
	eventually(t, "Redis fails", func() bool {
		c.get(t, "/")
		return c.status(t).Redis[0].State == "down"
	})
	two := c.hold(t.Context(), "/hold")
	g.wait(t, 2)
	waitForMetric(t, c, `caddy_rate_limit_in_flight{zone="api"} 2`)
	g.pass <- struct{}{}
	g.pass <- struct{}{}
	<-one
	<-two
	waitForMetric(t, c, `caddy_rate_limit_in_flight{zone="api"} 0`)
}

// Bans count from their beginning to their end, by whatever they begin and end.
func TestGaugesOfBans(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, use string) {
		const other = "zone other {\n match path /other\n key {query.key}\n gcra 1 1h\n}\n"
		config := site("zone api {\n match path /\n key {query.key}\n gcra 1 1h\n ban 1h\n}\n" +
			"zone tried {\n match path /\n key {query.key}\n gcra 1 1h\n ban 1h\n shadow\n}\n" + other + use)
		c := startCaddy(t, config)
		bans := func(total, inForce int) {
			t.Helper()
			waitForMetric(t, c, fmt.Sprintf(`caddy_rate_limit_bans_total{zone="api"} %d`, total))
			waitForMetric(t, c, fmt.Sprintf(`caddy_rate_limit_bans{zone="api"} %d`, inForce))
		}
		operate := func(method, path, body string) {
			t.Helper()
			if r, err := c.do(method, "http://"+c.admin+"/rate_limit/zones/api/keys/"+path, body); err != nil || r.StatusCode != 204 {
				t.Fatalf("%s %s: %v %d %s", method, path, err, r.StatusCode, r.body)
			}
		}
		for range 3 { // the third is denied by the ban
			for _, key := range []string{"a", "b"} {
				c.get(t, "/?key="+key)
				c.get(t, "/other?key="+key)
			}
		}
		bans(2, 2)
		c.reload(t, config+"# again\n")
		bans(2, 2)
		operate("DELETE", "a/ban", "")
		bans(2, 1)
		operate("PUT", "c/ban", "")
		operate("PUT", "c/ban", `{"duration":"2h"}`)
		bans(4, 2)
		operate("DELETE", "b", "")
		bans(4, 1)
		operate("PUT", "d/ban", `{"duration":"1ms"}`)
		bans(5, 1)
		wantNoMetric(t, c, `caddy_rate_limit_bans{zone="other"`)
		wantNoMetric(t, c, `caddy_rate_limit_bans_total{zone="other"`)
		waitForMetric(t, c, `caddy_rate_limit_bans_total{zone="tried"} 0`)
		waitForMetric(t, c, `caddy_rate_limit_bans{zone="tried"} 0`)

		c.reload(t, strings.ReplaceAll(config, "zone api", "disable_metrics\nzone api"))
		wantNoMetric(t, c, `caddy_rate_limit_bans{`)
		operate("PUT", "e/ban", "")
		c.reload(t, site(other+use))
		wantNoMetric(t, c, `caddy_rate_limit_bans{`)
		waitForMetric(t, c, `caddy_rate_limit_bans_total{zone="api"} 5`)
	})
}

// Bans are counted until they end, and only up to a bound.
func TestBansInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bansInForce
		want := func(n int) {
			t.Helper()
			if got := b.count(); got != n {
				t.Errorf("%d bans are in force, want %d", got, n)
			}
		}
		want(0)
		b.end("nobody")
		b.begin("short", time.Minute)
		b.begin("long", time.Hour)
		b.begin("short", 2*time.Minute) // another one of the same key
		want(2)
		time.Sleep(2*time.Minute - 1)
		want(2)
		time.Sleep(time.Nanosecond)
		want(1)
		b.begin("short", time.Minute)
		b.begin("short", time.Second)
		time.Sleep(time.Second)
		want(1)
		for n := range maxCountedBans + 10 {
			b.begin(fmt.Sprint(n), time.Minute)
		}
		want(maxCountedBans)
		b.begin("0", 2*time.Hour) // is counted already
		want(maxCountedBans)
		time.Sleep(time.Minute)
		b.begin("late", time.Minute) // makes room
		b.end("long")
		want(2)
		time.Sleep(2 * time.Hour)
		want(0)
	})
}

// Overrides are counted by their origin, while they are in force.
func TestGaugesOfOverrides(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, use string) {
		config := site(`zone api {
			key {query.key}
			gcra 1 1h
			override a unlimited
			override b {
				gcra 2 1h
			}
			runtime_overrides
		}
		zone plain {
			gcra 1000000 1s
		}
		` + use)
		c := startCaddy(t, config)
		runtime := func(n int) {
			t.Helper()
			waitForMetric(t, c, `caddy_rate_limit_overrides{from="config",zone="api"} 2`)
			waitForMetric(t, c, fmt.Sprintf(`caddy_rate_limit_overrides{from="runtime",zone="api"} %d`, n))
		}
		operate := func(c *caddyProcess, method, key, body string) {
			t.Helper()
			if r, err := c.do(method, "http://"+c.admin+"/rate_limit/zones/api/keys/"+key+"/override", body); err != nil || r.StatusCode != 204 {
				t.Fatalf("%s %s: %v %d %s", method, key, err, r.StatusCode, r.body)
			}
		}
		runtime(0)
		operate(c, "PUT", "c", `{"unlimited":true}`)
		operate(c, "PUT", "a", `{"unlimited":true,"ttl":"1h"}`)
		runtime(2)
		operate(c, "PUT", "a", `{"unlimited":true,"ttl":"1ms"}`)
		runtime(1)
		operate(c, "PUT", "d", `{"unlimited":true}`)
		operate(c, "DELETE", "c", "")
		runtime(1)
		wantNoMetric(t, c, `caddy_rate_limit_overrides{from="config",zone="plain"`)
		wantNoMetric(t, c, `caddy_rate_limit_overrides{from="runtime",zone="plain"`)
		if use != "" { // another instance learns of an override with the first request
			other := c
			c = startCaddy(t, config)
			runtime(0)
			c.get(t, "/?key=d").want(t, 200)
			runtime(1)
			operate(other, "DELETE", "d", "")
			c.get(t, "/?key=d")
			runtime(0)
		}
		c.reload(t, site("zone api {\n gcra 1 1h\n}\n"+use))
		wantNoMetric(t, c, `caddy_rate_limit_overrides`)
	})
}

// The metrics of Redis say how messages travel. Without Redis there are no gauges of connections.
func TestMetricsOfRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := startCaddy(t, site("zone api {\n gcra 100 1h\n}\n"))
	c.get(t, "/")
	wantNoMetric(t, c, "caddy_rate_limit_redis_queue")
	wantNoMetric(t, c, "caddy_rate_limit_redis_connections")
	waitForMetric(t, c, "caddy_rate_limit_redis_seconds_count 0")
	c.reload(t, site(fmt.Sprintf("zone api {\n gcra 100 1h\n}\nredis %s {\n timeout 30s\n}\n", server.Addr)))
	for range 7 { // one after the other, so each has its message
		c.get(t, "/").want(t, 200)
	}
	for _, name := range []string{"caddy_rate_limit_redis_seconds_count", "caddy_rate_limit_redis_batch_requests_count", "caddy_rate_limit_redis_batch_requests_sum"} {
		waitForMetric(t, c, name+" 7")
	}
	waitForMetric(t, c, "caddy_rate_limit_redis_queue 0")
	waitForMetric(t, c, `caddy_rate_limit_redis_connections{state="in_use"} 0`)
	waitForMetricAbove(t, c, `caddy_rate_limit_redis_connections{state="idle"}`)
}

// The number of metrics stays the same, however many keys there are.
func TestMetricCardinality(t *testing.T) {
	const keys = 100_000
	config := &caddy.Config{
		Admin: &caddy.AdminConfig{Disabled: true},
		AppsRaw: caddy.ModuleMap{
			"rate_limit": json.RawMessage(`{"memory":{"max_keys":10000000},"rate_limits":{
			"all":{"key":"{http.request.header.X-Key}","limits":[{"algorithm":"gcra","events":1,"window":"100h"}],
				"ban":{"duration":"1h"},"concurrency":3,"delay":{"max":"1ms"},"override":{"k1":{"unlimited":true}},"runtime_overrides":true}}}`),
			"http": json.RawMessage(`{"servers":{"s":{"listen":["unix/` + t.TempDir() + `/s"],"routes":[{"handle":[{"handler":"rate_limit"}]}]}}}`),
		},
	}
	if err := caddy.Run(config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = caddy.Stop() })
	app, err := activeApp()
	if err != nil {
		t.Fatal(err)
	}
	h := app.zonesByName["all"][0].handler
	next := caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error { return nil })
	ask := func(first, last int) {
		r, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
		for n := first; n < last; n++ {
			r.Header.Set("X-Key", fmt.Sprint("k", n))
			for range 1 + n%5/4 { // every fifth key is denied, and then banned
				clear(w.Header())
				_ = h.ServeHTTP(w, caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, nil), next)
			}
		}
	}
	series := func() (names []string) {
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(processMetrics)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			for _, m := range family.Metric {
				names = append(names, fmt.Sprint(family.GetName(), m.GetLabel()))
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
	if bans := gaugesOf("all").bans.count(); bans != min(keys/5+2, maxCountedBans) {
		t.Errorf("%d bans are in force", bans)
	}
	if n := gaugesOf("all").inFlight.Load(); n != 0 {
		t.Errorf("%d requests are in flight", n)
	}
}
