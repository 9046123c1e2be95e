package redisstore_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// A script call is as many requests as their work allows, one at least.
func TestWorkPerCall(t *testing.T) {
	server := redistest.Shared(t)
	ctx := t.Context()
	const most = algorithms.MaxLogged
	for _, test := range []struct {
		events int64
		cost   int64
		batch  int
		calls  int // for 8 requests
	}{
		{1000, 1, 128, 1},
		{1000, 1, 5, 2},
		{most, 1, 128, 2},
		{most, most / 3, 128, 4},
		{most, most, 128, 8},
		{most, 1 << 31, 128, 8},
	} {
		limit := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "sliding_log", Events: test.events, Window: 3_600_000_000})
		s := open(t, redisstore.WithMaxInFlight(redisstore.Options{Address: server.Addr, Timeout: patient, Batch: test.batch}, 1))
		server.Client.FlushDB(ctx)
		ask := func(key string, cost int64) []store.ZoneRequest {
			return []store.ZoneRequest{{Zone: "z", Key: key, Cost: cost, Limits: []store.Limit{limit}}}
		}
		if _, err := s.Take(ctx, ask("first", 1)); err != nil { // the script is there
			t.Fatal(err)
		}
		var requests [][]store.ZoneRequest
		for i := range 8 {
			requests = append(requests, ask(fmt.Sprint(i), test.cost))
		}
		errs := make([]error, len(requests))
		if calls := redisstore.TakeTogether(s, requests, errs); calls != test.calls {
			t.Errorf("cost %d of %d: %d script calls, want %d", test.cost, test.events, calls, test.calls)
		}
		if err := errors.Join(errs...); err != nil {
			t.Error(err)
		}
	}
}
