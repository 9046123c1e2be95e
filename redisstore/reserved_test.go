package redisstore_test

import (
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// The reserved events of an instance that is killed are used after 30 s: the next request of the key shows it, and claims
// the share.
func TestReservedOfKilledInstance(t *testing.T) {
	server := redistest.Shared(t)
	killed, s := open(t, redisstore.Options{Address: server.Addr}), open(t, redisstore.Options{Address: server.Addr})
	calendar := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "calendar", Events: 10, Period: "year"})
	now := algorithms.Micros(1_790_000_000_000_000)
	take := func(s *redisstore.Store, cost, used, reserved int64) {
		t.Helper()
		r := []store.ZoneRequest{{Zone: "z", Key: "killed", Cost: cost, Limits: []store.Limit{calendar}, ReservedID: store.ReservedID("z", "")}}
		allowed, err := s.TakeAt(t.Context(), now, r)
		o := r[0].Outcome
		if !allowed || err != nil || o.Decisions[0].Used != used || o.Reserved.Events != reserved || calendar.Crossed(o.Decisions[0], 8) != (used >= 8) {
			t.Errorf("%+v, %v, want %d used, %d reserved", o, err, used, reserved)
		}
	}
	take(killed, 8, 0, 8)
	now += algorithms.SlotsExpiry - 1
	take(s, 1, 0, 9)
	now++
	take(s, 0, 8, 1)
}

// A reservation ends once, also if the charge in the same correction fails.
func TestReservedEndsOnce(t *testing.T) {
	server := redistest.Shared(t)
	s := open(t, redisstore.Options{Address: server.Addr})
	limit := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "fixed_window", Events: 10, Window: 3_600_000_000})
	take := func(cost, reserved int64) []store.ZoneRequest {
		t.Helper()
		r := []store.ZoneRequest{{Zone: "z", Key: "once", Cost: cost, Limits: []store.Limit{limit}, ReservedID: store.ReservedID("z", "")}}
		if allowed, err := s.Take(t.Context(), r); !allowed || err != nil || r[0].Outcome.Reserved.Events != reserved {
			t.Errorf("%+v, %v, want %d reserved", r[0].Outcome, err, reserved)
		}
		return r
	}
	r := take(2, 2)
	take(3, 5)
	name := "caddy_rl:{once}:" + limit.ID
	budget := server.Client.Get(t.Context(), name).Val()
	server.Client.Set(t.Context(), name, "foreign", 0)
	if err := s.CorrectAt(t.Context(), 0, []store.Correction{{Request: &r[0], Charge: 1, Settled: true}}); err == nil {
		t.Error("a budget that is none was charged")
	}
	server.Client.Set(t.Context(), name, budget, 0)
	take(0, 3)
	server.Client.Del(t.Context(), "caddy_rl:{once}:"+store.ReservedID("z", "")) // the instance sets its count again
	take(0, 0)
	take(1, 4)
}
