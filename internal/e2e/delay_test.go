package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// Delayed requests pass one by one, none sooner than if it had come when there was room. Requests
// that would have to wait too long are denied at once.
func TestDelay(t *testing.T) {
	t.Parallel()
	const spacing = 100 * time.Millisecond
	limits := []string{
		"token_bucket 1 100ms 2", "gcra 1 100ms 2", "leaky_bucket 1 100ms 2", "smooth 1 100ms 1", "fixed_window 2 200ms",
	}
	caddytest.EachStore(t, func(t *testing.T, use string) {
		config := ""
		for _, limit := range limits {
			name, _, _ := strings.Cut(limit, " ")
			config += fmt.Sprintf("zone %[1]s {\n match path /%[1]s\n %[2]s\n delay 600ms\n}\n", name, limit)
		}
		c := caddytest.Start(t, caddytest.Site(config+use))
		for _, limit := range limits {
			name, _, _ := strings.Cut(limit, " ")
			t.Run(name, func(t *testing.T) {
				passed, denied := caddytest.Timed(t, c, 40, "/"+name)
				if len(passed) < 8 || denied == 0 { // two at once, six that wait, and more if this machine is slow
					t.Fatalf("%d requests passed and %d were denied", len(passed), denied)
				}
				if last := passed[len(passed)-1]; last > 10*time.Second {
					t.Errorf("the last request passed after %v", last)
				}
				for i, at := range passed {
					soonest := time.Duration(max(i-1, 0)) * spacing
					if name == "fixed_window" {
						soonest = time.Duration(i/2) * 2 * spacing
					}
					if at < soonest {
						t.Errorf("request %d passed after %v, which is before %v", i+1, at, soonest)
					}
				}
				metrics, err := c.Do("GET", "http://"+c.Admin+"/metrics", "")
				if err != nil {
					t.Fatal(err)
				}
				if want := fmt.Sprintf("caddy_rate_limit_requests_total{outcome=\"denied\",zone=%q} %d\n", name, denied); !strings.Contains(metrics.Text, want) {
					t.Errorf("the metrics lack %s", want)
				}
				if !strings.Contains(metrics.Text, fmt.Sprintf("caddy_rate_limit_requests_total{outcome=\"delayed\",zone=%q} ", name)) {
					t.Error("the metrics lack delayed requests")
				}
			})
		}
	})
}

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

// A request that panics behind the handler has left its place before.
func TestDelayPlacesAndPanics(t *testing.T) {
	t.Parallel()
	caddytest.Long(t)
	c := caddytest.Start(t, caddytest.Site("zone api {\n gcra 1 1s 1\n delay 5s 1\n}\n}\ntest_hold {\n"))
	for range 3 {
		if r, err := c.Do("GET", "http://"+c.Site+"/?panic", ""); err == nil {
			t.Errorf("a request that panics got status %d", r.StatusCode)
		}
	}
	c.Get(t, "/").Want(t, 200)
}

// Requests that are held when their configuration ends are held to the end, and pass.
func TestDelayDuringReload(t *testing.T) {
	caddytest.Long(t)
	t.Parallel()
	config := caddytest.Site("zone api {\n gcra 1 4s 1\n delay 5s\n}")
	c := caddytest.Start(t, config)
	began := time.Now()
	c.Get(t, "/").Want(t, 200)
	done := make(chan caddytest.Response, 1)
	var took time.Duration
	go func() {
		r, _ := c.Do("GET", "http://"+c.Site+"/", "")
		took = time.Since(began)
		done <- r
	}()
	caddytest.WaitForMetric(t, c, `caddy_rate_limit_requests_total{outcome="delayed",zone="api"} 1`)
	if r := c.Load(t, strings.Replace(config, "respond ok", "respond later", 1), "text/caddyfile"); r.StatusCode != 200 {
		t.Fatal(r.Text)
	}
	r := <-done
	if took < 4*time.Second {
		t.Errorf("the delayed request was answered after %v", took)
	}
	if r.Response == nil || r.StatusCode != 200 || r.Text != "ok" {
		t.Errorf("the delayed request got %+v", r)
	}
	if r := c.Get(t, "/"); r.Text != "later" {
		t.Errorf("the new configuration answers %q", r.Text)
	}
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
