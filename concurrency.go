package ratelimit

import (
	"fmt"
	"strconv"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// A request holds a slot of its key in every zone with concurrency until its response has
// ended. The store takes the slot together with what it charges to the zone's limits. The
// slots of an instance that is killed are freed by the store.

// maxConcurrency is the most requests in flight that a zone can allow.
const maxConcurrency = 10_000_000

// slotRetry is what clients are told who find no slot: nobody knows when a request ends.
const slotRetry algorithms.Micros = 1_000_000

func checkConcurrency(n int64) error {
	if n < 1 || n > maxConcurrency {
		return fmt.Errorf("concurrency must be from 1 to %d, not %d: write how many requests of a key may be in flight at the same time", maxConcurrency, n)
	}
	return nil
}

// checkAlone judges a zone without limits, which has concurrency alone: what is about
// limits means nothing in it.
func (c *Zone) checkAlone() error {
	if c.RuntimeOverrides {
		return nil
	}
	for _, t := range c.Override {
		if t != nil && !t.Unlimited {
			return nil
		}
	}
	for _, option := range []struct {
		name string
		set  bool
	}{{"cost", c.Cost != ""}, {"mode", c.Mode != ""}, {"factor", c.Factor != ""}, {"delay", c.Delay != nil}, {"settle", c.Settle != nil}} {
		if option.set {
			return fmt.Errorf("%s means nothing for concurrency alone, which counts requests: leave it out, or write a limit, such as token_bucket 10 1s", option.name)
		}
	}
	return nil
}

// lacksSlot reports whether the zone denies the request because no slot is free.
func (e *entry) lacksSlot() bool { return e.Slots != nil && !e.Outcome.Slots.Free }

// asksSlots reports whether the request was asked to take a slot.
func (e *entry) asksSlots() bool {
	return e.Slots != nil && e.Outcome.Verdict != store.NotAsked && !e.Outcome.Cached
}

// slotsDecision returns what clients are told of the slots, as if they were a limit.
func (e *entry) slotsDecision() algorithms.Decision {
	limit, o := e.Slots.Limit, &e.Outcome
	if o.Local && e.Slots.Share > 0 {
		limit = e.Slots.Share
	}
	d := algorithms.Decision{Allowed: o.Slots.Free, Remaining: max(limit-o.Slots.InFlight, 0)}
	if o.Slots.Taken {
		d.Charged = 1
	}
	if d.Remaining < limit {
		d.ResetAfter = slotRetry
	}
	if !d.Allowed {
		d.MoreAfter, d.RetryAfter = slotRetry, slotRetry
	}
	return d
}

// appendSlotPolicy appends the item of the slots in RateLimit-Policy.
func appendSlotPolicy(b []byte, label string, n int64) []byte {
	b = appendItem(b, label)
	b = append(b, ";q="...)
	b = strconv.AppendInt(b, n, 10)
	return append(b, `;qu="concurrent-requests"`...)
}
