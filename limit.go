package ratelimit

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Limit is an algorithm with its quota.
type Limit struct {
	// The algorithm: fixed_window, gcra, leaky_bucket, sliding_log,
	// sliding_window, smooth or token_bucket.
	Algorithm string `json:"algorithm,omitempty"`

	// How many events one window grants; above 0, and at most 200000 for a sliding_log
	// without buckets.
	Events int64 `json:"events,omitempty"`

	// The span of time that grants so many events; at least 1µs.
	Window caddy.Duration `json:"window,omitempty"`

	// How many events can be taken at once, for gcra, leaky_bucket, token_bucket
	// and smooth without warm_up, where one more can (default: events).
	Burst int64 `json:"burst,omitempty"`

	// The least span between two charged requests of a sliding_log, whatever they
	// cost; at least 1µs (default: none).
	MinInterval caddy.Duration `json:"min_interval,omitempty"`

	// Into how many parts of a window a sliding_log divides time, 1 to 2000; it
	// then remembers a number for each instead of every event, which counts up to
	// one part longer (default: every event is remembered).
	Buckets int64 `json:"buckets,omitempty"`

	// How many events a budget holds that nothing is known of, 0 to burst, for
	// token_bucket and smooth without warm_up (default: burst).
	Initial *int64 `json:"initial,omitempty"`

	// How long a smooth limit takes from cold, as it is at first and after being
	// idle for so long, to its full rate; at least 1µs (default: it is never cold).
	WarmUp caddy.Duration `json:"warm_up,omitempty"`

	// How many times as much an event costs when a smooth limit with warm_up is
	// cold, 1 to 1000 with up to three decimals (default 3).
	ColdFactor float64 `json:"cold_factor,omitempty"`

	// Where the windows of a fixed_window begin: "first", with the first event
	// charged, or "clock", at multiples of window since the Unix epoch, UTC
	// (default "first").
	Align string `json:"align,omitempty"`
}

// compileLimits makes limits ready, no two of which may be the same.
func compileLimits(configured []Limit) (limits []*algorithms.Limit, err error) {
	for i, l := range configured {
		limit, err := l.compile()
		if err != nil {
			return nil, fmt.Errorf("limit %d (%s): %w", i+1, l.Algorithm, err)
		}
		for j, other := range limits {
			if other.Fingerprint() == limit.Fingerprint() {
				return nil, fmt.Errorf("limits %d and %d are the same, %v: remove one", j+1, i+1, limit)
			}
		}
		limits = append(limits, limit)
	}
	return limits, nil
}

// compileOverride makes a limit ready.
func (l Limit) compile() (*algorithms.Limit, error) {
	for _, s := range []struct {
		name string
		span caddy.Duration
	}{{"window", l.Window}, {"min_interval", l.MinInterval}, {"warm_up", l.WarmUp}} {
		if span := time.Duration(s.span); span%time.Microsecond != 0 {
			return nil, fmt.Errorf("%s must be a whole number of microseconds, not %v: write for example %v", s.name, span, wholeMicros(span))
		}
	}
	cold := math.Round(l.ColdFactor * 1000)
	if !(math.Abs(cold-l.ColdFactor*1000) <= 1e-6 && math.Abs(cold) <= 1e9) || cold == 0 && l.ColdFactor != 0 {
		return nil, fmt.Errorf("cold_factor must be from 1 to 1000, with up to three decimals, not %v: write for example 3 or 2.5", l.ColdFactor)
	}
	return algorithms.NewLimit(algorithms.Quota{
		Algorithm: l.Algorithm, Events: l.Events, Window: time.Duration(l.Window).Microseconds(), Burst: l.Burst, Align: l.Align,
		MinInterval: time.Duration(l.MinInterval).Microseconds(), Buckets: l.Buckets, Initial: l.Initial,
		WarmUp: time.Duration(l.WarmUp).Microseconds(), ColdFactor: int64(cold),
	})
}

// checkEvents and checkWindow judge max_events and window where they come one at
// a time.
// checkEvents checks what can be said of events without their window.
func checkEvents(events int64) error {
	_, err := Limit{Algorithm: "sliding_log", Events: min(events, algorithms.MostLogged), Window: caddy.Duration(time.Second)}.compile()
	return err
}

func checkWindow(window caddy.Duration) error {
	_, err := Limit{Algorithm: "sliding_log", Events: 1, Window: window}.compile()
	return err
}

// scaled returns the limits with their bursts divided by a factor, in millionths.
// Budgets are the same.
func scaled(limits []store.Limit, factor int64) []store.Limit {
	if factor == sameFactor {
		return limits
	}
	limits = slices.Clone(limits)
	for i, l := range limits {
		limits[i].Limit = l.Scaled(factor)
		if l.Share != nil {
			limits[i].Share = l.Share.Scaled(factor)
		}
	}
	return limits
}

// limitLabels are the names of a zone's limits in header fields: the zone's, and
// for further ones the zone's with a number.
func limitLabels(zone string, n int) []string {
	labels := slices.Repeat([]string{zone}, n)
	for i := 1; i < n; i++ {
		labels[i] += "/" + strconv.Itoa(i+1)
	}
	return labels
}
