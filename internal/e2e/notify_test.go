package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/caddy-rate-limit/caddy-rate-limit/examples/webhook"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// A share of a calendar is reported once over three instances, whatever is given back in between. A request can reach it, or
// the true cost of a response.
func TestNotifyOnce(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, testNotifyOnce)
}

func testNotifyOnce(t *testing.T, use string) {
	const keys, events = 20, 100
	instances := 1
	if use != "" {
		instances = 3
	}
	config := caddytest.Site(fmt.Sprintf(`zone plan {
	key {header.X-Key}
	calendar %d year
	settle {
		cost {header.X-True}
	}
	notify 50%% 80%% 100%%
}
%s
log_key`, events, use))
	var caddys []*caddytest.Caddy
	for range instances {
		caddys = append(caddys, caddytest.Start(t, config))
	}
	var all sync.WaitGroup
	for k := range keys {
		all.Go(func() {
			for i := range 90 {
				cost := fmt.Sprint(i * 7 % 5) // 0 to 4: some is given back, and some is charged in addition
				caddys[(i+k)%instances].Get(t, "/", "X-Key", fmt.Sprint("k", k), "X-True", cost)
			}
		})
	}
	all.Wait()
	count := func(percent int, key string) (n int) {
		for _, c := range caddys {
			for line := range strings.Lines(c.Logged()) {
				if strings.Contains(line, `"msg":"a key has used a share of its limit"`) && strings.Contains(line, fmt.Sprintf(`"percent":%d,`, percent)) &&
					strings.Contains(line, fmt.Sprintf(`"key":"%s"`, key)) {
					n++
				}
			}
		}
		return n
	}
	for _, percent := range []int{50, 80, 100} {
		for k := range keys {
			key := fmt.Sprint("k", k)
			caddytest.EventuallySees(t, fmt.Sprintf("%d%% of %s is reported", percent, key), func() int { return count(percent, key) }, func(n int) bool { return n > 0 })
			if n := count(percent, key); n != 1 {
				t.Errorf("%d%% of %s was reported %d times, want once", percent, key, n)
			}
		}
	}
}

// The example tells a webhook once at 80% and once at 100%, with the key.
func TestExampleWebhook(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var told []string
	hook := caddytest.StartUpstream(t, func(_ http.ResponseWriter, r *http.Request) {
		var e struct {
			Event string
			Data  struct {
				Zone, Key, Limit, Until string
				Percent, Count          int
			}
		}
		errtest.Report(t, json.NewDecoder(r.Body).Decode(&e))
		errtest.Report(t, errtest.Of(time.Parse(time.RFC3339, e.Data.Until)))
		mu.Lock()
		defer mu.Unlock()
		told = append(told, fmt.Sprintf("%s %s %s %d%% of %s, %d", e.Event, e.Data.Zone, e.Data.Key, e.Data.Percent, e.Data.Limit, e.Data.Count))
	})
	config := caddytest.ReadFile(t, "examples/webhook/Caddyfile")
	for old, with := range map[string]string{
		"localhost:9000/notify": hook, "localhost:6379": redistest.Start(t).Addr, ":8080 {": "{$SITE} {", "\tevents {": "\tadmin {$ADMIN}\n\tevents {",
	} {
		if !strings.Contains(config, old) {
			t.Fatalf("the example has no %s", old)
		}
		config = strings.Replace(config, old, with, 1)
	}
	c := caddytest.Start(t, config)
	for range 7 {
		c.Get(t, "/", "X-Api-Key", "alice")
	}
	const limit = "calendar 5 month Europe/Berlin"
	want := []string{ // what is reported together has no order
		"rate_limit_threshold plan alice 100% of " + limit + ", 1", "rate_limit_threshold plan alice 80% of " + limit + ", 1",
	}
	caddytest.EventuallySees(t, "the webhook is called twice", func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Sorted(slices.Values(told))
	}, func(told []string) bool { return slices.Equal(told, want) })
}
