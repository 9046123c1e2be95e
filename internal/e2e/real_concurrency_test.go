//go:build real

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
)

// A request that takes longer than a slot lasts keeps its slot, and so it does over a reload.
//
// Simulated: TestFaults, TestConcurrencyOverReload.
func TestRealConcurrencyOfLongRequests(t *testing.T) {
	g := startGate(t)
	server, clock := redistest.StartClock(t)
	config := gated(g, "zone api {\n concurrency 1\n}\nredis "+server.Addr+" {\n timeout 30s\n}\n")
	c := caddytest.Start(t, config)
	held := c.Hold(context.Background(), "/hold")
	g.wait(t, 1)
	look := func() time.Duration {
		keys := server.Client.Keys(t.Context(), "caddy_rl:{%}:api:*c").Val()
		if len(keys) != 1 {
			return 0
		}
		return server.Client.PTTL(t.Context(), keys[0]).Val()
	}
	for part := 1; part <= 2; part++ {
		c.Get(t, "/").Want(t, 429)
		clock.Set(t, time.Duration(part)*redisstore.DefaultSlotExpiry*2/3)
		caddytest.EventuallySees(t, "the slot is renewed", look, func(left time.Duration) bool { return left > redisstore.DefaultSlotExpiry*5/6 })
		c.Get(t, "/").Want(t, 429)
		if part == 1 {
			c.Reload(t, "# again\n"+config)
		}
	}
	g.pass <- struct{}{}
	if status := <-held; status != 200 {
		t.Errorf("the long request ended with %d", status)
	}
	waitForSlots(t, c, 1)
}

// Others get the slots of a killed instance when its count has expired, and not before.
//
// Simulated: TestFaults.
func TestRealConcurrencyOfTheKilled(t *testing.T) {
	g := startGate(t)
	server, clock := redistest.StartClock(t)
	config := gated(g, "zone api {\n concurrency 2\n}\nredis "+server.Addr+" {\n timeout 30s\n}")
	killed := caddytest.StartProcess(t, config)
	c := caddytest.Start(t, config)
	killed.Hold(context.Background(), "/hold")
	killed.Hold(context.Background(), "/hold")
	g.wait(t, 2)
	c.Get(t, "/").Want(t, 429)
	if err := killed.Process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-killed.Ended
	// They were renewed a third of their time ago at most, when it was killed.
	clock.Set(t, redisstore.DefaultSlotExpiry/3)
	c.Get(t, "/").Want(t, 429)
	clock.Set(t, redisstore.DefaultSlotExpiry+time.Second)
	waitForSlots(t, c, 2)
}

// A Redis that loses its data gets the counts of requests in flight again. While it fails, an
// instance goes on counting its own requests, also earlier ones.
//
// Simulated: TestFaults, TestFailoverKnowsItsOwnSlots.
func TestRealConcurrencyInOutage(t *testing.T) {
	g := startGate(t)
	server := redistest.Start(t)
	c := caddytest.Start(t, gated(g, "zone api {\n concurrency 2\n}\nredis "+server.Addr+" {\n timeout 30s\n}"))
	c.Hold(context.Background(), "/hold")
	c.Hold(context.Background(), "/hold")
	g.wait(t, 2)
	if err := server.Client.FlushAll(context.Background()).Err(); err != nil {
		t.Fatal(err)
	}
	for range 10 { // Redis doesn't know what is in flight, but the instance does
		c.Get(t, "/").Want(t, 429, "Retry-After", "1", "RateLimit", `"api";r=0;t=1`)
	}
	server.Kill(t)
	for began := time.Now(); time.Since(began) < 4*time.Second; time.Sleep(50 * time.Millisecond) { // the outage has to last
		c.Get(t, "/").Want(t, 429, "Retry-After", "1")
	}
	for range 2 {
		g.pass <- struct{}{}
	}
	waitForSlots(t, c, 2)
	c.Hold(context.Background(), "/hold")
	c.Hold(context.Background(), "/hold")
	g.wait(t, 2)
	server.Restart(t)
	look := func() []string { return server.Client.Keys(context.Background(), "caddy_rl:{%}:api:*c").Val() }
	caddytest.EventuallySees(t, "Redis knows of what began without it", look, func(keys []string) bool { return keys != nil })
	c.Until(t, 429)
	for range 2 {
		g.pass <- struct{}{}
	}
	waitForSlots(t, c, 2)
}

// Redis hangs for longer than timeout, and then replies. Requests that were on their way to Redis get no
// slots on top of those that the instance has granted meanwhile.
//
// Simulated: TestFaults, TestFailoverDeniesLateGrants.
func TestRealConcurrencyWhenRedisHangs(t *testing.T) {
	const slots, requests = 5, 40
	g := startGate(t)
	server := redistest.Start(t)
	c := caddytest.Start(t, gated(g, fmt.Sprintf("zone api {\n concurrency %d\n}\nredis %s {\n timeout 300ms\n}", slots, server.Addr)))
	for range 2 {
		waitForSlots(t, c, slots)
		if err := server.Client.Do(t.Context(), "CLIENT", "PAUSE", 400, "ALL").Err(); err != nil {
			t.Fatal(err)
		}
		statuses := make(chan int, requests)
		for range requests {
			go func() { statuses <- <-c.Hold(context.Background(), "/hold") }()
			time.Sleep(10 * time.Millisecond) // requests come before, during and after the pause of Redis
		}
		ended := 0
		for timeout := time.After(time.Minute); ended < requests; {
			g.mu.Lock()
			inFlight := g.inFlight
			g.mu.Unlock()
			var pass chan struct{}
			if ended+inFlight == requests { // all are decided
				pass = g.pass
			}
			select {
			case <-statuses:
				ended++
			case pass <- struct{}{}:
			case <-time.After(10 * time.Millisecond): // a poll of the requests in flight
			case <-timeout:
				t.Fatalf("%d requests have ended, and %d are in flight", ended, inFlight)
			}
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.most > slots {
		t.Errorf("%d requests were in flight at once, want at most %d", g.most, slots)
	}
}
