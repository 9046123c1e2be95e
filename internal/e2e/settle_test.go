package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// The true cost of a response is charged, however the response ends.
func TestSettle(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		zone := func(name, settle string) string {
			return fmt.Sprintf(`zone %s {
				match path /%[1]s
				key {query.key}
				cost 10
				token_bucket 1 1000h 100
				settle {
					%s
				}
			}
			`, name, settle)
		}
		tokens := "cost {http.response.header.X-Tokens}"
		config := caddytest.Site(zone("failed", "match status 401 4xx 500") + zone("tokens", tokens) +
			zone("both", "match header X-Tokens *\n"+tokens) + use)
		c := caddytest.Start(t, strings.Replace(config, "respond ok", "@proxied not path /ready\n@failing query error=*\nheader -X-Tokens\ntest_hold\nerror @failing 502\nreverse_proxy @proxied "+answering(t)+"\nrespond @ready ok\n@ready path /ready", 1))
		key := 0
		left := func(path string) (rest string) {
			t.Helper()
			// A request that gives everything back shows how many events it would leave.
			r, err := c.Do("GET", fmt.Sprintf("http://%s%s?key=%d&status=200&tokens=0", c.Site, path, key), "")
			if err != nil {
				t.Fatal(err)
			}
			_, rest, _ = strings.Cut(r.Field("RateLimit"), ";r=")
			rest, _, _ = strings.Cut(rest, ";")
			n, err := strconv.Atoi(rest)
			if err != nil {
				t.Fatalf("%d %s", r.StatusCode, r.Field("RateLimit"))
			}
			return strconv.Itoa(n + 10)
		}
		for _, test := range []struct{ path, query, left string }{
			{"/failed", "status=200", "100"},
			{"/failed", "status=401", "90"},
			{"/failed", "status=403", "90"},
			{"/failed", "status=503", "100"},
			{"/failed", "status=500", "90"},
			{"/failed", "panic=1", "90"},
			{"/failed", "status=200&abort=1", "100"},
			{"/tokens", "tokens=10", "90"},
			{"/tokens", "tokens=3", "97"},
			{"/tokens", "tokens=0", "100"},
			{"/tokens", "tokens=35", "65"},
			{"/tokens", "tokens=2.5", "97"},
			{"/tokens", "tokens=1000", "0"}, // as far as there is room
			{"/tokens", "tokens=many", "90"},
			{"/tokens", "tokens=-1", "90"},
			{"/tokens", "", "90"},
			{"/tokens", "early=1&tokens=20", "80"},
			{"/tokens", "trailer=40", "60"},
			{"/tokens", "tokens=20&abort=1", "80"},
			{"/tokens", "panic=1", "90"},
			{"/tokens", "error=502", "90"},
			{"/both", "tokens=20", "80"},
			{"/both", "status=200", "100"},
		} {
			key++
			// Not GET, which the client would send again when the connection ends.
			_, _ = c.Do("POST", fmt.Sprintf("http://%s%s?key=%d&%s", c.Site, test.path, key, test.query), "")
			if test.left == "0" {
				r, err := c.Do("GET", fmt.Sprintf("http://%s%s?key=%d&tokens=0", c.Site, test.path, key), "")
				if err != nil || r.StatusCode != 429 {
					t.Errorf("%s?%s: %v %d, want nothing to be left", test.path, test.query, err, r.StatusCode)
				}
				continue
			}
			if got := left(test.path); got != test.left {
				t.Errorf("%s?%s leaves %s of 100, want %s", test.path, test.query, got, test.left)
			}
		}

		// A client that leaves in the middle of a stream has had what it was told.
		key++
		ctx, leave := context.WithCancel(context.Background())
		r, err := http.NewRequestWithContext(ctx, "GET", fmt.Sprintf("http://%s/tokens?key=%d&tokens=50&stream=1", c.Site, key), nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := caddytest.Client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(response.Body).ReadString('\n'); line != "data: begins\n" {
			t.Errorf("the stream begins with %q, %v", line, err)
		}
		leave()
		look := func() string { return left("/tokens") }
		caddytest.EventuallySees(t, "50 remain after a client has left", look, func(n string) bool { return n == "50" })

		// A connection that becomes another protocol works, and costs what its response says.
		key++
		conn, err := net.Dial("tcp", c.Site)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "GET /tokens?key=%d&tokens=30 HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: lines\r\n\r\nhello\n", key, c.Site)
		answer, _ := io.ReadAll(conn)
		_ = conn.Close() // the upstream has ended it; it is over when both have
		if text := string(answer); !strings.HasPrefix(text, "HTTP/1.1 101 ") || !strings.HasSuffix(text, "you said hello\n") {
			t.Errorf("the upgraded connection said %q", text)
		}
		caddytest.EventuallySees(t, "70 remain after an upgrade", look, func(n string) bool { return n == "70" })
	})
}

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
