package algorithms_test

import (
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// TryLimit makes the same limits as NewLimit.
func TestTryLimit(t *testing.T) {
	for _, q := range []algorithms.Quota{
		{Algorithm: "token_bucket", Events: 10, Window: 1_000_000, Burst: 20},
		{Algorithm: "token_bucket", Events: 60_001, Window: 86_400_000_000}, // can't be counted exactly
		{Algorithm: "sliding_log", Events: algorithms.MaxLogged + 1, Window: 1_000_000},
		{Algorithm: "fixed_window", Events: 10, Window: 1_000_000, Burst: 20},
		{Algorithm: "fixed_windows", Events: 10, Window: 1_000_000},
		{Algorithm: "fixed_window", Window: 1_000_000},
	} {
		want, err := algorithms.NewLimit(q)
		got := algorithms.TryLimit(q)
		if (got == nil) != (err != nil) || got != nil && got.Fingerprint() != want.Fingerprint() {
			t.Errorf("%+v: %v, want %v, %v", q, got, want, err)
		}
	}
}
