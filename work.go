package ratelimit

import (
	"fmt"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// A request is decided by one script call, whatever number of zones it belongs to. So the
// limits of all zones of a handler together have a bound: see [algorithms.MostWork]. It is
// the same in memory, so that a zone means the same in every store.

// work is the most work that a request makes that these terms are for. heaviest is the
// limit that makes the most of it; nil if there is none.
func (t *terms) work() (work int64, heaviest *algorithms.Limit) {
	for _, l := range t.ready {
		work, heaviest = work+l.WorstWork(), heavier(heaviest, l)
	}
	if t.ban != nil {
		work += t.ban.WorstWork()
	}
	if t.slots != nil { // they are given back one at a time
		work += t.slots.ready[0].BackWork()
	}
	return work, heaviest
}

// boundWork denies zones that are too much work for one request, and shares among zones
// with overrides at run time what there still may be.
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
		return fmt.Errorf("the limits of all zones together take too long to decide in one step: %s", lighten(heaviest, over))
	}
	for _, z := range zones {
		if z.overridable {
			z.mostWork += (algorithms.MostWork - all) / overridable
		}
	}
	return nil
}

// checkWork denies terms of an override at run time that are too much work.
func (z *zone) checkWork(t *terms) error {
	if work, heaviest := t.work(); work > z.mostWork {
		return fmt.Errorf("its limits and those of the other zones take too long to decide in one step: %s", lighten(heaviest, work-z.mostWork))
	}
	return nil
}

// heavier returns the limit that is more work; a nil one is none.
func heavier(a, b *algorithms.Limit) *algorithms.Limit {
	if a == nil || b != nil && b.WorstWork() > a.WorstWork() {
		return b
	}
	return a
}

// lighten says what to write so that there is less work.
func lighten(heaviest *algorithms.Limit, over int64) string {
	if heaviest != nil {
		if lighter := heaviest.Lighter(over); lighter != nil {
			return fmt.Sprintf("write %v, or less, instead of %v, or sliding_window, which only counts", lighter, heaviest)
		}
	}
	return "write fewer limits, less concurrency, sliding_log with fewer events or buckets, or sliding_window, which only counts; or divide the zones among several rate_limit handlers, each of which has steps of its own"
}
