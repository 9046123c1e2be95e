package limiter

import (
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// The checks of a configuration know the fields of zones that a request has.
func TestZoneFields(t *testing.T) {
	e := &Entry{Request: &store.Request{
		Limits: make([]store.Limit, 1), Outcome: store.Outcome{Decisions: []algorithms.Decision{{Allowed: true}}},
	}}
	limit, err := algorithms.NewLimit(algorithms.Quota{Algorithm: "gcra", Events: 1, Window: 1_000_000})
	if err != nil {
		t.Fatal(err)
	}
	e.Limits[0].Limit = limit
	for _, field := range keys.ZoneFields {
		if _, ok := e.placeholderField(field); !ok {
			t.Errorf("there is no field %s", field)
		}
	}
}
