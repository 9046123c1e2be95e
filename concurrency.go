package ratelimit

import (
	"fmt"
	"maps"
	"slices"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// A request takes a slot of its key in every zone with the option concurrency, and gives it back
// when its response has ended. The store takes the slots in the same call as the charges. If an
// instance is killed, the store frees the slots of its requests.

// maxConcurrency is the largest value of the option concurrency.
const maxConcurrency = 10_000_000

// slotRetryAfter is the retry after of a request without a free slot. It is only a guess,
// because the end of a running request is unknown.
const slotRetryAfter algorithms.Micros = 1_000_000

// checkConcurrency checks the option concurrency.
func checkConcurrency(n int64) error {
	if n < 1 || n > maxConcurrency {
		return fmt.Errorf("concurrency must be from 1 to %d, not %d: write how many requests of a key may be in flight at the same time",
			maxConcurrency, n)
	}
	return nil
}

// checkConcurrencyOnly checks a zone with concurrency and without limits. It rejects options that
// need a limit, and overrides that lift the limits, unless an override may have a limit.
func (c *Zone) checkConcurrencyOnly() error {
	for _, set := range c.Override {
		if set != nil && !set.Unlimited {
			return nil
		}
	}
	for _, s := range zoneSettings() {
		if s.needsLimits && s.value(c) != nil && !c.RuntimeOverrides {
			return fmt.Errorf("%s needs a limit, but the zone has only concurrency: "+
				"leave it out, or write a limit, such as token_bucket 10 1s", s.name)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(c.Override)) {
		if c.Override[key] != nil {
			return fmt.Errorf("override %q unlimited lifts only limits, and the zone has only concurrency: "+
				"write exempt instead, with a matcher such as client_ip 203.0.113.0/24, to let requests pass without a slot", key)
		}
	}
	return nil
}

// lacksSlot reports whether the zone denies the request because no slot is free.
func (e *zoneEntry) lacksSlot() bool { return e.Slots != nil && !e.Outcome.Slots.Free }

// askedForSlot reports whether the store was asked for a slot.
func (e *zoneEntry) askedForSlot() bool {
	return e.Slots != nil && e.Outcome.Verdict != store.NotAsked && !e.Outcome.Cached
}

// slotsDecision returns the state of the slots in the form of a limit's decision.
func (e *zoneEntry) slotsDecision() algorithms.Decision {
	limit, o := e.Slots.Limit, &e.Outcome
	if o.Local && e.Slots.Share > 0 {
		limit = e.Slots.Share
	}
	d := algorithms.Decision{Allowed: o.Slots.Free, Remaining: max(limit-o.Slots.InFlight, 0)}
	if o.Slots.Taken {
		d.Charged = 1
	}
	if d.Remaining < limit {
		d.ResetAfter = slotRetryAfter
	}
	if !d.Allowed {
		d.MoreAfter, d.RetryAfter = slotRetryAfter, slotRetryAfter
	}
	return d
}
