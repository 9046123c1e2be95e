package limiter_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Requests of one key come at once to a zone that counts failed logins, and each response takes a second. What others have
// reserved delays a request, but denies none, and bans nobody. So all valid ones pass, and as many guesses as the limit has.
func TestReservedEvents(t *testing.T) {
	for _, test := range []struct {
		name, settle string
		path         string // ends with the status of the response
		requests     int
		passed       int
		took         time.Duration // until the last one has its response
		retryAfter   string        // of those that were denied
		banned       bool
	}{
		{"valid", ``, "/200", 24, 24, 5 * time.Second, "", false},
		{"guesses", ``, "/401", 40, 5, time.Second, "3600", true},
		{"more valid ones than the wait allows", ``, "/200", 60, 50, 10 * time.Second, "1", false},
		{"a shorter wait", `,"wait":"1500ms"`, "/200", 24, 10, 2 * time.Second, "1", false},
		{"no wait", `,"wait":0`, "/200", 24, 5, time.Second, "1", false},
		{"with a cost", `,"cost":"1"`, "/200", 24, 5, time.Second, "1", false},
		{"with a cost and a wait", `,"cost":"1","wait":"10s"`, "/401", 24, 5, time.Second, "3600", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var passed atomic.Int64
				serve := serveWith(t, `"login":{"limits":[{"algorithm":"sliding_log","events":5,"window":"15m"}],"ban":{"duration":"1h","after":3},
					"settle":{"match":{"status_code":[401]}`+test.settle+`}}`, func(w http.ResponseWriter, r *http.Request) {
					passed.Add(1)
					time.Sleep(time.Second) // virtual time
					status := http.StatusOK
					_, _ = fmt.Sscanf(strings.TrimPrefix(r.URL.Path, "/"), "%d", &status)
					w.WriteHeader(status)
				})
				began := time.Now()
				ask := func() *httptest.ResponseRecorder {
					return serve(httptest.NewRequestWithContext(t.Context(), "GET", test.path, nil))
				}
				var all sync.WaitGroup
				for range test.requests {
					all.Go(func() {
						w := ask()
						if got := w.Header().Get("Retry-After"); w.Code == http.StatusTooManyRequests && got != test.retryAfter && !test.banned {
							t.Errorf("Retry-After %q, want %q", got, test.retryAfter)
						}
					})
				}
				all.Wait()
				if n := int(passed.Load()); n != test.passed || time.Since(began) != test.took {
					t.Errorf("%d requests passed in %v, want %d in %v", n, time.Since(began), test.passed, test.took)
				}
				w := ask()
				if banned := w.Header().Get("Retry-After") == test.retryAfter; test.banned && !banned || !test.banned && w.Code != http.StatusOK {
					t.Errorf("afterwards: status %d, %v", w.Code, w.Header())
				}
			})
		})
	}
}

// What a request has reserved counts as used when the header of its response is sent, or after the shortest window, at most
// a minute. Then others are denied for as long as the limits say, and a ban counts them.
func TestReservationsEnd(t *testing.T) {
	for _, test := range []struct {
		name, window, settle string
		flushes              bool
		after                time.Duration // until the reservations have ended
		retryAfter           string
	}{
		{"with the header", "15m", `"match":{"status_code":[401]}`, true, time.Second, "899"},
		{"after a minute", "15m", `"match":{"status_code":[401]}`, false, time.Minute, "840"},
		{"with the header, by a cost", "15m", `"cost":"1"`, true, time.Second, "899"},
		{"by a cost in the body", "15m", `"cost":"{http.rate_limit.response.json.n}"`, true, time.Minute, "840"},
		{"with a trailer", "15m", `"cost":"{http.response.header.X}"`, true, time.Minute, "840"},
		{"after a window", "20s", `"match":{"status_code":[401]}`, false, 20 * time.Second, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				serve := serveWith(t, `"login":{"limits":[{"algorithm":"sliding_log","events":5,"window":"`+test.window+`"}],
					"ban":{"duration":"1h","after":2},"settle":{"wait":0,`+test.settle+`}}`, func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/other" {
						return
					}
					time.Sleep(time.Second) // virtual time
					w.Header().Set("Content-Type", "application/json")
					if strings.Contains(test.settle, "header.X") {
						w.Header().Set("Trailer", "X")
					}
					if test.flushes {
						w.WriteHeader(http.StatusUnauthorized)
						_ = http.NewResponseController(w).Flush()
					}
					time.Sleep(10 * time.Minute) // virtual time
					w.WriteHeader(http.StatusUnauthorized)
				})
				ask := func(path string) string {
					return serve(httptest.NewRequestWithContext(t.Context(), "GET", path, nil)).Header().Get("Retry-After")
				}
				var all sync.WaitGroup
				for range 5 {
					all.Go(func() { ask("/held") })
				}
				time.Sleep(test.after - time.Millisecond) // virtual time
				for range 5 {
					if got := ask("/other"); got != "1" {
						t.Errorf("before %v: Retry-After %q", test.after, got)
					}
				}
				time.Sleep(time.Millisecond) // virtual time
				synctest.Wait()
				want := []string{test.retryAfter, "3600", "3600"}
				if test.retryAfter == "" {
					want = []string{"", "", ""}
				}
				for n, want := range want {
					if got := ask("/other"); got != want {
						t.Errorf("request %d after %v: Retry-After %q, want %q", n, test.after, got, want)
					}
				}
				all.Wait()
				if got := ask("/other"); test.retryAfter == "" && got != "" {
					t.Errorf("afterwards: Retry-After %q", got)
				}
			})
		})
	}
}
