//go:build real

package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// Reports of a second come to one of two instances, and more of them than the slots of both can serve. They pass in the
// order in which they came.
//
// Simulated: TestOneLine.
func TestRealLineOfTwoInstances(t *testing.T) {
	const reports = 30
	var mu sync.Mutex
	var passed []string
	upstream := caddytest.StartUpstream(t, func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		passed = append(passed, r.URL.Path)
		mu.Unlock()
		time.Sleep(time.Second)
	})
	config := strings.Replace(caddytest.Site("zone api {\n concurrency 2\n delay 10s\n}\nredis "+redistest.Start(t).Addr),
		"respond ok", "@ready path /ready\nrespond @ready ok\nreverse_proxy "+upstream, 1)
	caddys := []*caddytest.Caddy{caddytest.Start(t, config), caddytest.Start(t, config)}
	began, results := time.Now(), make([]<-chan int, reports)
	for n := range reports {
		time.Sleep(time.Until(began.Add(time.Duration(n) * 400 * time.Millisecond)))
		results[n] = caddys[min(n%4, 1)].Hold(t.Context(), fmt.Sprint("/", n))
	}
	for n, result := range results {
		if status := <-result; status != 200 {
			t.Errorf("report %d has status %d", n, status)
		}
	}
	if took := time.Since(began); took > 17500*time.Millisecond {
		t.Errorf("%v in all", took)
	}
	for place, path := range passed {
		number := 0
		_, _ = fmt.Sscanf(path, "/%d", &number)
		if place > number+2 {
			t.Errorf("report %d passed as number %d: %v", number, place, passed)
		}
	}
	t.Log(passed)
}
