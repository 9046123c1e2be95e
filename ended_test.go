package ratelimit

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// silentBody is the body of a request of which no byte comes, and whose deadlines nobody heeds.
type silentBody struct{ ended chan struct{} }

func (b *silentBody) Read([]byte) (int, error) { <-b.ended; return 0, io.ErrUnexpectedEOF }
func (*silentBody) Close() error               { return nil }

// deafRecorder is a response whose read deadline has no effect.
type deafRecorder struct{ *httptest.ResponseRecorder }

func (deafRecorder) SetReadDeadline(time.Time) error { return nil }

// A request gives its slot back when the next handler has returned, although its body is still being read.
func TestSlotOfUnfinishedBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, end, err := provision(t, `{"rate_limits":{"api":{"key":"{http.rate_limit.request.json.user}","concurrency":1,
			"body_timeout":"1s","max_body":{"bytes":1000,"pass":true}}}}`)
		if err != nil {
			t.Fatal(err)
		}
		defer end()
		passed := 0
		serve := func(body io.Reader) {
			r := httptest.NewRequest("POST", "/", body)
			r.Header.Set("Content-Type", "application/json")
			w := deafRecorder{httptest.NewRecorder()}
			_ = h.ServeHTTP(w, caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, nil), caddyhttp.HandlerFunc(
				func(http.ResponseWriter, *http.Request) error { passed++; return nil }))
		}
		body := &silentBody{make(chan struct{})}
		served := make(chan struct{})
		go func() { serve(body); close(served) }()
		time.Sleep(time.Second + 100*time.Millisecond) // in virtual time: while the end of the request waits for the body
		select {
		case <-served:
			t.Error("the request didn't wait for its body")
		default:
		}
		if serve(nil); passed != 2 {
			t.Errorf("%d requests passed, want 2", passed)
		}
		close(body.ended)
		<-served
		time.Sleep(time.Minute) // in virtual time: all reports of denials have been made
	})
}

// The shortest sweep_interval of the handlers holds, whichever comes first.
func TestShortestSweepInterval(t *testing.T) {
	for _, intervals := range [][2]string{{"5s", "1000h"}, {"1000h", "5s"}} {
		synctest.Test(t, func(t *testing.T) {
			handler := func(zone, interval string) string {
				return fmt.Sprintf(`{"handler":"rate_limit","sweep_interval":%q,"rate_limits":{%q:{
					"limits":[{"algorithm":"gcra","events":1,"window":"1s"}]}}}`, interval, zone)
			}
			x := loadForLaw(t, nil, `{"admin":{"disabled":true},"logging":{"logs":{"default":{"writer":{"output":"discard"}}}},
				"apps":{"http":{"servers":{"a":{"listen":["silent/x:80"],"protocols":["h1"],"automatic_https":{"disable":true},"routes":[{"handle":[`+
				handler("a", intervals[0])+","+handler("b", intervals[1])+`]}]}}}}}`)
			x.serve(http.Header{}, false)
			shared := x.handlers[0].app.memory.shared
			before := shared.Keys()
			time.Sleep(11 * time.Second) // in virtual time: two intervals
			if after := shared.Keys(); before != 2 || after != 0 {
				t.Errorf("intervals %v: %d keys, and then %d, want 2 and 0", intervals, before, after)
			}
		})
	}
}

// The header fields of a delayed request hold when it passes, not when it came.
func TestFieldsOfDelayedRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, end, err := provision(t, `{"headers":["draft"],"rate_limits":{"api":{"delay":{"max":"1h"},"limits":[
			{"algorithm":"gcra","events":1,"window":"10s","burst":1}]}}}`)
		if err != nil {
			t.Fatal(err)
		}
		defer end()
		for _, delay := range []time.Duration{0, 10 * time.Second, 10 * time.Second} { // each takes the next event as soon as there is one
			began, w := time.Now(), httptest.NewRecorder()
			r := caddyhttp.PrepareRequest(httptest.NewRequest("GET", "/", nil), caddy.NewReplacer(), w, nil)
			fields := ""
			err := h.ServeHTTP(w, r, caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
				fields = w.Header().Get("RateLimit")
				return nil
			}))
			if want := `"api";r=0;t=10`; err != nil || fields != want || time.Since(began) != delay {
				t.Errorf("after %v: %s, error %v; want %s after %v", time.Since(began), fields, err, want, delay)
			}
		}
	})
}
