package ratelimit

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// newTestState returns the state of a request to a handler that belongs to one zone.
func newTestState(h *Handler, z *zone, set *limitSet, r store.Request) *requestState {
	state := &requestState{handler: h, requests: []store.Request{r}}
	state.entries = []zoneEntry{{zone: z, limitSet: set, Request: &state.requests[0]}}
	return state
}

// The families are set when the header is sent, whichever way that happens, and
// not before.
func TestFamilyWriter(t *testing.T) {
	limit, err := algorithms.NewLimit(algorithms.Quota{Algorithm: "gcra", Events: 5, Window: 1_000_000})
	if err != nil {
		t.Fatal(err)
	}
	state := newTestState(nil, &zone{name: "z"}, nil, store.Request{
		Limits: []store.Limit{{Limit: limit}}, Outcome: store.Outcome{Decisions: []algorithms.Decision{{Allowed: true, Remaining: 3}}},
	})
	for name, send := range map[string]func(w http.ResponseWriter){
		"WriteHeader": func(w http.ResponseWriter) { w.WriteHeader(204) },
		"Write":       func(w http.ResponseWriter) { _, _ = w.Write([]byte("x")) },
		"ReadFrom":    func(w http.ResponseWriter) { _, _ = w.(*responseWriter).ReadFrom(strings.NewReader("x")) },
		"Flush":       func(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() },
		"upgrade":     func(w http.ResponseWriter) { w.WriteHeader(101) },
	} {
		recorder := httptest.NewRecorder()
		w := &responseWriter{
			ResponseWriterWrapper: caddyhttp.ResponseWriterWrapper{ResponseWriter: recorder},
			state:                 state, families: newHeaderForms([]string{"x_ratelimit"}).families,
		}
		w.WriteHeader(103) // early hints
		if got := recorder.Header().Get("X-RateLimit-Remaining"); got != "" {
			t.Errorf("%s: early hints carry %q", name, got)
		}
		send(w)
		if got := recorder.Header().Get("X-RateLimit-Remaining"); got != "3" {
			t.Errorf("%s: X-RateLimit-Remaining %q, want 3", name, got)
		}
	}
}
