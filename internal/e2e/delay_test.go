package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

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
