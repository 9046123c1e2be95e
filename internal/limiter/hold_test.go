package limiter_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
)

// A response bans the key until its Retry-After.
func TestSpanOfHold(t *testing.T) {
	p := &limiter.HoldPolicy{Statuses: []int{4, 503}, Max: 60_000_000, Default: 7_000_000}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	later := at.Add(20 * time.Second).Format(http.TimeFormat)
	for _, test := range []struct {
		status           int
		retryAfter, date string
		want             time.Duration
	}{
		{429, "", "", 7 * time.Second},
		{503, "30", "", 30 * time.Second},
		{429, "0", "", 0},
		{429, "60", "", time.Minute},
		{429, "61", "", time.Minute},
		{429, "99999999999999999999999", "", time.Minute},
		{429, "18446744073709551615", "", time.Minute},
		{429, "-1", "", 7 * time.Second},
		{429, "1.5", "", 7 * time.Second},
		{429, "soon", "", 7 * time.Second},
		{429, later, "", 20 * time.Second},
		{429, later, at.Add(15 * time.Second).Format(http.TimeFormat), 5 * time.Second}, // by the upstream's clock
		{429, later, at.Add(time.Hour).Format(http.TimeFormat), 0},
		{429, later, "yesterday", 20 * time.Second},
		{499, "30", "", 0}, // the client has left
		{502, "30", "", 0},
		{200, "30", "", 0},
	} {
		header := http.Header{"Retry-After": {test.retryAfter}, "Date": {test.date}}
		if got := p.SpanOf(test.status, header, at); got != test.want.Microseconds() {
			t.Errorf("%+v: %d µs", test, got)
		}
	}
	if got := (*limiter.HoldPolicy)(nil).SpanOf(429, http.Header{"Retry-After": {"9"}}, at); got != 0 {
		t.Errorf("without hold: %d µs", got)
	}
}

// Responses tell a key's next requests to wait. The path of a request has the status of the upstream's response, its Retry-After,
// and how long it takes.
func TestHold(t *testing.T) {
	const hold = `"hold":{"status_code":[429,5],"max":"1m"}`
	const limit = `"limits":[{"algorithm":"token_bucket","events":1,"window":"1s","burst":2}]`
	type step struct {
		after           time.Duration // since the begin of the last request
		key, path, want string        // the status, and then Retry-After or how long the request took; empty: nobody waits for it
	}
	for _, test := range []struct {
		name, zones string
		steps       []step
	}{
		{"denies", hold, []step{
			{0, "a", "/200", "200 0s"},
			{0, "a", "/429/30", "429 0s"},
			{0, "a", "/200", "429 30 hold"},
			{0, "b", "/200", "200 0s"},
			{29 * time.Second, "a", "/200", "429 1 hold"},
			{time.Second, "a", "/200", "200 0s"},
		}},
		{"default and max", hold, []step{
			{0, "a", "/503", "503 0s"}, {0, "a", "/200", "429 5 hold"}, {5 * time.Second, "a", "/429/3600", "429 0s"}, {0, "a", "/200", "429 60 hold"},
		}},
		{"an error of Caddy does not", hold, []step{{0, "a", "/error/502", "502 0s"}, {0, "a", "/200", "200 0s"}}},
		{"a denial by another limiter does not", hold, []step{
			{0, "a", "/denied", "200 0s"}, {0, "a", "/denied", "429 0s"}, {0, "a", "/200", "200 0s"},
		}},
		{"a panic does not", hold, []step{{0, "a", "/panic", "panic"}, {0, "a", "/200", "200 0s"}}},
		{"in shadow mode", hold + `,"shadow":true`, []step{{0, "a", "/429/30", "429 0s"}, {0, "a", "/200", "200 0s"}}},
		{"unlimited", hold + "," + limit + `,"override":{"a":{"unlimited":true}}`, []step{{0, "a", "/429/30", "429 0s"}, {0, "a", "/200", "429 30 hold"}}},
		{"delays", hold + `,"delay":{"max":"40s"}`, []step{
			{0, "a", "/429/30", "429 0s"},
			{10 * time.Second, "a", "/200", "200 20s"},
			{0, "a", "/429/50", "429 0s"},
			{0, "a", "/200", "429 50 hold"},
			{9 * time.Second, "a", "/200", "429 41 hold"},
			{2 * time.Second, "a", "/200", "200 39s"},
		}},
		{"delays, then limits", hold + `,"delay":{"max":"5500ms"},` + limit, []step{
			{0, "a", "/200", "200 0s"}, {0, "a", "/429/2", "429 0s"}, {0, "a", "/200", "200 2s"}, {0, "a", "/200", "200 0s"}, {0, "a", "/200", "200 1s"},
		}},
		{"delays without a place", hold + `,"delay":{"max":"40s","held":1}`, []step{
			{0, "a", "/429/30", "429 0s"}, {0, "a", "/200", ""}, {0, "a", "/200", "429 30 hold"},
		}},
		{"in shadow mode, behind a request that has the slot", hold + `,"shadow":true,` + limit + `},"slots":{"concurrency":1,"delay":{"max":"9s"}`, []step{
			{0, "a", "/200", "200 0s"}, {0, "a", "/200/0/5s", ""}, {0, "a", "/429/30", "429 5s"}, {0, "a", "/200", "200 0s"},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, _ := serveNested(t, `"z":{"key":"{http.request.header.Key}",`+test.zones+`}`,
					`"inner":{"match":[{"path":["/denied"]}],"limits":[{"algorithm":"gcra","events":1,"window":"1h"}]}`, nil)
				upstream := caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
					status, after, takes, path := 0, "", "0s", strings.ReplaceAll(r.URL.Path, "/", " ")
					switch {
					case path == " panic":
						panic(http.ErrAbortHandler)
					case strings.HasPrefix(path, " error"):
						_, _ = fmt.Sscan(strings.TrimPrefix(path, " error"), &status)
						return caddyhttp.HandlerError{StatusCode: status}
					}
					_, _ = fmt.Sscan(strings.Replace(path, "denied", "200", 1), &status, &after, &takes)
					d, _ := time.ParseDuration(takes)
					time.Sleep(d) // virtual time
					w.Header().Set("Retry-After", after)
					w.WriteHeader(status)
					return nil
				})
				ask := func(key, path string) (answer string) {
					w, began := httptest.NewRecorder(), time.Now()
					r := httptest.NewRequestWithContext(t.Context(), "GET", path, nil)
					r.Header.Set("Key", key)
					defer func() {
						if recover() != nil {
							answer = "panic"
						}
					}()
					err := h.outer.ServeHTTP(w, caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, nil),
						caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error { return h.inner.ServeHTTP(w, r, upstream) }))
					if e, is := errors.AsType[caddyhttp.HandlerError](err); is {
						w.Code = e.StatusCode
					}
					if body := w.Body.String(); body != "" {
						if !strings.Contains(body, `temporary-reduced-capacity`) || !strings.Contains(body, `"reason":"hold"`) {
							t.Errorf("the body of a denial is %s", body)
						}
						return fmt.Sprint(w.Code, " ", w.Header().Get("Retry-After"), " hold")
					}
					return fmt.Sprint(w.Code, " ", time.Since(began))
				}
				var began time.Time
				for i, s := range test.steps {
					time.Sleep(max(time.Until(began.Add(s.after)), 0)) // virtual time
					began = time.Now()
					if s.want == "" {
						go ask(s.key, s.path)
						synctest.Wait()
						continue
					}
					if got := ask(s.key, s.path); got != s.want {
						t.Errorf("step %d, %s: %q, want %q", i+1, s.path, got, s.want)
					}
				}
			})
		})
	}
}
