package ratelimit

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
)

// waitForSlots waits until so many slots are free, as a request that has one sees it.
func waitForSlots(t *testing.T, c *caddyProcess, n int) {
	t.Helper()
	said := ""
	eventually(t, fmt.Sprint(n, " slots are free"), func() bool {
		said = c.get(t, "/").field("RateLimit")
		return said == fmt.Sprintf(`"api";r=%d`, n-1)
	})
}

// hold sends a request that stays in flight; what came of it arrives when it ends.
func (c *caddyProcess) hold(ctx context.Context, path string) <-chan int {
	done := make(chan int, 1)
	go func() {
		request, err := http.NewRequestWithContext(ctx, "POST", "http://"+c.site+path, nil)
		if err != nil {
			panic(err)
		}
		r, err := client.Do(request)
		if err != nil {
			done <- 0
			return
		}
		_ = r.Body.Close()
		done <- r.StatusCode
	}()
	return done
}

// gated is a site that limits requests and passes them on to a gate.
func gated(g *gate, rateLimit string) string {
	return strings.Replace(site(rateLimit), "respond ok", "@ready path /ready\nrespond @ready ok\ntest_hold\nreverse_proxy "+g.address+" {\n stream_close_delay 1h\n}", 1)
}

// Never more requests are in flight than may be, over all instances, and each that ends
// makes room for another one, however it ends.
func TestConcurrency(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, use string) {
		g := startGate(t)
		config := gated(g, "zone api {\n key {query.key}\n concurrency 3\n}\n"+use)
		one := startCaddy(t, config)
		other := one
		if use != "" {
			other = startCaddy(t, config)
		}
		var held []<-chan int
		for i := range 3 {
			held = append(held, []*caddyProcess{one, other}[i%2].hold(context.Background(), "/hold"))
		}
		g.wait(t, 3)
		for _, c := range []*caddyProcess{one, other} {
			c.get(t, "/").want(t, 429, "Retry-After", "1", "RateLimit-Policy", `"api";q=3;qu="concurrent-requests"`, "RateLimit", `"api";r=0;t=1`)
		}
		one.waitForLog(t, `"reason":"concurrency","limit":"concurrency 3"`)
		other.get(t, "/?key=another").want(t, 200, "Retry-After", "", "RateLimit", `"api";r=2`)
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
			<-one.hold(context.Background(), "/?panic=1")
		}
		waitForSlots(t, other, 3)
		waitForSlots(t, one, 3) // the request that other asked with may hold its slot a little longer
		ctx, leave := context.WithCancel(context.Background())
		for range 3 {
			held = append(held, one.hold(ctx, "/hold"))
		}
		g.wait(t, 3)
		other.get(t, "/").want(t, 429)
		leave()
		waitForSlots(t, other, 3)

		// A connection that becomes another protocol holds its slot until it is closed.
		conn, err := net.Dial("tcp", one.site)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhello\n", one.site)
		answer := bufio.NewReader(conn)
		for line := ""; line != "hello\n"; {
			if line, err = answer.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
		}
		waitForSlots(t, other, 2)
		_ = conn.Close()
		waitForSlots(t, other, 3)

		// Many at once.
		g.mu.Lock()
		g.most = 0
		g.mu.Unlock()
		statuses := flood(t, 400, 16, "/short", one, other)
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
	c := startCaddy(t, gated(g, `zone api {
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
	held := c.hold(context.Background(), "/hold")
	g.wait(t, 1)
	for range 10 { // and none of them is charged
		r := c.get(t, "/")
		r.want(t, 429, "Retry-After", "1", "RateLimit-Policy", policy, "RateLimit", `"api";r=4, "api/2";r=99, "api/3";r=0;t=1`, "X-RateLimit-Limit", "1", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "1")
		r.wantProblem(t, 429, "quota-exceeded", "api/3")
		c.get(t, "/?key=free").want(t, 200, "RateLimit-Policy", `"api";q=1;qu="concurrent-requests"`, "RateLimit", `"api";r=0`)
	}
	g.pass <- struct{}{}
	<-held
	for range 3 { // the true cost is not charged to slots
		c.get(t, "/?key=c&tokens=2").want(t, 200)
	}
	r := c.get(t, "/?key=b")
	if got := r.field("RateLimit"); r.StatusCode != 200 || !strings.HasPrefix(got, `"api";r=4;t=`) || !strings.HasSuffix(got, `, "api/3";r=0`) {
		t.Errorf("%d %s", r.StatusCode, got)
	}
	for _, line := range []string{
		`caddy_rate_limit_requests_total{outcome="denied",zone="api"} 10`,
		`caddy_rate_limit_requests_total{outcome="allowed",zone="api"} 5`,
		`caddy_rate_limit_requests_total{outcome="overridden",zone="api"} 10`,
	} {
		waitForMetric(t, c, line)
	}
}

// In the shadow a full zone lets pass, says nothing, and counts what it would deny.
func TestConcurrencyInTheShadow(t *testing.T) {
	t.Parallel()
	g := startGate(t)
	c := startCaddy(t, gated(g, "zone api {\n concurrency 1\n shadow\n}"))
	c.hold(context.Background(), "/hold")
	g.wait(t, 1)
	c.get(t, "/").want(t, 200, "RateLimit", "", "RateLimit-Policy", "")
	waitForMetric(t, c, `caddy_rate_limit_requests_total{outcome="shadow_denied",zone="api"} 1`)
	g.pass <- struct{}{}
}

// A request that a limit delays holds its slot, until its client leaves. Then the next one gets the
// slot, and the charge that was given back.
func TestConcurrencyAndDelay(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, use string) {
		g := startGate(t)
		c := startCaddy(t, gated(g, "zone api {\n key static\n token_bucket 1 1h 1\n delay 10h\n concurrency 1\n}\n"+use))
		c.get(t, "/").want(t, 200)
		ctx, leave := context.WithCancel(context.Background())
		held := c.hold(ctx, "/")
		waitForMetric(t, c, `caddy_rate_limit_requests_total{outcome="delayed",zone="api"} 1`)
		for delayed := 2; delayed <= 4; delayed++ {
			nextCtx, leaveNext := context.WithCancel(context.Background())
			next := c.hold(nextCtx, "/")
			c.waitForWaiters(t, 1)
			leave()
			<-held
			waitForMetric(t, c, fmt.Sprintf(`caddy_rate_limit_requests_total{outcome="delayed",zone="api"} %d`, delayed))
			if reset := c.resetAfter(t, "api", "static"); reset < 3600 || reset > 7200 {
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
	long(t)
	t.Parallel()
	eachStore(t, func(t *testing.T, use string) {
		g := startGate(t)
		config := gated(g, "zone api {\n concurrency 1\n}\n"+use)
		c := startCaddy(t, config)
		held := c.hold(context.Background(), "/hold")
		g.wait(t, 1)
		reloaded := false
		for began := time.Now(); time.Since(began) < redisstore.DefaultSlotExpiry+5*time.Second; time.Sleep(100 * time.Millisecond) {
			if r := c.get(t, "/"); r.StatusCode != 429 {
				t.Fatalf("status %d while another request is in flight for %v", r.StatusCode, time.Since(began))
			}
			if !reloaded && time.Since(began) > redisstore.DefaultSlotExpiry/2 {
				reloaded = true
				c.reload(t, "# again\n"+config)
			}
		}
		g.pass <- struct{}{}
		if status := <-held; status != 200 {
			t.Errorf("the long request ended with %d", status)
		}
		waitForSlots(t, c, 1)
	})
}

// Others get the slots of a killed instance when its count has expired, and not before.
func TestConcurrencyOfTheKilled(t *testing.T) {
	long(t)
	t.Parallel()
	g := startGate(t)
	config := gated(g, "zone api {\n concurrency 2\n}\nredis "+redistest.Start(t).Addr+" {\n timeout 30s\n}")
	killed := startCaddy(t, config)
	c := startCaddy(t, config)
	killed.hold(context.Background(), "/hold")
	killed.hold(context.Background(), "/hold")
	g.wait(t, 2)
	c.get(t, "/").want(t, 429)
	began := time.Now()
	if err := killed.process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	waitForSlots(t, c, 2)
	// They were renewed a third of their time ago at most, when it was killed.
	if took := time.Since(began); took < redisstore.DefaultSlotExpiry/2 {
		t.Errorf("the slots were there again after %v", took)
	}
}

// A Redis that loses its data gets the counts of requests in flight again. While it fails, an
// instance goes on counting its own requests, also earlier ones.
func TestConcurrencyInOutage(t *testing.T) {
	long(t)
	t.Parallel()
	g := startGate(t)
	server := redistest.Start(t)
	c := startCaddy(t, gated(g, "zone api {\n concurrency 2\n}\nredis "+server.Addr+" {\n timeout 30s\n}"))
	c.hold(context.Background(), "/hold")
	c.hold(context.Background(), "/hold")
	g.wait(t, 2)
	if err := server.Client.FlushAll(context.Background()).Err(); err != nil {
		t.Fatal(err)
	}
	for range 10 { // Redis doesn't know what is in flight, but the instance does
		c.get(t, "/").want(t, 429, "Retry-After", "1", "RateLimit", `"api";r=0;t=1`)
	}
	server.Kill(t)
	for began := time.Now(); time.Since(began) < 4*time.Second; time.Sleep(50 * time.Millisecond) {
		c.get(t, "/").want(t, 429, "Retry-After", "1")
	}
	for range 2 {
		g.pass <- struct{}{}
	}
	waitForSlots(t, c, 2)
	c.hold(context.Background(), "/hold")
	c.hold(context.Background(), "/hold")
	g.wait(t, 2)
	server.Restart(t)
	eventually(t, "Redis knows of what began without it", func() bool {
		return server.Client.Keys(context.Background(), "caddy_rl:{%}:api:*c").Val() != nil && c.get(t, "/").StatusCode == 429
	})
	for range 2 {
		g.pass <- struct{}{}
	}
	waitForSlots(t, c, 2)
}

// Redis hangs for longer than timeout, and then replies. Requests that were on their way to Redis get no
// slots on top of those that the instance has granted meanwhile.
func TestConcurrencyWhenRedisHangs(t *testing.T) {
	long(t)
	t.Parallel()
	const slots, requests = 5, 40
	g := startGate(t)
	server := redistest.Start(t)
	c := startCaddy(t, gated(g, fmt.Sprintf("zone api {\n concurrency %d\n}\nredis %s {\n timeout 300ms\n}", slots, server.Addr)))
	for range 2 {
		waitForSlots(t, c, slots)
		if err := server.Client.Do(t.Context(), "CLIENT", "PAUSE", 400, "ALL").Err(); err != nil {
			t.Fatal(err)
		}
		statuses := make(chan int, requests)
		for range requests {
			go func() { statuses <- <-c.hold(context.Background(), "/hold") }()
			time.Sleep(10 * time.Millisecond)
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
			case <-time.After(10 * time.Millisecond):
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
