package limiter

import (
	"net/http/httptest"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// If one of several zones needs the body of the response, or a value in it, the handler reads it. The order of the zones
// doesn't matter.
func TestBodyForOneOfSeveralZones(t *testing.T) {
	for n := range 3 {
		state := &State{Limiter: new(Limiter), Requests: make([]store.ZoneRequest, 3)}
		for i := range state.Requests {
			state.Requests[i].Limits = make([]store.Limit, 1)
			policy := &SettlePolicy{NeedsBody: i == n, NeedsJSON: i == n}
			state.Entries = append(state.Entries, Entry{Zone: &Zone{Settle: policy}, ZoneRequest: &state.Requests[i]})
		}
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Accept-Encoding", "br")
		if body := state.NewSettlement(t.Context(), nil).beginBody(r); body == nil || r.Header.Get("Accept-Encoding") != "identity" {
			t.Errorf("zone %d of 3: body %v, Accept-Encoding %s", n, body, r.Header.Get("Accept-Encoding"))
		}
	}
}
