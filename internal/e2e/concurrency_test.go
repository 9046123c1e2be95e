package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// waitForSlots waits until so many slots are free, as a request that has one sees it.
func waitForSlots(t *testing.T, c *caddytest.Caddy, n int) {
	t.Helper()
	look := func() caddytest.Response { return c.Get(t, "/") }
	caddytest.EventuallySees(t, fmt.Sprint(n, " slots are free"), look, func(r caddytest.Response) bool {
		return r.Field("RateLimit") == fmt.Sprintf(`"api";r=%d`, n-1)
	})
}

// gated is a site that limits requests and passes them on to a gate.
func gated(g *gate, rateLimit string) string {
	return strings.Replace(caddytest.Site(rateLimit), "respond ok", "@ready path /ready\nrespond @ready ok\ntest_hold\nreverse_proxy "+g.address+" {\n stream_close_delay 1h\n}", 1)
}

// startGated starts two Caddys with a zone and a store, or one Caddy in memory.
func startGated(t *testing.T, zone, use string) (g *gate, one, other *caddytest.Caddy) {
	g = startGate(t)
	one = caddytest.Start(t, gated(g, zone+use))
	if use == "" {
		return g, one, one
	}
	return g, one, caddytest.Start(t, gated(g, zone+use))
}

// wantPassed waits for the ends of requests, which must have status 200.
func wantPassed(t *testing.T, held ...<-chan int) {
	t.Helper()
	for _, done := range held {
		if status := <-done; status != 200 {
			t.Errorf("a request ended with status %d", status)
		}
	}
}

// Never more requests are in flight than may be, over all instances, and each that ends
// makes room for another one, however it ends.
func TestConcurrency(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		g, one, other := startGated(t, "zone api {\n key {query.key}\n concurrency 3\n}\n", use)
		var held []<-chan int
		for i := range 3 {
			held = append(held, []*caddytest.Caddy{one, other}[i%2].Hold(context.Background(), "/hold"))
		}
		g.wait(t, 3)
		for _, c := range []*caddytest.Caddy{one, other} {
			c.Get(t, "/").Want(t, 429, "Retry-After", "1", "RateLimit-Policy", `"api";q=3;qu="concurrent-requests"`, "RateLimit", `"api";r=0;t=1`)
		}
		one.WaitForLog(t, `"reason":"concurrency","limit":"concurrency 3"`)
		other.Get(t, "/?key=another").Want(t, 200, "Retry-After", "", "RateLimit", `"api";r=2`)
		g.pass <- struct{}{}
		waitForSlots(t, one, 1)
		g.pass <- struct{}{}
		g.pass <- struct{}{}
		wantPassed(t, held...)
		waitForSlots(t, other, 3)

		// A panic, and clients that disconnect.
		for range 5 {
			<-one.Hold(context.Background(), "/?panic=1")
		}
		waitForSlots(t, other, 3)
		waitForSlots(t, one, 3) // the request that other asked with may hold its slot a little longer
		ctx, leave := context.WithCancel(context.Background())
		for range 3 {
			held = append(held, one.Hold(ctx, "/hold"))
		}
		g.wait(t, 3)
		other.Get(t, "/").Want(t, 429)
		leave()
		waitForSlots(t, other, 3)

		// A connection that becomes another protocol holds its slot until it is closed.
		conn := upgrade(t, one)
		waitForSlots(t, other, 2)
		_ = conn.Close()
		waitForSlots(t, other, 3)
	})
}

// Requests in flight, and connections that have become another protocol, keep their slots over a reload. They give them
// back, also if the new configuration has another store.
func TestConcurrencyOverReload(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		g := startGate(t)
		config := gated(g, "zone api {\n concurrency 2\n}\n"+use)
		c := caddytest.Start(t, config)
		for _, next := range []string{config + "# again\n", caddytest.Site("zone another {\n fixed_window 1 1h\n}")} {
			held := c.Hold(context.Background(), "/hold")
			g.wait(t, 1)
			stream := upgrade(t, c)
			c.Get(t, "/").Want(t, 429)
			c.Reload(t, next)
			if strings.Contains(next, "api") {
				c.Get(t, "/").Want(t, 429)
			}
			_ = stream.Close()
			g.pass <- struct{}{}
			wantPassed(t, held)
			c.Reload(t, config)
			waitForSlots(t, c, 2)
		}
		if log := c.Logged(); strings.Contains(log, "a call to Redis failed") {
			t.Errorf("a slot was not given back: %s", log)
		}
	})
}

// A slot that one Caddy gives back is found by a request that waits in another Caddy.
func TestWaitForSlotOfAnotherInstance(t *testing.T) {
	t.Parallel()
	g := startGate(t)
	config := gated(g, "zone api {\n concurrency 1\n delay 1h\n}\nredis "+redistest.Shared(t).Addr+" {\n timeout 30s\n}\n")
	one, other := caddytest.Start(t, config), caddytest.Start(t, config)
	for range 3 {
		held := one.Hold(t.Context(), "/hold")
		g.wait(t, 1)
		waiting := other.Hold(t.Context(), "/hold")
		other.WaitForWaiters(t, 1)
		g.pass <- struct{}{}
		<-held
		g.wait(t, 1)
		g.pass <- struct{}{}
		wantPassed(t, waiting)
	}
}

// A reload changes the number of slots while requests wait. A waiting request keeps the number that it came with.
func TestWaitForSlotDuringReloadOfConcurrency(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		g := startGate(t)
		config := func(slots int) string {
			return gated(g, fmt.Sprintf("zone api {\n concurrency %d\n delay 1h\n}\n%s", slots, use))
		}
		c := caddytest.Start(t, config(1))
		var held []<-chan int
		for n := range 2 { // one waits
			held = append(held, c.Hold(t.Context(), "/hold"))
			g.wait(t, 1)
			c.WaitForWaiters(t, n)
		}
		c.Reload(t, config(2))
		held = append(held, c.Hold(t.Context(), "/hold"))
		c.WaitForWaiters(t, 2)
		g.pass <- struct{}{}
		g.wait(t, 2) // the waiting one, and then the new one beside it
		for range 2 {
			g.pass <- struct{}{}
		}
		wantPassed(t, held...)
	})
}

// A tenant whose requests hold and await slots lets the first request of another tenant pass, in another Caddy, too.
func TestShare(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		g, one, other := startGated(t,
			"zone api {\n concurrency 2 share {query.tenant}{http.rate_limit.request.json.more} weight {query.weight}\n delay 1h\n}\n", use)
		a := []<-chan int{one.Hold(t.Context(), "/hold?tenant=a"), one.Hold(t.Context(), "/hold?tenant=a")}
		g.wait(t, 2)
		a = append(a, one.Hold(t.Context(), "/hold?tenant=a"))
		one.WaitForWaiters(t, 1)
		b := other.Hold(t.Context(), "/?tenant=b")
		other.WaitForWaiters(t, map[bool]int{true: 2, false: 1}[one == other])
		explained := other.Operate(t, 200, "POST", "explain", `{"url":"http://`+other.Site+`/?tenant=b&weight=7",`+
			`"headers":{"Content-Type":["application/json"]},"body":"{\"more\":\"c\"}"}`).Text
		if !strings.Contains(explained, `in zone api the tenant of the request is \"bc\", with weight 7`) {
			t.Error(explained)
		}
		g.pass <- struct{}{}
		other.WaitForWaiters(t, 0) // b doesn't wait behind the last request of a
		g.pass <- struct{}{}
		g.pass <- struct{}{}
		wantPassed(t, append(a, b)...)
	})
}

// A key is banned while its request waits: it is denied when it asks next.
func TestWaitForSlotAndBan(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		g := startGate(t)
		c := caddytest.Start(t, gated(g, "zone api {\n key static\n concurrency 1\n fixed_window 100 1h\n ban 1h\n delay 1h\n}\n"+use))
		held := c.Hold(t.Context(), "/hold")
		g.wait(t, 1)
		waiting := c.Hold(t.Context(), "/")
		c.WaitForWaiters(t, 1)
		c.Operate(t, 204, "PUT", banPath("static"), "")
		if status := <-waiting; status != 429 {
			t.Errorf("status %d", status)
		}
		caddytest.WaitForMetric(t, c, `caddy_rate_limit_requests_total{outcome="banned",zone="api"} 1`)
		g.pass <- struct{}{}
		<-held
	})
}
