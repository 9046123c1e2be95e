package e2e

import (
	"context"
	"fmt"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// A key that has half of the places leaves the others to other keys.
func TestPlacesOfKeys(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, caddytest.Site("zone api {\n key {query.key}\n gcra 1 1h 1\n delay 10h 4\n}"))
	clients, leave := context.WithCancel(t.Context())
	var ended []<-chan int
	held := 0
	hold := func(key string) {
		t.Helper()
		held++
		ended = append(ended, c.Hold(clients, "/?key="+key))
		caddytest.WaitForMetric(t, c, fmt.Sprintf(`caddy_rate_limit_requests_total{outcome="delayed",zone="api"} %d`, held))
	}
	c.Get(t, "/?key=a").Want(t, 200)
	hold("a")
	hold("a")
	c.Get(t, "/?key=a").Want(t, 429)
	c.Get(t, "/?key=b").Want(t, 200)
	hold("b")
	c.Get(t, "/?key=b").Want(t, 429)
	c.Get(t, "/?key=c").Want(t, 200)
	hold("c")
	leave()
	for _, status := range ended {
		if status := <-status; status != 0 {
			t.Errorf("a request that was to be held got %d", status)
		}
	}
}
