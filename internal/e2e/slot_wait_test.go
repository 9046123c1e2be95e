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
		for _, done := range held {
			if status := <-done; status != 200 {
				t.Errorf("status %d", status)
			}
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
