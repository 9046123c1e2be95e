package ratelimit

import (
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
)

// Operators can write a limit as they see it.
func TestParseLimitText(t *testing.T) {
	quotas := []algorithms.Quota{{Algorithm: "smooth", Events: 5, Window: 1_000_000, WarmUp: 10_000_000, ColdFactor: 2500}}
	for _, window := range []algorithms.Micros{1, 1500, 1_000_000, 60_000_000, 3_600_000_000, 90_061_000_001} {
		quotas = append(quotas, storetest.Variants(7, window)...)
	}
	for _, period := range []string{"day", "month", "year"} {
		quotas = append(quotas, algorithms.Quota{Algorithm: "calendar", Events: 7, Period: period, TimeZone: "Europe/Berlin"})
	}
	quotas = append(quotas,
		algorithms.Quota{Algorithm: "calendar", Events: 7, Period: "month", StartDay: 15},
		algorithms.Quota{Algorithm: "calendar", Events: 7, Period: "week", TimeZone: "Asia/Kathmandu", StartDay: algorithms.Sunday})
	for _, q := range quotas {
		want, err := algorithms.NewLimit(q)
		if err != nil {
			continue // too short for this algorithm
		}
		l, err := parseLimitText(want.String())
		if err != nil {
			t.Errorf("%v: %v", want, err)
			continue
		}
		if got, err := l.compile(); err != nil || got.Fingerprint() != want.Fingerprint() || got.String() != want.String() {
			t.Errorf("%v is read as %v (%v)", want, got, err)
		}
	}
	for text, says := range map[string]string{
		"":                                      "it has no limit: write for example token_bucket 100 1m",
		"# nothing":                             "it has no limit",
		"token_bucket":                          "token_bucket takes events, window and optionally a burst, not ",
		"token_bukket 1 1s":                     "write one of calendar, fixed_window, gcra",
		"token_bucket 1 soon":                   "soon",
		"token_bucket 1 1s beginning":           "beginning",
		"token_bucket 1 1s beginning with lots": "lots",
		"token_bucket 1 1s\ngcra 1 1s":          `"gcra" follows the limit`,
		"token_bucket 1 1s {\n":                 "unknown option",
		"unlimited":                             "can't be combined with limits",
		"fixed_window 1 1h in 7 buckets":        `fixed_window takes events and window, not "1 1h in 7 buckets"`,
	} {
		errtest.Says(t, errtest.Of(parseLimitText(text)), says, text)
	}
}

func FuzzParseLimitText(f *testing.F) {
	f.Add("token_bucket 100 1m 200 beginning with 0")
	f.Add("sliding_log 5 1h {\n\tbuckets 4\n}")
	f.Fuzz(func(t *testing.T, text string) {
		l, err := parseLimitText(text)
		if err != nil {
			return
		}
		limit, err := l.compile()
		if err != nil {
			t.Fatalf("%q is read, but %v", text, err)
		}
		again, err := parseLimitText(limit.String())
		errtest.None(t, err, limit)
		if second, err := again.compile(); err != nil || second.Fingerprint() != limit.Fingerprint() {
			t.Fatalf("%q: %v, then %v (%v)", text, limit, second, err)
		}
	})
}
