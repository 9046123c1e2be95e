package ratelimit

import (
	"fmt"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// One script call decides a request, even if the request belongs to several zones. So the work of
// the limits of all zones of a handler together has a bound: see [algorithms.MaxWork]. The bound
// also holds in memory, so that a configuration that is valid for one store is valid for the other.

// maxChargedCost returns the maximum number of events that one request can charge to a limit of the
// zone.
func (z *zone) maxChargedCost() int64 {
	if z.cost.varies() || z.settle != nil && z.settle.Cost != "" {
		return maxCost
	}
	return z.fixedCost
}

// work returns the maximum work of a request with these limits, and the limit with the largest part of
// this work.
func (z *zone) work(set *limitSet) (work int64, heaviest heaviestLimit) {
	cost := z.maxChargedCost()
	for _, l := range set.limits {
		work += l.WorstWork(cost)
		heaviest = heaviest.heavier(heaviestLimit{l, cost})
	}
	if set.ban != nil {
		work += algorithms.CounterWork
	}
	if set.slots != nil {
		work += algorithms.CounterWork
	}
	if z.runtimeOverrides && len(set.limits) == 0 { // a limit's work includes an override
		work += algorithms.CounterWork
	}
	return work, heaviest
}

// boundWork sets maxWork of the zones, or returns an error if they are too much work for one
// request. It divides the rest of the bound among the zones with runtime_overrides.
func boundWork(zones []*zone) error {
	all, overridable := int64(0), int64(0)
	var heaviest heaviestLimit
	for _, z := range zones {
		z.maxWork = 0
		z.eachLimitSet(func(set *limitSet) {
			work, limit := z.work(set)
			z.maxWork, heaviest = max(z.maxWork, work), heaviest.heavier(limit)
		})
		if all += z.maxWork; z.runtimeOverrides {
			overridable++
		}
	}
	if over := all - algorithms.MaxWork; over > 0 {
		return fmt.Errorf("the limits of all zones together take too long to decide in one call: %s", heaviest.lighten(over))
	}
	for _, z := range zones {
		if z.runtimeOverrides {
			z.maxWork += (algorithms.MaxWork - all) / overridable
		}
	}
	return nil
}

// checkWork returns an error if a runtime override is too much work.
func (z *zone) checkWork(set *limitSet) error {
	if work, heaviest := z.work(set); work > z.maxWork {
		return fmt.Errorf("its limits and those of the other zones take too long to decide in one call: %s", heaviest.lighten(work-z.maxWork))
	}
	return nil
}

// heaviestLimit is the limit with the most work for requests of up to a cost. The zero value stands
// for no limit.
type heaviestLimit struct {
	limit *algorithms.Limit
	cost  int64
}

func (h heaviestLimit) work() int64 {
	if h.limit == nil {
		return 0
	}
	return h.limit.WorstWork(h.cost)
}

// heavier returns the one of h and other with more work.
func (h heaviestLimit) heavier(other heaviestLimit) heaviestLimit {
	if other.work() > h.work() {
		return other
	}
	return h
}

// lighten returns the advice to write limits that save the work above the bound.
func (h heaviestLimit) lighten(over int64) string {
	if h.limit != nil {
		if lighter := h.limit.Lighter(h.cost, over); lighter != nil {
			return fmt.Sprintf("write %v, or less, instead of %v, or sliding_window, which only counts", lighter, h.limit)
		}
	}
	return "write fewer limits, sliding_log with fewer events or buckets, or sliding_window, which only counts; " +
		"or divide the zones among several rate_limit handlers, because each handler has a call of its own"
}
