package faultsim

import (
	"slices"
	"time"
)

// budget is a budget of a key in a zone: that of the limit of the zone, or of an override.
type budget struct {
	*zonePlan        // with this limit
	text      string // of the override; "" for none
	key       string
	requests  []*record        // which the limit may have decided
	others    map[*record]bool // those of them that another limit may have decided
}

// isSure reports whether the limit of the budget has decided a request.
func (b *budget) isSure(q *record) bool { return !b.others[q] }

// budgets returns the budgets of a key in a zone.
func (o *oracle) budgets(n int, key string, requests []*record) (all []*budget) {
	z := o.scenario.zones[n]
	operations := o.operations(n, key, overrides, endsOverride)
	if len(operations) == 0 {
		return []*budget{{zonePlan: z, key: key, requests: requests}}
	}
	byText := make(map[string]*budget)
	for _, q := range requests {
		texts := o.values(operations, q.glance())
		for _, text := range texts {
			b := byText[text]
			if b == nil {
				b = &budget{zonePlan: z.overriddenBy(text), text: text, key: key, others: make(map[*record]bool)}
				byText[text] = b
				all = append(all, b)
			}
			b.requests = append(b.requests, q)
			if len(texts) > 1 {
				b.others[q] = true
			}
		}
	}
	return all
}

// checkBudget checks the charges of a budget.
func (o *oracle) checkBudget(n int, b *budget) {
	if b.isCounted() {
		used, _ := o.peek(n, b.text, []string{b.key})
		o.checkCount(b, used[b.key])
	}
	var sure []*record
	for _, q := range b.requests {
		if b.isSure(q) {
			sure = append(sure, q)
		}
	}
	o.checkBound(b.zonePlan, b.key, sure)
	o.checkLimitDenials(n, b)
}

// checkCount checks the sum of all charges to a budget that never refills.
func (o *oracle) checkCount(b *budget, used int64) {
	z, least, most, asked := b.zonePlan, int64(0), int64(0), int64(0)
	end := o.began.Add(o.virtual)
	for _, q := range b.requests {
		lost := o.count(q.sent, end, loses)
		certain := o.isCertain(q) && b.isSure(q)
		switch {
		case certain && q.passed.IsZero(), certain && z.isCalendar() && o.isYesterday(q):
			continue
		case z.isCalendar() && o.resets(z, q.sent, end) > 0: // it may count for the day before, and its correction for this day
			most += q.most(z)
		case certain && lost == 0 && !q.left:
			least += q.fair(z)
			most += q.fair(z)
		case certain && lost == 0:
			least += min(q.cost, q.fair(z))
			most += q.most(z)
		default:
			most += q.most(z)
			least -= max(q.cost-q.fair(z), 0) // it gives back what Redis may have forgotten
		}
		asked += q.most(z)
	}
	if used > most || (z.isCalendar() || asked <= z.quota.Events) && used < max(least, 0) {
		o.add("zone %s, key %s: %d events are charged in the end, want %d to %d", z.name, b.key, used, least, most)
	}
}

// bound is the largest number of events that a limit admits in a span of time.
func (z *zonePlan) bound(span time.Duration) int64 {
	t, n, w := span.Microseconds(), z.quota.Events, z.quota.Window
	if z.delay > 0 && (z.quota.Algorithm == "fixed_window" || z.quota.Algorithm == "leaky_bucket") {
		t += w // all that wait for a window, or for a drip, pass with it
	}
	switch z.quota.Algorithm {
	case "fixed_window", "sliding_window":
		return n * (t/w + 2)
	case "sliding_log":
		return n * (t/w + 1)
	case "leaky_bucket":
		return n + (t+w-1)/w*n
	default:
		return n + t*n/w
	}
}

// delayedEvents is the largest number of events of the requests that are delayed at the same time.
func (z *zonePlan) delayedEvents() int64 {
	if z.delay == 0 {
		return 0
	}
	return z.delay.Microseconds()*z.quota.Events/z.quota.Window + 1
}

// checkBound checks that no span of time admitted more than the limit and what the faults allow.
func (o *oracle) checkBound(z *zonePlan, key string, requests []*record) {
	var passed []*record
	for _, q := range requests {
		if !q.passed.IsZero() {
			passed = append(passed, q)
		}
	}
	mode := o.scenario.mode
	clocksDiffer := slices.ContainsFunc(o.scenario.faults, steps)
	decided := func(q *record) (from, to time.Time) { // the instant of the decision is in this span
		if z.delay > 0 {
			return q.passed.Add(-hop), q.passed
		}
		return q.sent, q.passed
	}
	slices.SortFunc(passed, func(a, b *record) int {
		x, _ := decided(a)
		y, _ := decided(b)
		return x.Compare(y)
	})
	for i, first := range passed {
		from, _ := decided(first)
		rest := slices.Clone(passed[i:])
		slices.SortFunc(rest, func(a, b *record) int {
			_, x := decided(a)
			_, y := decided(b)
			return x.Compare(y)
		})
		sum := int64(0)
		for _, q := range rest {
			_, to := decided(q)
			sum += min(q.cost, q.fair(z)) // a response may give some of it back
			span := to.Sub(from) + time.Microsecond
			most := z.quota.Events * int64(1+o.resets(z, from, to))
			if !z.isCounted() {
				most = z.bound(span)
			}
			// A request that was delayed before a loss or a step passes after it.
			since := from.Add(-z.delay)
			lost, changes := o.count(since, to, loses), 0
			if clocksDiffer {
				changes = o.count(since, to, changesClock)
			}
			allowed := most + int64(lost+changes)*(z.quota.Events+z.delayedEvents())
			if o.isDisturbed(from, to) {
				switch mode {
				case "allow":
					continue
				case "local":
					allowed += int64(len(o.instances)+o.count(o.began, to, killed)) * most
				case "share":
					allowed += int64(1+o.count(o.began, to, killed)) * most
				}
			}
			if sum > allowed {
				o.add("zone %s, key %s: %d events passed in %v from %v, at most %d may", z.name, key, sum, span, from.Sub(o.began), allowed)
				return
			}
		}
	}
}

// knows is how long after the end of another request its charges are corrected for a request.
func (o *oracle) knows(q, other *record) time.Duration {
	if other.instance == q.instance && (o.cluster == nil || !other.passed.IsZero()) {
		return 0
	}
	return 2 * giveBack // one for the correction, one for which the other instance remembers a denial
}

// mayHold reports whether a request may have had slots and charges before an instant, although no fault let it. A request
// that did not pass had some on the other nodes of a cluster, or while a limit delayed it, until its client left or its
// instance was killed. An instance that is killed may also never see the answer that lets its request pass.
func (o *oracle) mayHold(q *record, before time.Time) bool {
	if !q.passed.IsZero() || o.cluster != nil {
		return true
	}
	delay := time.Duration(0) // by a limit; a request that waits for slots holds nothing
	for _, z := range o.zonesOf(q) {
		if z.quota.Algorithm != "" {
			delay = max(delay, z.delay)
		}
	}
	return (q.killed || q.status == 499 && delay > 0) && q.ended.Add(-delay-hop).Before(before)
}

// zonesOf returns the zones that a request belongs to.
func (o *oracle) zonesOf(q *record) (zones []*zonePlan) {
	for n, z := range o.scenario.zones {
		if q.belongs(n) {
			zones = append(zones, z)
		}
	}
	return zones
}

// checkLimitDenials checks that a request that a limit denied could not have passed.
func (o *oracle) checkLimitDenials(n int, b *budget) {
	z := b.zonePlan
	if z.delay > 0 {
		return // charges in advance last longer
	}
	horizon := time.Duration(z.quota.Window) * time.Microsecond
	if z.quota.Algorithm == "sliding_window" || z.quota.Algorithm == "leaky_bucket" {
		horizon *= 2
	}
	const furthest = 25 * time.Second // that a clock steps back; until the next request of a key nothing refills then
	for _, q := range b.requests {
		since := q.sent.Add(-horizon - time.Second)
		isKnown := !o.isDisturbed(since, q.ended) && o.count(since.Add(-furthest), q.ended, steps) == 0
		if !isKnown || !b.isSure(q) || !slices.Contains(q.denied, z.name) || z.ban != nil && o.mayBeBanned(n, b.key, q.glance()) {
			continue
		}
		charged := int64(0)
		for _, other := range b.requests {
			switch {
			case other == q || !other.sent.Before(q.ended):
			case other.ended.Before(since):
			case z.isCalendar() && o.isYesterday(other) && o.isCertain(other) && q.sent.After(o.midnight().Add(hop)):
			case o.isCertain(other) && !o.mayHold(other, q.ended):
			case o.isCertain(other) && other.ended.Before(q.sent.Add(-o.knows(q, other))):
				if !other.passed.IsZero() {
					charged += other.fair(z)
				}
			default:
				charged += other.most(z)
			}
		}
		if charged+q.cost <= z.quota.Events {
			o.add("zone %s: denied, although at most %d events of %d were charged: %v", z.name, charged, z.quota.Events, q)
		}
	}
}
