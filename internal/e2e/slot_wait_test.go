package e2e

import (
	"context"
	"fmt"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// A request waits for a slot, and passes when one is given back. Other keys don't wait. A client that
// leaves is charged nothing. A request that waits too long is denied as one that doesn't wait.
func TestWaitForSlot(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		g := startGate(t)
		c := caddytest.Start(t, gated(g, `zone api {
			key {query.key}
			concurrency 2
			fixed_window 100 1000h
			delay 1h
		}
		`+use))
		first, second := c.Hold(t.Context(), "/hold?key=k"), c.Hold(t.Context(), "/hold?key=k")
		g.wait(t, 2)
		ctx, leave := context.WithCancel(t.Context())
		left := c.Hold(ctx, "/hold?key=k")
		c.WaitForWaiters(t, 1)
		third := c.Hold(t.Context(), "/hold?key=k")
		c.WaitForWaiters(t, 2)
		c.Get(t, "/?key=other").Want(t, 200)
		leave()
		<-left
		c.WaitForWaiters(t, 1)
		caddytest.WaitForMetric(t, c, `caddy_rate_limit_requests_total{outcome="delayed",zone="api"} 0`)
		g.pass <- struct{}{}
		caddytest.WaitForMetric(t, c, `caddy_rate_limit_requests_total{outcome="delayed",zone="api"} 1`)
		g.wait(t, 2)
		for range 2 {
			g.pass <- struct{}{}
		}
		for _, done := range []<-chan int{first, second, third} {
			if status := <-done; status != 200 {
				t.Errorf("status %d", status)
			}
		}
		if n := c.Remaining(t, "api", "k"); n != 97 {
			t.Errorf("%d events remain, want 97: three requests passed", n)
		}
	})
}

// Time is up for a request that waits.
func TestWaitForSlotTooLong(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		g := startGate(t)
		c := caddytest.Start(t, gated(g, "zone api {\n concurrency 1\n delay 30ms\n}\n"+use))
		held := c.Hold(t.Context(), "/hold")
		g.wait(t, 1)
		for range 3 {
			c.Get(t, "/").Want(t, 429, "Retry-After", "1", "RateLimit-Policy", `"api";q=1;qu="concurrent-requests"`, "RateLimit", `"api";r=0;t=1`)
		}
		caddytest.WaitForMetric(t, c, `caddy_rate_limit_requests_total{outcome="denied",zone="api"} 3`)
		c.WaitForLog(t, `"reason":"concurrency","limit":"concurrency 1"`)
		c.WaitForWaiters(t, 0)
		g.pass <- struct{}{}
		<-held
		waitForSlots(t, c, 1)
	})
}

// A slot that one Caddy gives back is found by a request that waits in another Caddy.
func TestWaitForSlotOfAnotherInstance(t *testing.T) {
	t.Parallel()
	g := startGate(t)
	config := gated(g, "zone api {\n concurrency 1\n delay 1h\n}\nredis "+redistest.Start(t).Addr+" {\n timeout 30s\n}\n")
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
		if status := <-waiting; status != 200 {
			t.Errorf("status %d", status)
		}
	}
}

// Requests of two Caddys flood one key. No more of them are in flight than may be, and all pass.
func TestWaitForSlotsUnderFlood(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		g := startGate(t)
		config := gated(g, "zone api {\n concurrency 3\n delay 10m\n}\n"+use)
		caddys := []*caddytest.Caddy{caddytest.Start(t, config)}
		if use != "" {
			caddys = append(caddys, caddytest.Start(t, config))
		}
		held := []<-chan int{caddys[0].Hold(t.Context(), "/hold"), caddys[0].Hold(t.Context(), "/hold"), caddys[0].Hold(t.Context(), "/hold")}
		g.wait(t, 3)
		waiting := caddys[0].Hold(t.Context(), "/")
		caddys[0].WaitForWaiters(t, 1) // so all slots are taken when the flood begins
		for range held {               // the gate lets them pass in any order
			g.pass <- struct{}{}
		}
		for _, done := range append(held, waiting) {
			<-done
		}
		statuses := caddytest.Flood(t, 200, 32, "/short", caddys...)
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.most != 3 || statuses[200] != 200 {
			t.Errorf("%d were in flight at once, and the answers were %v", g.most, statuses)
		}
	})
}

// A request goes on waiting after a reload, in one line with those of the new configuration.
func TestWaitForSlotDuringReload(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		g := startGate(t)
		config := gated(g, "zone api {\n concurrency 1\n delay 1h\n}\n"+use)
		c := caddytest.Start(t, config)
		held := c.Hold(t.Context(), "/hold")
		g.wait(t, 1)
		waiting := c.Hold(t.Context(), "/hold?old")
		c.WaitForWaiters(t, 1)
		c.Reload(t, config+"# again\n")
		later := c.Hold(t.Context(), "/hold?new")
		c.WaitForWaiters(t, 2)
		g.pass <- struct{}{}
		<-held
		g.wait(t, 1)
		c.WaitForWaiters(t, 1)
		g.pass <- struct{}{}
		if status := <-waiting; status != 200 {
			t.Errorf("the request of the old configuration: status %d", status)
		}
		g.wait(t, 1)
		g.pass <- struct{}{}
		if status := <-later; status != 200 {
			t.Errorf("the request of the new configuration: status %d", status)
		}
	})
}

// A reload changes the number of slots while requests wait. They get the slots of the new configuration,
// also in one line with its requests: all at once if there are enough, and none while there are too few.
func TestWaitForSlotDuringReloadOfConcurrency(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		g := startGate(t)
		config := func(slots int) string {
			return gated(g, fmt.Sprintf("zone api {\n concurrency %d\n delay 1h\n}\n%s", slots, use))
		}
		c := caddytest.Start(t, config(1))
		var held []<-chan int
		hold := func() { held = append(held, c.Hold(t.Context(), "/hold")) }
		hold()
		g.wait(t, 1)
		for n := range 3 {
			hold()
			c.WaitForWaiters(t, n+1)
		}
		c.Reload(t, config(4))
		g.wait(t, 4)
		hold()
		c.WaitForWaiters(t, 1)
		c.Reload(t, config(2))
		hold()
		c.WaitForWaiters(t, 2)
		for range 2 { // two are left, so no slot is free
			g.pass <- struct{}{}
		}
		g.wait(t, 2)
		c.WaitForWaiters(t, 2)
		if most := g.forgetMost(); most != 4 {
			t.Errorf("%d requests were in flight at once, want 4", most)
		}
		for n := range 4 {
			g.pass <- struct{}{}
			g.wait(t, min(2, 3-n))
		}
		for _, done := range held {
			if status := <-done; status != 200 {
				t.Errorf("status %d", status)
			}
		}
		if most := g.forgetMost(); most != 2 {
			t.Errorf("%d requests were in flight at once, want 2", most)
		}
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
		c.Operate(t, 204, "PUT", keyPath("static")+"/ban", "")
		if status := <-waiting; status != 429 {
			t.Errorf("status %d", status)
		}
		caddytest.WaitForMetric(t, c, `caddy_rate_limit_requests_total{outcome="banned",zone="api"} 1`)
		g.pass <- struct{}{}
		<-held
	})
}
