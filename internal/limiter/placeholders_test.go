package limiter

import (
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// The checks of a configuration know the fields of zones that a request has.
func TestZoneFields(t *testing.T) {
	limit, err := algorithms.NewLimit(algorithms.Quota{Algorithm: "gcra", Events: 1, Window: 1_000_000})
	if err != nil {
		t.Fatal(err)
	}
	state := &State{Decided: true, Entries: []Entry{{Zone: &Zone{Name: "z"}, ZoneRequest: &store.ZoneRequest{
		Limits: []store.Limit{{Limit: limit}}, Outcome: store.Outcome{Decisions: []algorithms.Decision{{Allowed: true}}},
	}}}}
	state.innermost = state
	for _, field := range keys.ZoneFields {
		if _, ok := state.lookUpPlaceholder(PlaceholderPrefix + ".z." + field); !ok {
			t.Errorf("there is no field %s", field)
		}
	}
}
