package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
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

// Never more requests are in flight than may be, over all instances, and each that ends
// makes room for another one, however it ends.
func TestConcurrency(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		g := startGate(t)
		config := gated(g, "zone api {\n key {query.key}\n concurrency 3\n}\n"+use)
		one := caddytest.Start(t, config)
		other := one
		if use != "" {
			other = caddytest.Start(t, config)
		}
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
		for _, done := range held {
			if status := <-done; status != 200 {
				t.Errorf("a request in flight ended with %d", status)
			}
		}
		waitForSlots(t, other, 3)

		// A panic, and clients that leave.
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

		// Many at once.
		g.mu.Lock()
		g.most = 0
		g.mu.Unlock()
		statuses := caddytest.Flood(t, 400, 16, "/short", one, other)
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.most != 3 || statuses[200] < 3 || statuses[429] == 0 || statuses[200]+statuses[429] != 400 {
			t.Errorf("%d were in flight at once, and the answers were %v", g.most, statuses)
		}
	})
}

// Slots and limits are taken together or not at all, and count as one zone.
func TestConcurrencyAndLimits(t *testing.T) {
	t.Parallel()
	g := startGate(t)
	c := caddytest.Start(t, gated(g, `zone api {
		key {query.key}
		fixed_window 5 1000h
		token_bucket 100 1000h
		concurrency 1
		override free unlimited
		settle {
			cost {query.tokens}
		}
	}
	problem_json
	headers draft x_ratelimit`))
	const policy = `"api";q=5;w=3600000, "api/2";q=100;w=3600000, "api/3";q=1;qu="concurrent-requests"`
	held := c.Hold(context.Background(), "/hold")
	g.wait(t, 1)
	for range 10 { // and none of them is charged
		r := c.Get(t, "/")
		r.Want(t, 429, "Retry-After", "1", "RateLimit-Policy", policy, "RateLimit", `"api";r=4, "api/2";r=99, "api/3";r=0;t=1`, "X-RateLimit-Limit", "1", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "1")
		r.WantProblem(t, 429, "quota-exceeded", "api/3")
		c.Get(t, "/?key=free").Want(t, 200, "RateLimit-Policy", `"api";q=1;qu="concurrent-requests"`, "RateLimit", `"api";r=0`)
	}
	g.pass <- struct{}{}
	<-held
	for range 3 { // the true cost is not charged to slots
		c.Get(t, "/?key=c&tokens=2").Want(t, 200)
	}
	r := c.Get(t, "/?key=b")
	if got := r.Field("RateLimit"); r.StatusCode != 200 || !strings.HasPrefix(got, `"api";r=4;t=`) || !strings.HasSuffix(got, `, "api/3";r=0`) {
		t.Errorf("%d %s", r.StatusCode, got)
	}
	for _, line := range []string{
		`caddy_rate_limit_requests_total{outcome="denied",zone="api"} 10`,
		`caddy_rate_limit_requests_total{outcome="allowed",zone="api"} 5`,
		`caddy_rate_limit_requests_total{outcome="overridden",zone="api"} 10`,
	} {
		caddytest.WaitForMetric(t, c, line)
	}
}

// In the shadow a full zone lets pass, says nothing, and counts what it would deny.
func TestConcurrencyInTheShadow(t *testing.T) {
	t.Parallel()
	g := startGate(t)
	c := caddytest.Start(t, gated(g, "zone api {\n concurrency 1\n shadow\n}"))
	c.Hold(context.Background(), "/hold")
	g.wait(t, 1)
	c.Get(t, "/").Want(t, 200, "RateLimit", "", "RateLimit-Policy", "")
	caddytest.WaitForMetric(t, c, `caddy_rate_limit_requests_total{outcome="shadow_denied",zone="api"} 1`)
	g.pass <- struct{}{}
}

// A request that a limit delays holds its slot, until its client leaves. Then the next one gets the
// slot, and the charge that was given back.
func TestConcurrencyAndDelay(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		g := startGate(t)
		c := caddytest.Start(t, gated(g, "zone api {\n key static\n token_bucket 1 1h 1\n delay 10h\n concurrency 1\n}\n"+use))
		c.Get(t, "/").Want(t, 200)
		ctx, leave := context.WithCancel(context.Background())
		held := c.Hold(ctx, "/")
		caddytest.WaitForMetric(t, c, `caddy_rate_limit_requests_total{outcome="delayed",zone="api"} 1`)
		for delayed := 2; delayed <= 4; delayed++ {
			nextCtx, leaveNext := context.WithCancel(context.Background())
			next := c.Hold(nextCtx, "/")
			c.WaitForWaiters(t, 1)
			leave()
			<-held
			caddytest.WaitForMetric(t, c, fmt.Sprintf(`caddy_rate_limit_requests_total{outcome="delayed",zone="api"} %d`, delayed))
			if reset := c.ResetAfter(t, "api", "static"); reset < 3600 || reset > 7200 {
				t.Errorf("the budget is full again after %v s, want at most 7200: one request has passed, and one is delayed", reset)
			}
			held, leave = next, leaveNext
		}
		leave()
		<-held
	})
}

// A request that takes longer than a slot lasts keeps its slot, and so it does over a
// reload.
func TestConcurrencyOfLongRequests(t *testing.T) {
	caddytest.Long(t)
	t.Parallel()
	run := func(t *testing.T, use string, wait func(part int)) {
		t.Helper()
		g := startGate(t)
		config := gated(g, "zone api {\n concurrency 1\n}\n"+use)
		c := caddytest.Start(t, config)
		held := c.Hold(context.Background(), "/hold")
		g.wait(t, 1)
		for part := 1; part <= 2; part++ {
			c.Get(t, "/").Want(t, 429)
			wait(part)
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
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		run(t, "", func(int) {}) // slots in memory don't expire
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		server, clock := redistest.StartClock(t)
		// wait lets two thirds of the expiry pass for Redis, twice, and waits each time until the slot is renewed.
		wait := func(part int) {
			ahead := time.Duration(part) * redisstore.DefaultSlotExpiry * 2 / 3
			clock.Set(t, ahead)
			look := func() time.Duration {
				keys := server.Client.Keys(t.Context(), "caddy_rl:{%}:api:*c").Val()
				if len(keys) != 1 {
					return 0
				}
				return server.Client.PTTL(t.Context(), keys[0]).Val()
			}
			caddytest.EventuallySees(t, "the slot is renewed", look, func(left time.Duration) bool { return left > redisstore.DefaultSlotExpiry*5/6 })
		}
		run(t, "redis "+server.Addr+" {\n timeout 30s\n}\n", wait)
	})
}

// Others get the slots of a killed instance when its count has expired, and not before.
func TestConcurrencyOfTheKilled(t *testing.T) {
	caddytest.Long(t)
	t.Parallel()
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
func TestConcurrencyInOutage(t *testing.T) {
	caddytest.Long(t)
	t.Parallel()
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
func TestConcurrencyWhenRedisHangs(t *testing.T) {
	caddytest.Long(t)
	t.Parallel()
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
