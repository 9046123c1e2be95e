package e2e

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

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
