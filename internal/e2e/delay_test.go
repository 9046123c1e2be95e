package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// Each delayed request has a place. A client that leaves gets its charge back and frees its place.
func TestDelayPlacesAndClientsThatLeave(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		c := caddytest.Start(t, fmt.Sprintf(`{
	admin {$ADMIN}
}
{$SITE}
log
handle /ready {
	respond ok
}
handle /reset {
	rate_limit {
		zone api {
			gcra 1 1h 1
			cost 0
		}
		%[1]s
	}
	respond "{http.rate_limit.api.reset}"
}
handle {
	rate_limit {
		zone api {
			gcra 1 1h 1
			delay 10h 3
		}
		%[1]s
	}
	respond ok
}`, use))
		// reset waits until the budget is untouched again in so many hours.
		reset := func(hours int) {
			t.Helper()
			caddytest.EventuallySees(t, fmt.Sprintf("the budget is untouched again in %d h", hours), func() (seconds int) {
				_, _ = fmt.Sscan(c.Get(t, "/reset").Text, &seconds)
				return seconds
			}, func(seconds int) bool { return seconds > 3600*(hours-1) && seconds <= 3600*hours })
		}
		// hold sends a request that is to be held, and returns how its client leaves.
		var clients sync.WaitGroup
		hold := func() (leave func()) {
			ctx, leave := context.WithCancel(context.Background())
			clients.Go(func() {
				request, _ := http.NewRequestWithContext(ctx, "GET", "http://"+c.Site+"/", nil)
				if r, err := caddytest.Client.Do(request); err == nil {
					_ = r.Body.Close()
					t.Errorf("a request that was to be held got %d", r.StatusCode)
				}
			})
			return leave
		}
		c.Get(t, "/").Want(t, 200)
		reset(1)
		var leave [3]func()
		for range 2 { // the places are free again the second time
			for i := range leave {
				leave[i] = hold()
				reset(2 + i)
			}
			c.Get(t, "/").Want(t, 429, "Retry-After", "14400")
			for i := 2; i >= 0; i-- {
				leave[i]()
				reset(1 + i)
			}
		}
		// The charge of a client that leaves stays while others wait behind it.
		first := hold()
		reset(2)
		last := hold()
		reset(3)
		first()
		c.WaitForLog(t, `"status":499`)
		reset(3)
		last()
		reset(1)
		clients.Wait()
		if log := c.Logged(); !strings.Contains(log, "rate limit exceeded") || strings.Contains(log, `"level":"error"`) {
			t.Errorf("log: %s", log)
		}
	})
}

// Requests that are held when their configuration ends are held to the end, and pass.
func TestDelayDuringReload(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		g := startGate(t)
		config := gated(g, "zone api {\n key static\n concurrency 1\n delay 10h\n}\n"+use)
		c := caddytest.Start(t, config)
		first := c.Hold(t.Context(), "/hold")
		g.wait(t, 1)
		held := make(chan caddytest.Response, 1)
		go func() {
			r, _ := c.Do("GET", "http://"+c.Site+"/", "")
			held <- r
		}()
		c.WaitForWaiters(t, 1)
		c.Reload(t, strings.Replace(config, "test_hold\n", "header X-Configuration next\n", 1))
		c.WaitForWaiters(t, 1)
		g.pass <- struct{}{}
		if status := <-first; status != 200 {
			t.Errorf("the request before it ended with %d", status)
		}
		r := <-held
		if r.Response == nil {
			t.Fatal("the delayed request got no response")
		}
		r.Want(t, 200, "X-Configuration", "")
		c.Get(t, "/").Want(t, 200, "X-Configuration", "next")
	})
}

// A charge that can't be given back is reported, and nothing else happens.
func TestDelayRefundFails(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := caddytest.Start(t, caddytest.Site(fmt.Sprintf("zone api {\n gcra 1 1h 1\n delay 10h\n}\nredis %s {\n timeout 30s\n}", server.Addr)))
	c.Get(t, "/").Want(t, 200)
	held, leave := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		request, _ := http.NewRequestWithContext(held, "GET", "http://"+c.Site+"/", nil)
		_, err := caddytest.Client.Do(request) //nolint:bodyclose // there is none
		done <- err
	}()
	caddytest.WaitForMetric(t, c, `caddy_rate_limit_requests_total{outcome="delayed",zone="api"} 1`)
	server.Client.ShutdownNoSave(context.Background())
	leave()
	if err := <-done; err == nil {
		t.Error("the request was answered")
	}
	c.WaitForLog(t, "correcting what a request was charged, giving back its slot, or claiming a share for notify")
}
