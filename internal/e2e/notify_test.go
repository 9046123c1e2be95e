package e2e

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// A share of a calendar is reported once over three instances, whatever is given back meanwhile: by a request, by the true cost
// of a response, and for 100% also by the first denial.
func TestNotifyOnce(t *testing.T) {
	t.Parallel()
	const keys, events = 20, 100
	server := redistest.Start(t)
	config := caddytest.Site(fmt.Sprintf(`zone plan {
	key {header.X-Key}
	calendar %d year
	cost 3
	settle {
		cost {header.X-True}
	}
	notify 50%% 80%% 100%%
}
redis %s
log_key`, events, server.Addr))
	var caddys []*caddytest.Caddy
	for range 3 {
		caddys = append(caddys, caddytest.Start(t, config))
	}
	var all sync.WaitGroup
	for k := range keys {
		all.Go(func() {
			for i := range 90 {
				cost := fmt.Sprint(i * 7 % 5) // 0 to 4: some is given back, and some is charged in addition
				caddys[(i+k)%3].Get(t, "/", "X-Key", fmt.Sprint("k", k), "X-True", cost)
			}
		})
	}
	all.Wait()
	count := func(percent int, key string) (n int) {
		for _, c := range caddys {
			for line := range strings.Lines(c.Logged()) {
				if strings.Contains(line, `"msg":"a share of a limit is used"`) && strings.Contains(line, fmt.Sprintf(`"percent":%d,`, percent)) &&
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
