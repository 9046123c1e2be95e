package faultsim

import (
	"errors"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/faultsim/simredis"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// newNetwork returns a network whose connections end with the test.
func newNetwork(t *testing.T) *simredis.Network {
	t.Helper()
	network := simredis.NewNetwork()
	t.Cleanup(func() {
		network.CloseAll()
		time.Sleep(time.Minute) // virtual time, until all goroutines have noticed
	})
	return network
}

// openSim opens a store of a Redis that is so far away, there and back. The store has no breaker.
func openSim(t *testing.T, network *simredis.Network, distance time.Duration, o redisstore.Options) *redisstore.Store {
	t.Helper()
	o.Dialer = network.NewClient(distance / 2)
	s := must(redisstore.New(o, redisstore.Hooks{}))
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// limitOf returns a limit of a zone.
func limitOf(zone, algorithm string, events int64) store.Limit {
	return store.NewLimit(zone, "", must(algorithms.NewLimit(algorithms.Quota{Algorithm: algorithm, Events: events, Window: forever})))
}

// ask returns a request of a key, with a limit of 10.
func ask(key string) []store.ZoneRequest {
	return []store.ZoneRequest{{Zone: "z", Key: key, Cost: 1, Limits: []store.Limit{limitOf("z", "fixed_window", 10)}}}
}

// askSlot returns a request of a key that takes a slot.
func askSlot(key string, limit int64) []store.ZoneRequest {
	return []store.ZoneRequest{{Zone: "z", Key: key, Slots: &store.Slots{ID: store.SlotsID("z", ""), Limit: limit}}}
}

// takeSlot takes a slot of a key.
func takeSlot(t *testing.T, s store.Store, key string, limit int64) store.ZoneRequest {
	t.Helper()
	r := askSlot(key, limit)
	allowed, err := s.Take(t.Context(), r)
	if o := r[0].Outcome; err != nil || allowed != o.Slots.Taken {
		t.Fatalf("allowed %v, error %v, %+v", allowed, err, o)
	}
	t.Cleanup(func() {
		if t.Failed() { // else a store sets its counts for ever
			leave(s, r[0])
		}
	})
	return r[0]
}

// leave gives slots back.
func leave(s store.Store, requests ...store.ZoneRequest) {
	var corrections []store.Correction
	for i := range requests {
		corrections = append(corrections, store.Correction{Request: &requests[i], Leave: true})
	}
	s.Correct(corrections, nil)
}

// inFlight returns how many requests hold a slot of a key, as a store without slots finds. It returns -1 if Redis fails.
func inFlight(t *testing.T, s store.Store, key string) int64 {
	t.Helper()
	r := askSlot(key, 100)
	r[0].Peek = true
	if _, err := s.Take(t.Context(), r); err != nil {
		return -1
	}
	return r[0].Outcome.Slots.InFlight
}

// reasonOf returns the reason of a store's error, or "" if there is none.
func reasonOf(err error) string {
	var failed *store.Error
	if errors.As(err, &failed) {
		return failed.Reason
	}
	return ""
}

// within waits for a state that must come within some virtual time, and returns how long that took.
func within(t *testing.T, most time.Duration, what string, done func() bool) time.Duration {
	t.Helper()
	for began := time.Now(); ; time.Sleep(most / 200) {
		if done() {
			return time.Since(began)
		}
		if time.Since(began) > most {
			t.Fatalf("%s: not within %v", what, most)
		}
	}
}
