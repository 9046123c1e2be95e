package ratelimit

import (
	"fmt"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// One script call decides a request, even if the request belongs to several zones. So the
// limits of all zones of a handler together have a bound: see [algorithms.MaxWork]. The
// bound also holds in memory, so that a zone means the same in every store.

// worstCost returns the most events that a limit of the zone can be charged at a time.
func (z *zone) worstCost() int64 {
	if z.cost.varies() || z.settle != nil && z.settle.Cost != "" {
		return maxCost
	}
	return z.oneCost
}

// work returns the most work of a request of up to that cost under these terms, and the limit
// with the largest part of it; nil if there is none.
func (t *limitSet) work(cost int64) (work int64, largest heaviest) {
	for _, l := range t.limits {
		work += l.WorstWork(cost)
		largest = largest.or(heaviest{l, cost})
	}
	if t.ban != nil {
		work += algorithms.CounterWork
	}
	if t.slots != nil {
		work += algorithms.CounterWork
	}
	return work, largest
}

// boundWork denies zones that are too much work for one request. It divides the rest of the
// bound among the zones with overrides at run time.
func boundWork(zones []*zone) error {
	all, overridable := int64(0), int64(0)
	var largest heaviest
	for _, z := range zones {
		z.maxWork = 0
		z.eachLimitSet(func(t *limitSet) {
			work, limit := t.work(z.worstCost())
			z.maxWork, largest = max(z.maxWork, work), largest.or(limit)
		})
		if all += z.maxWork; z.overridable {
			overridable++
		}
	}
	if over := all - algorithms.MaxWork; over > 0 {
		return fmt.Errorf("the limits of all zones together take too long to decide in one call: %s", largest.lighten(over))
	}
	for _, z := range zones {
		if z.overridable {
			z.maxWork += (algorithms.MaxWork - all) / overridable
		}
	}
	return nil
}

// checkWork denies an override at run time that is too much work.
func (z *zone) checkWork(t *limitSet) error {
	if work, largest := t.work(z.worstCost()); work > z.maxWork {
		return fmt.Errorf("its limits and those of the other zones take too long to decide in one call: %s", largest.lighten(work-z.maxWork))
	}
	return nil
}

// heaviest is the limit with the most work so far, for requests of up to a cost; the zero value
// is none.
type heaviest struct {
	limit *algorithms.Limit
	cost  int64
}

func (h heaviest) work() int64 {
	if h.limit == nil {
		return 0
	}
	return h.limit.WorstWork(h.cost)
}

func (h heaviest) or(other heaviest) heaviest {
	if other.work() > h.work() {
		return other
	}
	return h
}

// lighten returns the advice to write limits with less work.
func (h heaviest) lighten(over int64) string {
	if h.limit != nil {
		if lighter := h.limit.Lighter(h.cost, over); lighter != nil {
			return fmt.Sprintf("write %v, or less, instead of %v, or sliding_window, which only counts", lighter, h.limit)
		}
	}
	return "write fewer limits, sliding_log with fewer events or buckets, or sliding_window, which only counts; " +
		"or divide the zones among several rate_limit handlers, each of which has steps of its own"
}
