package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// Some keys, and some plans, have other limits, or none. The used events of a limit that stays the
// same are not forgotten when other limits change.
func TestOverridesAndPlans(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		config := func(overrides string) string {
			return caddytest.Site(fmt.Sprintf(`zone api {
				key {header.X-Key}
				fixed_window 2 1h
				%s
				plan {header.X-Plan} {
					pro {
						fixed_window 4 1h
						fixed_window 100 10h
					}
					internal unlimited
				}
			}
			%s`, overrides, use))
		}
		c := caddytest.Start(t, config(`override friend unlimited
			override big {
				fixed_window 3 1h
			}`))
		ask := func(key, plan, statuses, limits string) {
			t.Helper()
			for want := range strings.FieldsSeq(statuses) {
				r := c.Get(t, "/", "X-Key", key, "X-Plan", plan)
				if fmt.Sprint(r.StatusCode) != want || r.Field("RateLimit-Policy") != limits {
					t.Errorf("key %q of plan %q: %d with limits %s, want %s with %s", key, plan, r.StatusCode, r.Field("RateLimit-Policy"), want, limits)
				}
			}
		}
		ask("anybody", "", "200 200 429", `"api";q=2;w=3600`)
		ask("stranger", "unheard of", "200 200 429", `"api";q=2;w=3600`)
		ask("friend", "", "200 200 200 200", "")
		ask("friend", "pro", "200", "") // an override goes first
		ask("big", "pro", "200 200 200 429", `"api";q=3;w=3600`)
		ask("customer", "pro", "200 200 200 200 429", `"api";q=4;w=3600, "api/2";q=100;w=36000`)
		ask("customer", "", "429", `"api";q=2;w=3600`) // of the same budget
		ask("us", "internal", "200 200 200 200", "")
		caddytest.WaitForMetric(t, c, `caddy_rate_limit_requests_total{outcome="overridden",zone="api"} 9`)

		c.Reload(t, config(""))
		ask("friend", "", "200 200 429", `"api";q=2;w=3600`)
		ask("customer", "pro", "429", `"api";q=4;w=3600, "api/2";q=100;w=36000`)
		ask("anybody", "", "429", `"api";q=2;w=3600`)
		ask("big", "", "429", `"api";q=2;w=3600`)
	})
}
