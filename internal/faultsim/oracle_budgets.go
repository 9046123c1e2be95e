package faultsim

import (
	"cmp"
	"slices"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// budget is the budget of a key in a zone. All limits of the zone share it, also those of overrides.
type budget struct {
	*zonePlan
	key      string
	requests []*record
	limits   map[*record][]*zonePlan // the zone with each limit that may have decided a request
	changes  bool                    // limits of the requests differ
	windows  int64                   // in which the slowest limit refills
}

// burst is the largest number of events that the limit allows at once.
func (z *zonePlan) burst() int64 { return cmp.Or(z.quota.Burst, z.quota.Events) }

// budgetOf returns the budget of a key in a zone.
func (o *oracle) budgetOf(n int, key string, requests []*record) *budget {
	b := &budget{zonePlan: o.scenario.zones[n], key: key, requests: requests, limits: make(map[*record][]*zonePlan)}
	operations := o.operations(n, key, overrides, endsOverride)
	for _, q := range requests {
		for _, text := range o.values(operations, q.glance()) {
			z := q.limits[n].overriddenBy(text)
			b.limits[q] = append(b.limits[q], z)
			b.changes = b.changes || z.quota != b.quota
			b.windows = max(b.windows, (z.burst()+z.quota.Events-1)/z.quota.Events)
		}
	}
	return b
}

// corrected is how long after a response its charges may be corrected.
const corrected = 6 * time.Second

// limitsIn returns the zone with the least and with the most that the limits allow that may have changed the budget in a span
// of time.
func (b *budget) limitsIn(from, to time.Time) (least, most *zonePlan) {
	if !b.changes {
		return b.zonePlan, b.zonePlan
	}
	var events, bursts []int64
	for _, q := range b.requests {
		if q.sent.After(to) || q.ended.Add(corrected).Before(from) {
			continue
		}
		for _, z := range b.limits[q] {
			events, bursts = append(events, z.quota.Events), append(bursts, z.burst())
		}
	}
	return b.with(slices.Min(events), slices.Min(bursts)), b.with(slices.Max(events), slices.Max(bursts))
}

// uncounted is an override that shows all that is charged, because it is larger than any other limit.
const uncounted = "1000"

// checkBudget checks the charges of a budget.
func (o *oracle) checkBudget(n int, b *budget) {
	if b.isCounted() {
		used, _ := o.peek(n, uncounted, []string{b.key})
		o.checkCount(b, used[b.key])
	}
	o.checkBound(b)
	o.checkLimitDenials(n, b)
}

// checkCount checks the sum of all charges to a budget that never refills.
func (o *oracle) checkCount(b *budget, used int64) {
	z, least, most := b.zonePlan, int64(0), int64(0)
	end := o.began.Add(o.virtual)
	for _, q := range b.requests {
		lost := o.count(q.sent, end, loses)
		certain := o.isCertain(q)
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
	}
	if used > most || used < max(least, 0) {
		o.add("zone %s, key %s: %d events are charged in the end, want %d to %d", z.name, b.key, used, least, most)
	}
}

// bound is the largest number of events that a limit allows in a span of time.
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
		return z.burst() + (t+w-1)/w*n
	default:
		return z.burst() + t*n/w
	}
}

// delayedEvents is the largest number of events of the requests that are delayed at the same time.
func (z *zonePlan) delayedEvents() int64 {
	if z.delay == 0 {
		return 0
	}
	return z.delay.Microseconds()*z.quota.Events/z.quota.Window + 1
}

// checkBound checks that no span of time let through more than the largest limit and what the faults allow.
func (o *oracle) checkBound(b *budget) {
	var passed []*record
	for _, q := range b.requests {
		if !q.passed.IsZero() {
			passed = append(passed, q)
		}
	}
	mode := o.scenario.mode
	clocksDiffer := slices.ContainsFunc(o.scenario.faults, steps)
	decided := func(q *record) (from, to time.Time) { // the instant of the decision is in this span
		if b.delay > 0 {
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
			sum += min(q.cost, q.fair(b.zonePlan)) // a response may give some of it back
			span := to.Sub(from) + time.Microsecond
			// A request that was delayed before a loss, a step or a change passes after it.
			since := from.Add(-b.delay)
			least, z := b.limitsIn(since, to)
			most := z.burst() * int64(1+o.resets(z, from, to))
			if !z.isCounted() {
				most = z.bound(span)
			}
			if z.quota != least.quota {
				most += z.delayedEvents()
			}
			lost, changes := o.count(since, to, loses), 0
			if clocksDiffer {
				changes = o.count(since, to, changesClock)
			}
			allowed := most + int64(lost+changes)*(z.burst()+z.delayedEvents())
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
				o.add("zone %s, key %s: %d events passed in %v from %v, at most %d may", z.name, b.key, sum, span, from.Sub(o.began), allowed)
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
	horizon := time.Duration(b.windows*z.quota.Window) * time.Microsecond
	if z.quota.Algorithm == "sliding_window" || z.quota.Algorithm == "leaky_bucket" {
		horizon *= 2
	}
	if b.changes { // what a larger limit allowed is full to a smaller one, and both continue from there
		horizon *= 2
	}
	const furthest = 25 * time.Second // that a clock steps back; until the next request of a key nothing refills then

	owes := z.settles && must(algorithms.Lookup(z.quota.Algorithm)).Burst // true costs can make debts, of any age
	least, _ := b.limitsIn(o.began, o.began.Add(o.virtual))
	latest := slices.SortedFunc(slices.Values(b.requests), func(x, y *record) int { return y.ended.Compare(x.ended) })
	for _, q := range b.requests {
		since := q.sent.Add(-horizon - time.Second)
		known := since
		if owes && o.began.Before(since) {
			known = o.began
		}
		isKnown := !o.isDisturbed(known, q.ended) && o.count(known.Add(-furthest), q.ended, steps) == 0
		if !isKnown || !slices.Contains(q.denied, z.name) || z.ban != nil && o.mayBeBanned(n, b.key, q.glance()) {
			continue
		}
		events, charged, refilled := slices.MinFunc(b.limits[q], byBurst).burst(), int64(0), int64(0)
		for _, other := range latest {
			if other.ended.Before(since) {
				if !owes {
					break
				}
				refilled = max(since.Sub(other.ended)-giveBack, 0).Microseconds() * least.quota.Events / z.quota.Window
			}
			if charged += o.charge(z, q, other, owes); charged-refilled+q.cost > events {
				break
			}
		}
		if charged-refilled+q.cost <= events {
			o.add("zone %s: denied, although at most %d events of %d were charged: %v", z.name, charged, events, q)
		}
	}
}

func byBurst(x, y *zonePlan) int { return cmp.Compare(x.burst(), y.burst()) }

// charge returns how many events of another request may be charged when a request is denied. most makes it the most that ever were.
func (o *oracle) charge(z *zonePlan, q, other *record, most bool) int64 {
	switch {
	case other == q || !other.sent.Before(q.ended):
		return 0
	case z.isCalendar() && o.isYesterday(other) && o.isCertain(other) && q.sent.After(o.midnight().Add(hop)):
		return 0
	case o.isCertain(other) && !o.mayHold(other, q.ended):
		return 0
	case o.isCertain(other) && other.ended.Before(q.sent.Add(-o.knows(q, other))) && !most:
		if other.passed.IsZero() {
			return 0
		}
		return other.fair(z)
	default:
		return other.most(z)
	}
}
