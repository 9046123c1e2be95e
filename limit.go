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

	// How many events one window grants: a number above 0. For a sliding_log without buckets the
	// maximum is 200000.
	Events int64 `json:"events,omitempty"`

	// The time in which the limit grants that many events: a duration such as "1m", at least 1µs.
	Window caddy.Duration `json:"window,omitempty"`

	// How many events can be taken at once: a number above 0. The algorithms gcra, leaky_bucket,
	// token_bucket, and smooth without warm_up have a burst. A smooth limit grants one more
	// (default: events).
	Burst int64 `json:"burst,omitempty" zero:"as many as events"`

	// The least time between two charged requests of a sliding_log, at any cost; at least 1µs
	// (default: none).
	MinInterval caddy.Duration `json:"min_interval,omitempty"`

	// The number of parts into which a sliding_log divides a window, 1 to 2000. The log then
	// remembers one number for each part instead of every event. An event counts up to one part
	// longer (default: every event is remembered).
	Buckets int64 `json:"buckets,omitempty"`

	// How many events a new budget holds, 0 to burst, for token_bucket and smooth without
	// warm_up (default: burst).
	Initial *int64 `json:"initial,omitempty"`

	// How long a smooth limit takes from cold to its full rate; at least 1µs. The limit is cold
	// at first, and after it was idle for that time (default: it is never cold).
	WarmUp caddy.Duration `json:"warm_up,omitempty"`

	// The cost of an event when a smooth limit with warm_up is cold. It is a multiple of the
	// usual cost: 1 to 1000, with up to three decimals (default 3).
	ColdFactor float64 `json:"cold_factor,omitempty" zero:"3"`

	// The beginning of the windows of a fixed_window. With "first", a window begins with the
	// first charged event. With "clock", windows begin at multiples of window since the Unix
	// epoch, UTC (default "first").
	Align string `json:"align,omitempty"`

	compiled *algorithms.Limit // the result of compile; nil before
}

// optionField returns a pointer to the field of an option in the block of a limit, or nil for
// an unknown name.
func (l *Limit) optionField(name string) any {
	switch name {
	case "min_interval":
		return &l.MinInterval
	case "buckets":
		return &l.Buckets
	case "initial":
		return &l.Initial
	case "warm_up":
		return &l.WarmUp
	case "cold_factor":
		return &l.ColdFactor
	case "align":
		return &l.Align
	}
	return nil
}

// compileLimits compiles limits. Two equal limits are an error.
func compileLimits(configured []Limit) (limits []*algorithms.Limit, err error) {
	for i := range configured {
		limit, err := configured[i].compile()
		if err != nil {
			return nil, fmt.Errorf("limit %d (%s): %w", i+1, configured[i].Algorithm, err)
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

// compile checks the limit, and returns it ready to be evaluated. Later calls return the same
// result.
func (l *Limit) compile() (*algorithms.Limit, error) {
	if l.compiled != nil {
		return l.compiled, nil
	}
	var err error
	micros := func(option string, d caddy.Duration) algorithms.Micros {
		if span := time.Duration(d); span%time.Microsecond != 0 && err == nil {
			err = fmt.Errorf("%s must be a whole number of microseconds, not %v: write for example %v", option, span, microsExample(span))
		}
		return time.Duration(d).Microseconds()
	}
	cold := math.Round(l.ColdFactor * 1000)
	if !(math.Abs(cold-l.ColdFactor*1000) <= 1e-6 && math.Abs(cold) <= 1e9) || cold == 0 && l.ColdFactor != 0 {
		err = fmt.Errorf("cold_factor must be from 1 to 1000, with up to three decimals, not %v: write for example 3 or 2.5", l.ColdFactor)
	}
	quota := algorithms.Quota{
		Algorithm: l.Algorithm, Events: l.Events, Window: micros("window", l.Window), Burst: l.Burst,
		Align: l.Align, MinInterval: micros("min_interval", l.MinInterval), Buckets: l.Buckets, Initial: l.Initial,
		WarmUp: micros("warm_up", l.WarmUp), ColdFactor: int64(cold),
	}
	if err != nil {
		return nil, err
	}
	l.compiled, err = algorithms.NewLimit(quota)
	return l.compiled, err
}

// checkEvents checks max_events without its window.
func checkEvents(events int64) error {
	_, err := (&Limit{Algorithm: "sliding_log", Events: min(events, algorithms.MaxLogged), Window: caddy.Duration(time.Second)}).compile()
	return err
}

// checkWindow checks the window of max_events without the events.
func checkWindow(window caddy.Duration) error {
	_, err := (&Limit{Algorithm: "sliding_log", Events: 1, Window: window}).compile()
	return err
}

// scaleLimits returns the limits with their bursts divided by a factor, in millionths. The
// scaled limits have the same budgets as the given ones.
func scaleLimits(limits []store.Limit, factor int64) []store.Limit {
	if factor == unitFactor {
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

// limitLabels returns the names of a zone's limits in header fields: the name of the zone, and for
// further limits the name with a number.
func limitLabels(zone string, n int) []string {
	labels := slices.Repeat([]string{zone}, n)
	for i := 1; i < n; i++ {
		labels[i] += "/" + strconv.Itoa(i+1)
	}
	return labels
}
