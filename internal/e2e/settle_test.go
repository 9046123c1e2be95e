package e2e

import (
	"context"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// A client that leaves before the header of the response is charged, although the application may have done its
// work: the response would have been one that match charges.
func TestSettleWithoutResponse(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		g := startGate(t)
		c := caddytest.Start(t, gated(g, `zone api {
			concurrency 3
		}
		zone logins {
			match path /hold
			fixed_window 3 1000h
			settle {
				match status 401 403
			}
		}
		`+use))
		for range 3 {
			ctx, leave := context.WithCancel(t.Context())
			left := c.Hold(ctx, "/hold")
			g.wait(t, 1)
			leave()
			<-left
			waitForSlots(t, c, 3) // the request is corrected
		}
		if status := <-c.Hold(t.Context(), "/hold"); status != 429 {
			t.Errorf("status %d after three clients have left, want 429", status)
		}
	})
}

// Requests in flight reserve their cost. So no more of them pass at once than remain, even if none
// is charged in the end.
func TestSettleReserves(t *testing.T) {
	t.Parallel()
	g := startGate(t)
	c := caddytest.Start(t, gated(g, "zone z {\n fixed_window 3 1h\n settle {\n match status 401\n }\n}"))
	var held []<-chan int
	for range 3 {
		held = append(held, c.Hold(t.Context(), "/hold"))
	}
	g.wait(t, 3)
	for range 7 {
		c.Get(t, "/").Want(t, 429)
	}
	for range held { // the gate lets them pass in any order
		g.pass <- struct{}{}
	}
	for _, done := range held {
		if status := <-done; status != 200 {
			t.Errorf("status %d of a request in flight", status)
		}
	}
	for range 10 {
		c.Get(t, "/").Want(t, 200)
	}
}

// The additional cost of a response is charged to the limits of its request, also if the key gets
// an override meanwhile.
func TestSettleWithOverrideSetMeanwhile(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		g := startGate(t)
		c := caddytest.Start(t, gated(g, "zone api {\n key {query.key}\n cost 10\n token_bucket 1 1000h 100\n runtime_overrides\n settle {\n cost 30\n }\n}\n"+use))
		held := c.Hold(t.Context(), "/hold?key=k")
		g.wait(t, 1)
		c.Operate(t, 204, "PUT", keyPath("k")+"/override", `{"limits":[{"algorithm":"gcra","events":500,"window":"1000h"}]}`)
		c.Get(t, "/?key=k").Want(t, 200, "RateLimit-Policy", `"api";q=500;w=3600000`) // this instance knows of it
		g.pass <- struct{}{}
		<-held
		look := func() int64 { return seenKey(t, c, "k").Budgets[0].Limits[0].Remaining }
		caddytest.EventuallySees(t, "the override is charged what another request cost", look, func(n int64) bool { return n == 470 })
		c.Operate(t, 204, "DELETE", keyPath("k")+"/override", "")
		caddytest.EventuallySees(t, "the request has cost 30", look, func(n int64) bool { return n == 70 })
	})
}
