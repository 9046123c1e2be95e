package storetest

import (
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// modesOf returns the modes that a limit can have.
func modesOf(q algorithms.Quota) []algorithms.Mode {
	if a, err := algorithms.Lookup(q.Algorithm); err == nil && a.BinaryOnly {
		return []algorithms.Mode{algorithms.Binary}
	}
	return []algorithms.Mode{algorithms.Binary, algorithms.Nary, algorithms.Uniform, algorithms.Force}
}

// Variants returns the quotas of every algorithm, and quotas with options that change its arithmetic.
func Variants(events int64, window algorithms.Micros) []algorithms.Quota {
	quotas, none := Quotas(events, window), int64(0)
	for _, q := range quotas {
		switch q.Algorithm {
		case "fixed_window":
			q.Align = "clock"
		case "sliding_log":
			q.Buckets = 4
		case "token_bucket":
			q.Initial = &none
		case "smooth":
			q.Burst, q.WarmUp = 0, window
		default:
			continue
		}
		quotas = append(quotas, q)
	}
	return append(quotas, algorithms.Quota{Algorithm: "sliding_log", Events: events, Window: window, MinInterval: window / events / 2})
}

// forEach runs a subtest for each quota.
func forEach(t *testing.T, quotas []algorithms.Quota, run func(t *testing.T, q algorithms.Quota)) {
	for _, q := range quotas {
		name := q.Algorithm
		for _, option := range []struct {
			name string
			set  bool
		}{
			{"align", q.Align != ""},
			{"buckets", q.Buckets != 0},
			{"min_interval", q.MinInterval != 0},
			{"initial", q.Initial != nil},
			{"warm_up", q.WarmUp != 0},
		} {
			if option.set {
				name += " " + option.name
			}
		}
		t.Run(name, func(t *testing.T) { run(t, q) })
	}
}

// Limit returns the only limit of a zone. An error ends the test.
func Limit(t testing.TB, zone string, q algorithms.Quota) store.Limit {
	t.Helper()
	return Limits(t, zone, q)[0]
}

// Limits returns the limits of a zone. An error ends the test.
func Limits(t testing.TB, zone string, quotas ...algorithms.Quota) []store.Limit {
	t.Helper()
	var limits []*algorithms.Limit
	for _, q := range quotas {
		l, err := algorithms.NewLimit(q)
		if err != nil {
			t.Fatal(err)
		}
		limits = append(limits, l)
	}
	return store.NewLimits(zone, "", limits)
}

// Quotas returns a quota of every algorithm. It allows events at once, and events per window. A calendar allows events
// per day.
func Quotas(events int64, window algorithms.Micros) []algorithms.Quota {
	var quotas []algorithms.Quota
	for _, a := range algorithms.All() {
		q := algorithms.Quota{Algorithm: a.Name, Events: events, Window: window}
		if a.Calendar {
			q.Window, q.Period = 0, "day"
		}
		if a.Name == "smooth" { // which grants one more than its burst
			if q.Burst = events - 1; q.Burst == 0 {
				q.WarmUp = window
			}
		}
		quotas = append(quotas, q)
	}
	return quotas
}

// delayQuotas returns the quotas whose limits can charge in advance.
func delayQuotas(t *testing.T, events int64, window algorithms.Micros) (quotas []algorithms.Quota) {
	for _, q := range Quotas(events, window) {
		if Limit(t, "z", q).CheckDelay(window) == nil {
			quotas = append(quotas, q)
		}
	}
	return quotas
}
