package e2e

import (
	"fmt"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// hundred is a limit that lets 100 requests through, and no more for a long time.
func hundred(algorithm string) string {
	if algorithm == "calendar" {
		return "calendar 100 year"
	}
	if algorithm == "smooth" { // one more than it has saved up
		return "smooth 100 10000d 99"
	}
	return algorithm + " 100 10000d"
}

// The promise: not one request more than configured, and not one fewer.
func TestExactOverThreeInstances(t *testing.T) {
	caddytest.Long(t)
	t.Parallel()
	server := redistest.Shared(t)
	config := ""
	for _, a := range algorithms.All() {
		config += fmt.Sprintf("zone %s {\n match path /%s\n key {client_ip}\n %s\n}\n", a.Name, a.Name, hundred(a.Name))
	}
	config = caddytest.Site(config + fmt.Sprintf("redis %s {\n timeout 30s\n}\n", server.Addr))
	var instances []*caddytest.Caddy
	for range 3 {
		instances = append(instances, caddytest.Start(t, config))
	}
	for _, a := range algorithms.All() {
		statuses := caddytest.Flood(t, 450, 48, "/"+a.Name, instances...)
		if statuses[200] != 100 || statuses[429] != 350 {
			t.Errorf("%s: 450 requests to three instances with a limit of 100: %v", a.Name, statuses)
		}
	}
}
