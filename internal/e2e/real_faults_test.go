//go:build real

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/relay"
)

// Redis, or the connection to it, has faults under load. While Redis alone decides, two Caddys
// together never let through more than the limit. No request waits for much longer than the
// timeout. Clients see only 200, 429 and 503. A Redis that fails for all gets no requests, and
// decides again when the fault has gone. Nothing is left behind. A client saw each charge of Redis,
// or the answer was lost.
//
// Simulated: TestFaults, TestLostReplies.
func TestRealFaultsUnderLoad(t *testing.T) {
	const limit, timeout = 500, 1500 * time.Millisecond
	server := redistest.Start(t)
	user := func(rules ...string) func(*testing.T) {
		return func(t *testing.T) {
			t.Helper()
			errtest.None(t, server.Client.ACLSetUser(context.Background(), "limiter", rules...).Err())
		}
	}
	command := func(args ...any) func(*testing.T) {
		return func(t *testing.T) {
			t.Helper()
			errtest.None(t, server.Client.Do(context.Background(), args...).Err())
		}
	}
	user("on", ">secret", "~*", "+@all")(t)
	link := caddytest.StartLink(t, server.Addr)
	up := func(f relay.Fault) func(*testing.T) { return func(*testing.T) { link.Set(f, relay.Fault{}) } }
	down := func(f relay.Fault) func(*testing.T) { return func(*testing.T) { link.Set(relay.Fault{}, f) } }
	mend := func(*testing.T) { link.Set(relay.Fault{}, relay.Fault{}) }
	config := caddytest.Site(fmt.Sprintf("zone api {\n key {path}\n fixed_window %d 1000d\n sliding_log %[1]d 1000d\n token_bucket %[1]d 1000d\n gcra %[1]d 1000d\n leaky_bucket %[1]d 1000d\n}\nredis %s {\n username limiter\n password secret\n timeout %v\n}\non_store_error deny",
		limit, link.Addr, timeout))
	caddys := []*caddytest.Caddy{caddytest.Start(t, config), caddytest.Start(t, config)}

	const (
		nothing = iota
		some    // requests fail
		all     // of them do, and Redis is left alone
	)
	tests := []struct {
		name       string
		begin, end func(*testing.T) // without an end it happens again and again
		fails      int
		loses      bool // answers to requests that were charged
		afresh     int  // how often budgets begin again
	}{
		{"latency", down(relay.Fault{Delay: 20 * time.Millisecond, Jitter: 10 * time.Millisecond}), mend, nothing, false, 0},
		{"tiny pieces", down(relay.Fault{Piece: 1}), mend, nothing, false, 0},
		{"latency above the timeout", down(relay.Fault{Delay: 2 * time.Second}), mend, all, true, 0},
		{"latency above the timeout to Redis", up(relay.Fault{Delay: 2 * time.Second}), mend, all, false, 0},
		{"bandwidth", down(relay.Fault{Rate: 1000}), mend, some, true, 0},
		{"reset", down(relay.Fault{Delay: 20 * time.Millisecond, Reset: true}), mend, all, true, 0},
		{"reset before Redis", up(relay.Fault{Delay: 20 * time.Millisecond, Reset: true}), mend, all, false, 0},
		{"connections that end amid an answer", down(relay.Fault{Limit: 2000}), mend, some, true, 0},
		{"no answers", down(relay.Fault{Silent: true}), mend, all, true, 0},
		{"no questions", up(relay.Fault{Silent: true}), mend, all, false, 0},
		{"out of memory", command("CONFIG", "SET", "maxmemory", 1), command("CONFIG", "SET", "maxmemory", 0), all, false, 0},
		{"permission", user("-set"), user("+set"), all, true, 0}, // after the log of five limits
		{"a replica", command("REPLICAOF", "127.0.0.1", 1), command("REPLICAOF", "NO", "ONE"), all, false, 0},
		{"SCRIPT FLUSH", command("SCRIPT", "FLUSH"), func(*testing.T) {}, nothing, false, 0},
		{"FLUSHALL", command("FLUSHALL"), func(*testing.T) {}, nothing, false, 1},
		{"connections killed", command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"), nil, some, true, 0},
	}
	opened := func(c *caddytest.Caddy) int {
		return strings.Count(c.Logged(), "Redis is failing, and Caddy won't ask it until it recovers")
	}
	asked := func(t *testing.T) (failed float64) { // in vain
		t.Helper()
		for _, c := range caddys {
			for labels, n := range caddytest.Metrics(t, c, "caddy_rate_limit_store_errors_total") {
				if !strings.Contains(labels, `"open"`) {
					failed += n
				}
			}
		}
		return failed
	}
	caddytest.Flood(t, 32, 16, "/", caddys...)
	for n, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			path := fmt.Sprint("/", n)
			var had, openings []int
			for _, c := range caddys {
				had, openings = append(had, goroutines(t, c)), append(openings, opened(c))
			}
			failed := asked(t)
			connections := 16
			if test.name == "bandwidth" { // whose answers together are too large for it
				connections = 192
			}
			requests := startLoad(t, connections, path, caddys...)
			caddytest.EventuallySees(t, "some pass", requests.soFar, func(y tally) bool { return y.statuses[200] >= 50 })
			test.begin(t)
			for began := time.Now(); ; time.Sleep(20 * time.Millisecond) { // a poll, while the load continues
				if test.end == nil {
					test.begin(t)
				}
				enough := time.Since(began) > 300*time.Millisecond
				switch test.fails {
				case some:
					enough = enough && requests.soFar().statuses[503] > 0
				case all:
					enough = opened(caddys[0]) > openings[0] && opened(caddys[1]) > openings[1]
				}
				if enough {
					break
				}
				if time.Since(began) > caddytest.Patient {
					t.Errorf("statuses %v", requests.soFar().statuses)
					break
				}
			}
			if test.end != nil {
				test.end(t)
			}
			ended := time.Now()
			for _, c := range caddys {
				caddytest.WaitForMetric(t, c, "caddy_rate_limit_store_state 0")
			}
			back := time.Since(ended)
			requests.stop()
			for _, c := range caddys { // the last of the failures may have opened a breaker again
				caddytest.WaitForMetric(t, c, "caddy_rate_limit_store_state 0")
			}
			requests.only(t, 200, 429, 503)
			if requests.slowest > timeout+slack {
				t.Errorf("a request took %v", requests.slowest)
			}
			lost := asked(t) - failed
			if failed := requests.statuses[503] > 0; failed != (test.fails != nothing) || failed != (lost > 0) {
				t.Errorf("statuses %v, Redis asked in vain %v times", requests.statuses, lost)
			}
			after := caddytest.Flood(t, limit+50, 16, path, caddys...)
			if after[200]+after[429] != limit+50 || after[429] < 50 {
				t.Errorf("afterwards: %v", after)
			}
			if !test.loses {
				lost = 0
			}
			admitted := requests.statuses[200] + after[200]
			if most := limit * (1 + test.afresh); admitted > most || float64(admitted) < limit-lost {
				t.Errorf("%d admitted, want %d at most, and %v at least", admitted, most, limit-lost)
			}
			for i, c := range caddys {
				waitForGoroutines(t, c, had[i])
			}
			t.Logf("statuses %v, slowest %v, works again after %v, %d admitted",
				requests.statuses, requests.slowest.Round(time.Millisecond), back.Round(time.Millisecond), admitted)
		})
	}
}

// goroutines counts those of a Caddy, without any that serve idle connections.
func goroutines(t *testing.T, c *caddytest.Caddy) (n int) {
	t.Helper()
	c.CloseIdleConnections()
	r, err := c.Do("GET", "http://"+c.Admin+"/debug/pprof/goroutine?debug=1", "")
	if err == nil {
		_, err = fmt.Sscanf(r.Text, "goroutine profile: total %d", &n)
	}
	errtest.None(t, err)
	return n
}

// waitForGoroutines waits until a Caddy has no more than it had.
func waitForGoroutines(t *testing.T, c *caddytest.Caddy, had int) {
	t.Helper()
	look := func() int { return goroutines(t, c) }
	caddytest.EventuallySees(t, fmt.Sprintf("it has no more goroutines than the %d it had", had), look, func(n int) bool { return n <= had })
}
