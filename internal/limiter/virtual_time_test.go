package limiter_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// A ban ends when it says, and the next one is longer.
func TestBanEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const zone = `{"rate_limits":{"ends":{"limits":[{"algorithm":"gcra","events":1,"window":"2s"}],"ban":{"duration":"2s","max":"5s"}}}}`
		h, err := provisionCombo(t, caddytest.ComboConfig{App: "{}", Outer: zone, Inner: zone})
		if err != nil {
			t.Fatal(err)
		}
		defer h.end()
		passes := caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error { return nil })
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
			w := httptest.NewRecorder()
			r := caddyhttp.PrepareRequest(httptest.NewRequestWithContext(t.Context(), "GET", "/", nil), caddy.NewReplacer(), w, nil)
			err, status := h.outer.ServeHTTP(w, r, passes), w.Code
			if denial := (caddyhttp.HandlerError{}); errors.As(err, &denial) {
				status = denial.StatusCode
			}
			if got := w.Header().Get("Retry-After"); status != step.status || got != step.retryAfter {
				t.Errorf("after %v: status %d, Retry-After %q, want %d and %q", step.at, status, got, step.status, step.retryAfter)
			}
		}
	})
}
