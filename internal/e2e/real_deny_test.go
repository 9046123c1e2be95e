//go:build real

package e2e

import (
	"net/http"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// A request that Redis has denied is denied again without asking Redis, except every 750 ms.
//
// Simulated: TestDenyCacheUntil, TestDenyCacheFlood.
func TestRealDenialsAreRemembered(t *testing.T) {
	server := redistest.Start(t)
	c := caddytest.Start(t, caddytest.Site("zone one {\n gcra 1 1h\n}\nredis "+server.Addr+" {\n timeout 30s\n}"))
	c.Get(t, "/").Want(t, 200)
	c.Get(t, "/").Want(t, 429)
	requests := 0
	for before, began := server.Calls(t, "evalsha"), time.Now(); ; {
		statuses := caddytest.Flood(t, 100, 16, "/", c)
		if statuses[http.StatusTooManyRequests] != 100 {
			t.Fatalf("statuses %v", statuses)
		}
		requests += 100
		took := time.Since(began)
		calls := server.Calls(t, "evalsha") - before
		if most := int(took/(750*time.Millisecond)) + 1; calls > most {
			t.Fatalf("Redis was asked %d times about %d requests in %v, want at most %d", calls, requests, took, most)
		}
		if calls >= 2 {
			return
		}
		if took > caddytest.Patient {
			t.Fatalf("Redis was asked %d times about %d requests in %v", calls, requests, took)
		}
	}
}
