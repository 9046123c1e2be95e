package ratelimit

import (
	"fmt"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// One script call decides a request, even if the request belongs to several zones. So the
// limits of all zones of a handler together have a bound: see [algorithms.MostWork]. The
// bound also holds in memory, so that a zone means the same in every store.

// work returns the most work of a request under these terms, and the limit with the largest
// part of it; nil if there is none.
func (t *terms) work() (work int64, heaviest *algorithms.Limit) {
	for _, l := range t.ready {
		work, heaviest = work+l.WorstWork(), heavier(heaviest, l)
	}
	if t.ban != nil {
		work += t.ban.WorstWork()
	}
	if t.slots != nil { // slots are given back one at a time
		work += t.slots.ready[0].BackWork()
	}
	return work, heaviest
}

// boundWork denies zones that are too much work for one request. It divides the rest of the
// bound among the zones with overrides at run time.
func boundWork(zones []*zone) error {
	all, overridable := int64(0), int64(0)
	var heaviest *algorithms.Limit
	for _, z := range zones {
		z.mostWork = 0
		z.allTerms(func(t *terms) {
			work, limit := t.work()
			z.mostWork, heaviest = max(z.mostWork, work), heavier(heaviest, limit)
		})
		if all += z.mostWork; z.overridable {
			overridable++
		}
	}
	if over := all - algorithms.MostWork; over > 0 {
		return fmt.Errorf("the limits of all zones together take too long to decide in one call: %s", lighten(heaviest, over))
	}
	for _, z := range zones {
		if z.overridable {
			z.mostWork += (algorithms.MostWork - all) / overridable
		}
	}
	return nil
}

// checkWork denies an override at run time that is too much work.
func (z *zone) checkWork(t *terms) error {
	if work, heaviest := t.work(); work > z.mostWork {
		return fmt.Errorf("its limits and those of the other zones take too long to decide in one call: %s", lighten(heaviest, work-z.mostWork))
	}
	return nil
}

// heavier returns the limit that is more work; nil is less than any.
func heavier(a, b *algorithms.Limit) *algorithms.Limit {
	if a == nil || b != nil && b.WorstWork() > a.WorstWork() {
		return b
	}
	return a
}

// lighten returns the advice to write limits with less work.
func lighten(heaviest *algorithms.Limit, over int64) string {
	if heaviest != nil {
		if lighter := heaviest.Lighter(over); lighter != nil {
			return fmt.Sprintf("write %v, or less, instead of %v, or sliding_window, which only counts", lighter, heaviest)
		}
	}
	return "write fewer limits, less concurrency, sliding_log with fewer events or buckets, or sliding_window, which only counts; or divide the zones among several rate_limit handlers, each of which has steps of its own"
}
