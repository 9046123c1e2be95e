package redisstore_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/racetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Requests that travel together share the allocations of their message. A request that travels
// alone has its own.
func TestTakeAllocates(t *testing.T) {
	if racetest.Enabled {
		t.Skip("the race detector allocates")
	}
	s := open(t, redisstore.WithMaxInFlight(redisstore.Options{Address: redistest.Shared(t).Addr}, 1))
	limit := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "token_bucket", Events: 1_000_000, Window: 1_000_000})
	requests := make([][]store.ZoneRequest, 64)
	for i := range requests {
		requests[i] = []store.ZoneRequest{{Zone: "z", Key: fmt.Sprint(i), Limits: []store.Limit{limit}, Cost: 1}}
	}
	for _, test := range []struct {
		name string
		most int // allocations for a request
		each int // requests of a run
		run  func() error
	}{
		{"alone", 14, 1, func() error {
			_, err := s.Take(t.Context(), requests[0])
			return err
		}},
		{"64 together", 1, 64, func() error {
			errs := make([]error, len(requests))
			if messages := redisstore.TakeTogether(s, requests, errs); messages != 1 {
				t.Errorf("%d messages, want 1", messages)
			}
			return errors.Join(errs...)
		}},
	} {
		// Other work of the process allocates, too, so the test waits until a look has little of it.
		redistest.WaitForState(t, fmt.Sprint(test.name, ": at most ", test.most, " allocations for a request"), func() (any, bool) {
			got := testing.AllocsPerRun(100, func() {
				errtest.Report(t, test.run())
			}) / float64(test.each)
			return got, got <= float64(test.most)
		})
	}
}
