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

// Requests of one key come at once to a zone that counts failed logins, and each response takes a second. Events that
// others have reserved delay a request, but deny none, and ban nobody. So all valid ones pass, and as many guesses as the limit has.
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
						if body := w.Body.String(); test.retryAfter == "1" && w.Code == http.StatusTooManyRequests && !strings.Contains(body, `"reason":"reserved","retry-after":1,`) {
							t.Errorf("the body of a denial is %s", body)
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

// Reserved events count as used when the header of its response is sent, or after the shortest window, at most
// a minute. Then others are denied for as long as the limits say, and a ban counts them.
func TestReservationsEnd(t *testing.T) {
	for _, test := range []struct {
		name, window, settle string
		flushes              int           // the status of a header that is sent at once; 0: none
		after                time.Duration // until the reservations have ended
		frees                bool          // the limit has room again then
		retryAfter           string        // of the next denial
	}{
		{"with the header", "15m", `"match":{"status_code":[401]}`, 401, time.Second, false, "899"},
		{"with the header, given back", "15m", `"match":{"status_code":[401]}`, 200, time.Second, true, "900"},
		{"after a minute", "15m", `"match":{"status_code":[401]}`, 0, time.Minute, false, "840"},
		{"with the header, by a cost", "15m", `"cost":"1"`, 401, time.Second, false, "899"},
		{"by a cost in the body", "15m", `"cost":"{http.rate_limit.response.json.n}"`, 401, time.Minute, false, "840"},
		{"with a trailer", "15m", `"cost":"{http.response.header.X}"`, 401, time.Minute, false, "840"},
		{"after a window", "20s", `"match":{"status_code":[401]}`, 0, 20 * time.Second, true, "20"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				serve := serveWith(t, `"login":{"limits":[{"algorithm":"sliding_log","events":5,"window":"`+test.window+`"}],
					"ban":{"duration":"1h","after":2},"settle":{"wait":0,`+test.settle+`}}`, func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/other" || r.URL.Path == "/wrong" {
						w.WriteHeader(map[string]int{"/other": http.StatusOK, "/wrong": http.StatusUnauthorized}[r.URL.Path])
						return
					}
					time.Sleep(time.Second) // virtual time
					w.Header().Set("Content-Type", "application/json")
					if strings.Contains(test.settle, "header.X") {
						w.Header().Set("Trailer", "X")
					}
					if test.flushes > 0 {
						w.WriteHeader(test.flushes)
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
				for n := 0; test.frees && n < 5; n++ {
					ask("/wrong")
				}
				for n, want := range []string{test.retryAfter, "3600", "3600"} {
					if got := ask("/other"); got != want {
						t.Errorf("request %d after %v: Retry-After %q, want %q", n, test.after, got, want)
					}
				}
				all.Wait()
			})
		})
	}
}

// A request that a limit delays reserves nothing. So a flood of them is denied by the limit, and banned.
func TestDelayedRequestsReserveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		serve := serveWith(t, `"login":{"limits":[{"algorithm":"token_bucket","events":5,"window":"5s","burst":1}],"delay":{"max":"10s"},
			"ban":{"duration":"1h","after":3},"settle":{"match":{"status_code":[401]}}}`, func(http.ResponseWriter, *http.Request) {
			time.Sleep(1500 * time.Millisecond) // virtual time
		})
		var all sync.WaitGroup
		banned := atomic.Int64{}
		for n := range 60 {
			all.Go(func() {
				time.Sleep(time.Duration(n) * time.Millisecond) // virtual time
				if serve(httptest.NewRequestWithContext(t.Context(), "GET", "/", nil)).Header().Get("Retry-After") == "3600" {
					banned.Add(1)
				}
			})
		}
		if all.Wait(); banned.Load() == 0 {
			t.Error("nobody is banned")
		}
	})
}
