package store_test

import (
	"errors"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// manyFailures is a store that fails to make corrections, each by itself, as a cluster of which each key is on another node.
type manyFailures struct{ store.Store }

func (manyFailures) Correct(corrections []store.Correction, failed func(error)) {
	for range corrections {
		failed(errors.New("it fails"))
	}
}

// The local store is charged once what the main store may have lost, however many corrections of a request fail.
func TestFailoverChargesOnce(t *testing.T) {
	local := store.NewMemory(1000)
	limit := fixedWindow(t, 10, time.Hour)
	take := func(s store.Store, key string, cost int64) store.ZoneRequest {
		r := []store.ZoneRequest{{Zone: "z", Key: key, Cost: cost, Limits: []store.Limit{limit}}}
		if _, err := s.Take(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		return r[0]
	}
	f := store.NewFailover(manyFailures{store.NewMemory(1000)}, local, func(error) {})
	var corrections []store.Correction
	failures := 0
	for _, key := range []string{"a", "b", "c"} {
		r := take(f, key, 1)
		corrections = append(corrections, store.Correction{Request: &r, Charge: 2})
	}
	f.Correct(corrections, func(error) { failures++ })
	for _, key := range []string{"a", "b", "c"} {
		if r := take(local, key, 0); r.Outcome.Decisions[0].Remaining != 8 || failures != 3 {
			t.Errorf("%s: %d remain after %d failures, want 8 after 3", key, r.Outcome.Decisions[0].Remaining, failures)
		}
	}
}

// An override that has ended takes no memory after a sweep, also if its shard has nothing else.
func TestEndedOverridesAreSwept(t *testing.T) {
	const minute = 60_000_000
	for _, endless := range []bool{false, true} {
		m := store.NewSharedMemory()
		s, text := m.Bounded(1000, zoneCount(1), nil), `{"unlimited":true}`
		now := m.Now()
		c := store.Change{Zone: "z", Key: "k", Override: &text}
		if !endless {
			c.OverrideFor = minute
		}
		if err := s.ChangeAt(t.Context(), now, c); err != nil {
			t.Fatal(err)
		}
		m.SweepAt(now + minute - 1)
		before := m.KeptOverrides()
		m.SweepAt(now + minute)
		want := 0
		if endless {
			want = 1
		}
		if after := m.KeptOverrides(); before != 1 || after != want {
			t.Errorf("without an end %t: %d overrides, and then %d, want 1 and %d", endless, before, after, want)
		}
	}
}
