package limiter

import (
	"testing"

	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/bodies"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/telemetry"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// newTestLimiter returns a limiter with a zone that has a limit of a million events per hour, and its budgets in memory.
// The rest of the zone is as given.
func newTestLimiter(t *testing.T, z *Zone) *Limiter {
	t.Helper()
	limit := storetest.Limit(t, "api", algorithms.Quota{Algorithm: "fixed_window", Events: 1_000_000, Window: 3_600_000_000})
	z.Name, z.Keys, z.Enforce = "api", []keys.Template{keys.NewKey("", keys.Form{})}, 100
	z.BodyNeeds.Keys = make([]bodies.Kinds, len(z.Keys))
	z.Metrics, z.KeyWarnings, z.Logger = telemetry.ZoneMetrics{Disabled: true}, NewKeyWarnings(z.Keys, nil), zap.NewNop()
	z.LimitSets = &LimitSets{DefaultSet: &LimitSet{Limits: []*algorithms.Limit{limit.Limit}}}
	z.DefaultSet.NameBudgets(z.Name, z.Keys)
	return &Limiter{
		Zones: []*Zone{z}, Store: inMemory(), SlotLines: ProcessSlotLines,
		ReportCorrectionFailure: func(err error) { t.Error(err) },
	}
}

// newTestState returns the state of a request to a limiter that belongs to one zone.
func newTestState(l *Limiter, z *Zone, set *LimitSet, r store.ZoneRequest) *State {
	state := &State{Limiter: l, Requests: []store.ZoneRequest{r}}
	state.Entries = []Entry{{Zone: z, LimitSet: set, ZoneRequest: &state.Requests[0]}}
	return state
}

func inMemory() store.Store { return store.NewMemory(1000) }
