package store_test

import (
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// A smaller limit is soon full again. The budget that it shares with a larger one is kept for as long as the larger one needs.
func TestMemoryKeepsWhatALargerLimitCounts(t *testing.T) {
	const hour = 3_600_000_000
	for _, name := range []string{"token_bucket", "gcra", "leaky_bucket", "smooth"} {
		shared := store.NewSharedMemory()
		s := shared.Bounded(1000, func() int { return 1 }, nil)
		now := algorithms.Micros(1_800_000_000_000_000)
		take := func(burst, cost, remaining int64) {
			t.Helper()
			limit := storetest.Limit(t, "z", algorithms.Quota{Algorithm: name, Events: 1000, Window: hour, Burst: burst})
			r := []store.ZoneRequest{{Zone: "z", Key: "k", Limits: []store.Limit{limit}, Cost: cost}}
			if _, err := s.TakeAt(t.Context(), now, r); err != nil || r[0].Outcome.Decisions[0].Remaining > remaining {
				t.Errorf("%v: %+v, want at most %d remaining", limit, r[0].Outcome.Decisions, remaining)
			}
		}
		take(1000, 1000, 1)
		now += hour / 100
		take(10, 1, 11)
		now += hour / 50
		shared.SweepAt(now)
		take(1000, 0, 30)
	}
}
