package ratelimit

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// correcting is a store that notes the calls of Correct, except what only ends reservations.
type correcting struct {
	store.Store
	calls [][]string
}

func (s *correcting) Correct(corrections []store.Correction, failed func(error)) {
	var call []string
	for _, c := range corrections {
		if c.Refund == 0 && c.Charge == 0 && !c.Leave {
			continue
		}
		call = append(call, fmt.Sprintf("%s refund %d charge %d leave %v", c.Request.Zone, c.Refund, c.Charge, c.Leave))
	}
	if call != nil {
		s.calls = append(s.calls, call)
	}
	s.Store.Correct(corrections, failed)
}

// One call of the store gives back and charges everything after a response. Without a correction
// there is no call.
func TestCorrectsOnce(t *testing.T) {
	const limit = `"limits":[{"algorithm":"token_bucket","events":100,"window":"1h"}]`
	h := loadHandler(t, `
		"a":{`+limit+`,"concurrency":5,"settle":{"cost":"{http.response.header.Cost}"}},
		"b":{`+limit+`,"settle":{"match":{"status_code":[401]}}},
		"c":{`+limit+`,"mode":"force","cost":2},
		"d":{`+limit+`,"match":[{"path":["/slot"]}],"concurrency":1}
	`)
	for _, test := range []struct {
		path, cost string
		status     int
		want       string
	}{
		{"/", "3", 200, "[[a refund 0 charge 2 leave true b refund 1 charge 0 leave false]]"},
		{"/", "0", 401, "[[a refund 1 charge 0 leave true]]"},
		{"/slot", "1", 401, "[[a refund 0 charge 0 leave true d refund 0 charge 0 leave true]]"},
		{"/", "no number", 401, "[[a refund 0 charge 0 leave true]]"},
	} {
		noted := &correcting{Store: h.limiter.Store}
		h.limiter.Store = noted
		next := caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
			if len(noted.calls) > 0 {
				t.Errorf("%v while the request is in flight", noted.calls)
			}
			w.Header().Set("Cost", test.cost)
			w.WriteHeader(test.status)
			return nil
		})
		w, repl := httptest.NewRecorder(), caddy.NewReplacer()
		r := caddyhttp.PrepareRequest(httptest.NewRequest("GET", test.path, nil), repl, w, nil)
		errtest.None(t, h.ServeHTTP(w, r, next))
		if got := fmt.Sprint(noted.calls); got != test.want {
			t.Errorf("%s, cost %q: %s, want %s", test.path, test.cost, got, test.want)
		}
		h.limiter.Store = noted.Store
	}
}
