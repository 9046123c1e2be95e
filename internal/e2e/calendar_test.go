package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// A month ends when it ends in Berlin by the clock of Redis, although the clocks of both instances are a year behind. A quota of a
// month is granted once, through any instance, and not one request more. A step back of the clock is reported.
func TestCalendarEndsByTheClockOfRedis(t *testing.T) {
	t.Parallel()
	server, clock := redistest.StartClock(t)
	berlin, err := time.LoadLocation("Europe/Berlin")
	errtest.None(t, err)
	now := time.Now().In(berlin)
	turn := time.Date(now.Year()+1, now.Month(), 1, 0, 0, 0, 0, berlin) // of the month
	until := func(left time.Duration) { clock.Set(t, time.Until(turn.Add(-left))) }
	until(time.Hour)
	config := caddytest.Site(fmt.Sprintf("zone plan {\n key {header.X-Key}\n calendar 6 month Europe/Berlin\n}\nredis %s\non_store_error deny", server.Addr))
	caddys := []*caddytest.Caddy{caddytest.Start(t, config), caddytest.Start(t, config)}
	use := func(key string, want ...int) (last caddytest.Response) {
		t.Helper()
		for i, status := range want {
			if last = caddys[i%2].Get(t, "/", "X-Key", key); last.StatusCode != status {
				t.Fatalf("request %d of %s: status %d, want %d", i+1, key, last.StatusCode, status)
			}
		}
		return last
	}
	// useUp asks until the quota of a month is used up. An instance denies a little longer what it has denied before.
	useUp := func(key string) (last caddytest.Response) {
		t.Helper()
		granted := 0
		caddytest.EventuallySees(t, key+" has used its quota of 6", func() int {
			for _, c := range caddys {
				if last = c.Get(t, "/", "X-Key", key); last.StatusCode == 200 {
					granted++
				}
			}
			return granted
		}, func(n int) bool { return n >= 6 })
		if last = use(key, 429, 429); granted != 6 {
			t.Errorf("%s was granted %d, want 6", key, granted)
		}
		return last
	}
	r := use("a", 200, 200, 200, 200, 200, 200, 429, 429)
	r.WantWait(t, 3600)
	length := int(turn.Sub(turn.AddDate(0, -1, 0)).Seconds())
	if policy := r.Field("RateLimit-Policy"); !strings.Contains(policy, fmt.Sprintf("q=6;w=%d", length)) {
		t.Errorf("RateLimit-Policy %s, want the length of the month, %d", policy, length)
	}
	use("b", 200)
	until(-time.Minute)
	if r = useUp("a"); !strings.Contains(r.Field("RateLimit-Policy"), "q=6;w=") {
		t.Errorf("RateLimit-Policy %s", r.Field("RateLimit-Policy"))
	}
	until(-40 * 24 * time.Hour) // more than a period later at once
	useUp("a")
	use("b", 200, 200, 200, 200, 200, 200, 429)
	const stepsMetric = "caddy_rate_limit_clock_steps_total"
	var steps []float64 // which a Caddy also counts in other tests
	for _, c := range caddys {
		steps = append(steps, caddytest.Metrics(t, c, stepsMetric)[stepsMetric])
	}
	clock.Set(t, 0)
	for n, c := range caddys {
		c.Get(t, "/", "X-Key", "c").Want(t, 200)
		caddytest.WaitForMetric(t, c, fmt.Sprint(stepsMetric, " ", steps[n]+1))
		c.WaitForLog(t, "the clock of Redis stepped back")
		if strings.Contains(c.Logged(), "Redis is failing") {
			t.Error("the turn of a month, or a step of the clock, is an outage")
		}
	}
}

// simulate ends a month by the time of the log, and proposes no calendar.
func TestSimulateCalendar(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var log strings.Builder
	turn := time.Date(2025, 11, 30, 23, 0, 0, 0, time.UTC) // the end of November in Berlin
	for i := range 10 {
		fmt.Fprintf(&log, `{"ts":%d,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"192.0.2.1","client_ip":"192.0.2.1",`+
			`"proto":"HTTP/1.1","method":"GET","host":"x","uri":"/"},"status":200}`+"\n", turn.Add(time.Duration(i-5)*time.Minute).Unix())
	}
	caddytest.WriteFile(t, filepath.Join(dir, "access.log"), log.String(), 0o600)
	zone := []string{"--zone", "key {client_ip} ; calendar 3 month Europe/Berlin", "access.log"}
	caddytest.RunCommand(t, simulateIn(dir, zone...)).Succeeds(t, "4 of 10 requests would have been denied (40%).")
	caddytest.RunCommand(t, simulateIn(dir, append([]string{"--propose", "20%"}, zone...)...)).
		Succeeds(t, "None for calendar 3 month Europe/Berlin: a calendar limits what was sold, which no log shows.")
}
