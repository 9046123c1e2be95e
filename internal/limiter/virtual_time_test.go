package limiter_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/telemetry"
)

// inVirtualTime provisions a handler with these zones, and their budgets in memory, and does something in virtual time.
// ask sends a request, and returns its status and Retry-After.
func inVirtualTime(t *testing.T, zones string, do func(t *testing.T, ask func() (status int, retryAfter string))) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h, err := provisionCombo(t, caddytest.ComboConfig{App: "{}", Outer: `{"rate_limits":{` + zones + `}}`, Inner: `{"rate_limits":{` + zones + `}}`})
		if err != nil {
			t.Fatal(err)
		}
		defer h.end()
		passes := caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error { return nil })
		do(t, func() (int, string) {
			w := httptest.NewRecorder()
			r := caddyhttp.PrepareRequest(httptest.NewRequestWithContext(t.Context(), "GET", "/", nil), caddy.NewReplacer(), w, nil)
			err := h.outer.ServeHTTP(w, r, passes)
			status := w.Code
			if denial := (caddyhttp.HandlerError{}); errors.As(err, &denial) {
				status = denial.StatusCode
			}
			return status, w.Header().Get("Retry-After")
		})
	})
}

// A ban ends when it says, and the next one is longer.
func TestBanEnds(t *testing.T) {
	inVirtualTime(t, `"ends":{"limits":[{"algorithm":"gcra","events":1,"window":"2s"}],"ban":{"duration":"2s","max":"5s"}}`,
		func(t *testing.T, ask func() (int, string)) {
			began := time.Now()
			for _, step := range []struct {
				at         time.Duration
				status     int
				retryAfter string
			}{
				{0, 200, ""},
				{0, 429, "2"}, // begins a ban
				{time.Second, 429, "1"},
				{2*time.Second - time.Microsecond, 429, "1"},
				{2 * time.Second, 200, ""},
				{2 * time.Second, 429, "4"},
				{6*time.Second - time.Microsecond, 429, "1"},
				{6 * time.Second, 200, ""},
				{6 * time.Second, 429, "5"}, // max
				{11*time.Second - time.Microsecond, 429, "1"},
				{11 * time.Second, 200, ""},
			} {
				time.Sleep(time.Until(began.Add(step.at))) // virtual time
				if status, retryAfter := ask(); status != step.status || retryAfter != step.retryAfter {
					t.Errorf("after %v: status %d, Retry-After %q, want %d and %q", step.at, status, retryAfter, step.status, step.retryAfter)
				}
			}
		})
}

// Delayed requests pass at the instants when there is room. Requests that would have to wait too long are denied at once.
func TestDelay(t *testing.T) {
	const requests, spacing = 40, 100 * time.Millisecond
	oneByOne := []time.Duration{0, 0, spacing, 2 * spacing, 3 * spacing, 4 * spacing, 5 * spacing, 6 * spacing}
	twoByTwo := []time.Duration{0, 0, 2 * spacing, 2 * spacing, 4 * spacing, 4 * spacing, 6 * spacing, 6 * spacing}
	for limit, want := range map[string][]time.Duration{
		"token_bucket 1 100ms 2": oneByOne,
		"gcra 1 100ms 2":         oneByOne,
		"leaky_bucket 1 100ms 2": oneByOne,
		"smooth 1 100ms 1":       oneByOne,
		"fixed_window 2 200ms":   twoByTwo,
	} {
		fields := strings.Fields(limit + " 0")
		name := "delay-" + fields[0]
		quota := fmt.Sprintf(`{"algorithm":%q,"events":%s,"window":%q,"burst":%s}`, fields[0], fields[1], fields[2], fields[3])
		quota = strings.Replace(quota, `,"burst":0`, "", 1)
		before := telemetry.RequestCounts()[name]
		inVirtualTime(t, fmt.Sprintf(`%q:{"limits":[%s],"delay":{"max":"600ms"}}`, name, quota), func(t *testing.T, ask func() (int, string)) {
			began := time.Now()
			var mu sync.Mutex
			var passed []time.Duration
			var clients sync.WaitGroup
			for range requests {
				clients.Go(func() {
					status, retryAfter := ask()
					mu.Lock()
					defer mu.Unlock()
					if after := time.Since(began); status == 200 {
						passed = append(passed, after)
					} else if after != 0 || status != 429 || retryAfter != "1" {
						t.Errorf("%s: status %d, Retry-After %q after %v, want 429 and 1 at once", limit, status, retryAfter, after)
					}
				})
			}
			clients.Wait()
			for i := range passed {
				passed[i] = passed[i].Round(time.Millisecond) // waits are rounded up to the microsecond
			}
			if slices.Sort(passed); !slices.Equal(passed, want) {
				t.Errorf("%s: requests passed after %v, want %v", limit, passed, want)
			}
		})
		counts := telemetry.RequestCounts()[name]
		denied, delayed := counts["denied"]-before["denied"], counts["delayed"]-before["delayed"]
		if denied != int64(requests-len(want)) || delayed != int64(len(want)-2) {
			t.Errorf("%s: %d requests are counted as denied and %d as delayed, want %d and %d", limit, denied, delayed, requests-len(want), len(want)-2)
		}
	}
}
