package e2e

import (
	"fmt"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

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
		c.Operate(t, 204, "PUT", banPath("static"), "")
		if status := <-waiting; status != 429 {
			t.Errorf("status %d", status)
		}
		caddytest.WaitForMetric(t, c, `caddy_rate_limit_requests_total{outcome="banned",zone="api"} 1`)
		g.pass <- struct{}{}
		<-held
	})
}
