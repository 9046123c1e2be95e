package storetest

import (
	"context"
	"reflect"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// staleOutcome is the outcome of an earlier request. A store must overwrite all of it.
var staleOutcome = store.Outcome{
	Verdict: store.Banned, Cached: true, Local: true, At: 1,
	Slots: store.SlotsOutcome{Taken: true, InFlight: 7, Overflow: true}, Ban: store.BanOutcome{Stands: true, Began: true, EndsAfter: 1},
}

func newRequest(zone, key string, cost int64, limits ...store.Limit) []store.ZoneRequest {
	return []store.ZoneRequest{{Zone: zone, Key: key, Cost: cost, Limits: limits, Outcome: staleOutcome}}
}

// checkOutcome checks the outcome of a request without slots and bans, except its decisions and its instant.
func checkOutcome(t *testing.T, r *store.ZoneRequest, verdict store.Verdict) {
	t.Helper()
	o := r.Outcome
	o.Decisions, o.Local, o.At = nil, false, 0
	if want := (store.Outcome{Verdict: verdict, Slots: store.SlotsOutcome{Free: true}}); !reflect.DeepEqual(o, want) {
		t.Errorf("%+v, want %+v", o, want)
	}
}

// takeAt takes at an instant, and checks that the outcomes have it. An error ends the test.
func takeAt(t *testing.T, s Store, now algorithms.Micros, requests []store.ZoneRequest) bool {
	t.Helper()
	allowed, err := s.TakeAt(context.Background(), now, requests)
	if err != nil {
		t.Fatalf("take: %v", err)
	}
	for i := range requests {
		if at := requests[i].Outcome.At; now != 0 && at != now {
			t.Errorf("decided at %d, want %d", at, now)
		}
	}
	return allowed
}

// takeUntilDenied takes until a request is denied.
func takeUntilDenied(t *testing.T, s Store, now algorithms.Micros, r []store.ZoneRequest) {
	t.Helper()
	for n := 0; takeAt(t, s, now, r); n++ {
		if n == 1000 {
			t.Fatal("everything passes")
		}
	}
}
