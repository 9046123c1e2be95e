package limiter

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// If the client disconnects before the response, it can't be known whether the response would have been charged, so it is.
// A request that ran into a deadline has the response that its error gives it.
func TestSettleWithoutResponse(t *testing.T) {
	left, leave := context.WithCancel(t.Context())
	leave()
	late, end := context.WithTimeout(t.Context(), 0)
	defer end()
	for _, test := range []struct {
		name   string
		client context.Context
		err    error
		want   int64
	}{
		{"an error of another status", t.Context(), caddyhttp.Error(http.StatusBadGateway, errors.New("no upstream")), 0},
		{"an error of the status", t.Context(), caddyhttp.Error(http.StatusUnauthorized, errors.New("wrong password")), 3},
		{"the client left", left, context.Canceled, 3},
		{"the client disconnected, and an error of another status", left, caddyhttp.Error(http.StatusBadGateway, context.Canceled), 3},
		{"a deadline", late, caddyhttp.Error(http.StatusGatewayTimeout, context.DeadlineExceeded), 0},
	} {
		zone := &Zone{Name: "z", Settle: NewSettlePolicy("z", &caddyhttp.ResponseMatcher{StatusCode: []int{http.StatusUnauthorized}}, nil)}
		state := newTestState(nil, zone, nil, store.ZoneRequest{
			Cost: 3, Limits: make([]store.Limit, 1), Outcome: store.Outcome{Decisions: []algorithms.Decision{{Allowed: true, Charged: 3}}},
		})
		state.NewSettlement(test.client, nil).finish(http.Header{}, true, test.err)
		e := state.Entries[0]
		charged := e.Cost // stays, unless it is settled
		if e.Settled {
			charged = e.TrueCost
		}
		if charged != test.want {
			t.Errorf("%s: it is charged %d, want %d", test.name, charged, test.want)
		}
	}
}

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
