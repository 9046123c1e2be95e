package limiter

import (
	"fmt"
	"math"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

func TestEnforces(t *testing.T) {
	const keys = 20_000
	one, another := &Zone{Name: "one"}, &Zone{Name: "another"}
	for _, percent := range []float64{0, 0.5, 1, 10, 50, 99, 100} {
		one.Enforce, another.Enforce = percent, percent
		n, both := 0, 0
		for i := range keys {
			key := fmt.Sprint("203.0.113.", i)
			if one.Enforces(key) {
				n++
				if another.Enforces(key) {
					both++
				}
			}
		}
		share := percent / 100
		// Five standard deviations: once in a million, if it weren't always the same.
		within := func(got int, p float64) bool {
			return math.Abs(float64(got)-p*keys) <= 5*math.Sqrt(keys*p*(1-p))
		}
		if !within(n, share) || !within(both, share*share) {
			t.Errorf("at %v %% zone one enforces %d of %d keys, and another %d of the same", percent, n, keys, both)
		}
	}
	// Not to be changed: instances of two versions run side by side.
	stable := &Zone{Name: "api"}
	for key, below := range map[string]float64{"": 75.39, "alice": 82.24, "203.0.113.7": 20.24} {
		stable.Enforce = below
		if stable.Enforces(key) {
			t.Errorf("key %q is enforced at %v %%", key, below)
		}
		stable.Enforce = below + 0.01
		if !stable.Enforces(key) {
			t.Errorf("key %q is not enforced at %v %%", key, stable.Enforce)
		}
	}
}

// The checks of a configuration know the fields of zones that a request has.
func TestZoneFields(t *testing.T) {
	limit := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "gcra", Events: 1, Window: 1_000_000})
	state := newTestState(nil, &Zone{Name: "z"}, nil, store.ZoneRequest{
		Limits: []store.Limit{limit}, Outcome: store.Outcome{Decisions: []algorithms.Decision{{Allowed: true}}},
	})
	state.Decided = true
	state.innermost = state
	for _, field := range keys.ZoneFields {
		if _, ok := state.lookUpPlaceholder(PlaceholderPrefix + ".z." + field); !ok {
			t.Errorf("there is no field %s", field)
		}
	}
}
