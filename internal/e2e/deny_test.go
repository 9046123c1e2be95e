package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// A request that Redis has denied is denied again without asking Redis, except every 750 ms. The
// response names the limits that deny, and no others.
func TestDenialsAreRemembered(t *testing.T) {
	caddytest.Long(t)
	t.Parallel()
	server := redistest.Start(t)
	config := fmt.Sprintf(`{
	admin {$ADMIN}
}
{$SITE}
@limited not path /ready
rate_limit @limited {
	zone one {
		match path /one
		gcra 1 1h
	}
	zone two {
		match path /two
		gcra 100 1h
		fixed_window 1 1h
	}
	zone other {
		match path /two
		key {client_ip}
		gcra 100 1h
	}
	zone charged {
		match path /charged
		gcra 1 1h
		mode uniform
	}
	redis %s {
		timeout 30s
	}
	headers draft x_ratelimit
}
handle_errors {
	respond "{http.rate_limit.exceeded.name} two={http.rate_limit.two.remaining}/{http.rate_limit.two.limit} other={http.rate_limit.other.remaining}{http.rate_limit.other.allowed}"
}
respond ok
`, server.Addr)
	c := caddytest.Start(t, config)

	// ask sends requests for a while, and returns how many, and how often Redis was asked.
	ask := func(path string, lasts time.Duration) (requests, calls int, took time.Duration) {
		before, began := server.Calls(t, "evalsha"), time.Now()
		for took < lasts {
			statuses := caddytest.Flood(t, 100, 16, path, c)
			if statuses[http.StatusTooManyRequests] != 100 {
				t.Fatalf("%s: statuses %v", path, statuses)
			}
			requests += 100
			took = time.Since(began)
		}
		return requests, server.Calls(t, "evalsha") - before, took
	}
	for _, path := range []string{"/one", "/two", "/charged"} {
		c.Get(t, path).Want(t, 200)
		c.Get(t, path).Want(t, 429)
	}

	requests, calls, took := ask("/one", 1600*time.Millisecond)
	t.Logf("%d requests in %v: Redis was asked %d times", requests, took, calls)
	if most := int(took/(750*time.Millisecond)) + 1; calls > most || calls < 1 {
		t.Errorf("Redis was asked %d times in %v, want at most %d", calls, took, most)
	}
	if requests, calls, _ := ask("/charged", 0); calls < requests/64 {
		t.Errorf("Redis was asked %d times about %d requests that are charged though they are denied", calls, requests)
	}

	r, others := c.Get(t, "/two"), 2
	for deadline := time.Now().Add(caddytest.Patient); strings.Contains(r.Field("RateLimit"), "other"); r = c.Get(t, "/two") {
		caddytest.WantText(t, "body", r.Text, "two two=0/1 other=99true") // the first of a second is asked about
		others++
		if time.Now().After(deadline) {
			t.Fatal("no denial is remembered")
		}
	}
	r.Want(t, 429,
		"Ratelimit-Policy", `"other";q=100;w=3600, "two";q=100;w=3600, "two/2";q=1;w=3600`,
		"Ratelimit", `"two/2";r=0;t=3600`,
		"X-Ratelimit-Limit", "1", "X-Ratelimit-Remaining", "0", "X-Ratelimit-Reset", "3600",
		"Retry-After", "3600")
	caddytest.WantText(t, "body", r.Text, "two two=0/1 other=")
	metrics, err := c.Do("GET", "http://"+c.Admin+"/metrics", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		fmt.Sprintf(`caddy_rate_limit_deny_cache_hits_total{zone="one"} %d`, requests-calls),
		fmt.Sprintf(`caddy_rate_limit_requests_total{outcome="denied",zone="one"} %d`, requests+1),
		`caddy_rate_limit_requests_total{outcome="allowed",zone="other"} 1`,
		fmt.Sprintf(`caddy_rate_limit_requests_total{outcome="denied_elsewhere",zone="other"} %d`, others-1),
		`caddy_rate_limit_deny_cache_hits_total{zone="other"} 0`,
		`caddy_rate_limit_deny_cache_hits_total{zone="charged"} 0`,
	} {
		if !strings.Contains(metrics.Text, line+"\n") {
			t.Errorf("the metrics don't say %s", line)
		}
	}
}

// Denials before a configuration was loaded are remembered after it, because the Redis is the same.
func TestReloadRemembersDenials(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	config := caddytest.Site(fmt.Sprintf("zone api {\n gcra 100 1h\n fixed_window 1 1000h\n}\nredis %s {\n timeout 30s\n}\n", server.Addr))
	c := caddytest.Start(t, config)
	c.Get(t, "/").Want(t, 200)
	for n := range 20 { // a reload may take longer than a second
		c.Get(t, "/").Want(t, 429)
		c.Reload(t, config+fmt.Sprint("# ", n, "\n"))
		if r := c.Get(t, "/"); !strings.Contains(r.Field("RateLimit"), `"api";`) { // which has room, but wasn't asked
			r.Want(t, 429, "RateLimit", `"api/2";r=0;t=3600000`)
			return
		}
	}
	t.Error("every reload forgets what was denied")
}
