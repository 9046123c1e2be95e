//go:build real

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// Delayed requests pass one by one, none sooner than if it had come when there was room. Requests
// that would have to wait too long are denied at once.
//
// Simulated: TestQueueLaws, TestQueueOfManyKeys.
func TestRealDelay(t *testing.T) {
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
