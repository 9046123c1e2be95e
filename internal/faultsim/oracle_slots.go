package faultsim

import (
	"slices"
	"time"
)

// checkSlots checks how many requests were in flight at once.
func (o *oracle) checkSlots(z *zonePlan, key string, requests []*record) {
	longest := 20 * time.Second // after a fault, until the requests that it let pass have ended
	if o.scenario.long {
		longest += 50 * time.Second
	}
	mode := o.scenario.mode
	for _, q := range requests {
		if q.passed.IsZero() {
			continue
		}
		all, own := int64(0), int64(0)
		for _, other := range requests {
			if !other.passed.IsZero() && !other.passed.After(q.passed) && other.ended.After(q.passed) {
				if all++; other.instance == q.instance {
					own++
				}
			}
		}
		from := q.passed.Add(-longest)
		disturbed := o.isDisturbed(from, q.passed)
		if mode == "allow" && disturbed {
			continue
		}
		isLocal := mode == "local" || mode == "share"
		if isLocal && own > z.slots && o.count(from, q.passed, killed) == 0 {
			o.add("zone %s, key %s: %d requests of instance %d were in flight at %v, at most %d may",
				z.name, key, own, q.instance, q.passed.Sub(o.began), z.slots)
			return
		}
		allowed := z.slots * int64(1+o.count(from, q.passed, loses))
		if slices.ContainsFunc(o.scenario.faults, steps) { // a node with another clock may take the key
			allowed += z.slots * int64(o.count(from, q.passed, changesClock))
		}
		if isLocal && disturbed {
			allowed = max(allowed, z.slots*int64(len(o.instances)+o.count(from, q.passed, killed)))
		}
		if all > allowed {
			o.add("zone %s, key %s: %d requests were in flight at %v, at most %d may", z.name, key, all, q.passed.Sub(o.began), allowed)
			return
		}
	}
}

// knowsSlots reports whether no slot can be taken in a span that no request holds.
func (o *oracle) knowsSlots(from, to time.Time) bool {
	return !o.isDisturbed(from.Add(-recount), to) &&
		o.count(from.Add(-slotMemory), to, func(f *fault) bool { return f.kills || f.loses || f.by != 0 }) == 0
}

// checkSlotDenials checks that a request for which no slot was free could not have had one.
func (o *oracle) checkSlotDenials(z *zonePlan, requests []*record) {
	for _, q := range requests {
		if !slices.Contains(q.denied, z.name) || !o.knowsSlots(q.sent, q.ended) {
			continue
		}
		busy := int64(0)
		for _, other := range requests {
			until := other.ended // then its instance knows that the slot is free
			if other.instance != q.instance {
				until = until.Add(hop)
			}
			if other != q && o.mayHold(other, q.ended) && other.sent.Before(q.ended) && !until.Before(q.sent) {
				busy++
			}
		}
		if busy < z.slots {
			o.add("zone %s: no slot was free, although at most %d requests were in flight, of %d: %v", z.name, busy, z.slots, q)
		}
	}
}

// handOver is the longest time for which a slot is kept free for a request of another instance.
const handOver = 100 * time.Millisecond

// checkOrder checks that the requests that wait for slots pass in the order in which they came, those of several instances
// up to a hand-over.
func (o *oracle) checkOrder(z *zonePlan, key string, requests []*record) {
	for _, a := range requests {
		if !o.waitsFor(z, a) || o.isDisturbed(a.sent, a.passed) {
			continue
		}
		for _, b := range requests {
			known, latest := a.sent.Add(hop), a.passed // when its line is known, and when it is overtaken
			if b.instance != a.instance {
				known, latest = known.Add(handOver), latest.Add(-handOver)
			}
			if o.waitsFor(z, b) && z.tenantOf(b) == z.tenantOf(a) && b.sent.After(known) && b.passed.Before(latest) {
				o.add("zone %s, key %s: overtaken\n  %v\nby\n  %v", z.name, key, a, b)
				return
			}
		}
	}
}

// waitsFor reports whether a request that passed could only wait for a slot of a zone.
func (o *oracle) waitsFor(z *zonePlan, q *record) bool {
	others := slices.ContainsFunc(o.zonesOf(q), func(other *zonePlan) bool { return other != z && other.delay > 0 })
	return !q.passed.IsZero() && z.delay > 0 && !others
}

// tenantOf returns the tenant of a request in a zone.
func (z *zonePlan) tenantOf(q *record) int { return q.tenant % max(len(z.weights), 1) }

// checkShares checks that no slot goes to a tenant while a request of another one waits that holds less for its weight. Up to a
// hand-over, an instance may not know of a request, and a slot be on its way.
func (o *oracle) checkShares(z *zonePlan, key string, requests []*record) {
	held := func(tenant int, from, to time.Time) (most, least int64) { // at any time, and all the time
		for _, q := range requests {
			later := q.sent.After(to) || o.waitsFor(z, q) && q.passed.After(to) // others hold a slot while they wait for other zones
			if z.tenantOf(q) != tenant || q.passed.IsZero() || later || !q.ended.After(from) {
				continue
			}
			if most++; q.passed.Before(from) && q.ended.After(to) {
				least++
			}
		}
		return most, least
	}
	for _, a := range requests {
		if len(z.weights) == 0 || !o.waitsFor(z, a) || o.isDisturbed(a.sent.Add(-recovery), a.passed) || !o.knowsSlots(a.sent, a.passed) {
			continue
		}
		for _, b := range requests {
			from, to, waited, got := b.passed.Add(-handOver), b.passed.Add(handOver), z.tenantOf(a), z.tenantOf(b)
			if waited == got || !o.waitsFor(z, b) || !a.sent.Add(hop).Before(from) || !a.passed.After(to) {
				continue
			}
			most, _ := held(waited, from, to)
			if _, least := held(got, from, to); most*z.weights[got] < least*z.weights[waited] {
				o.add("zone %s, key %s: tenant %d held at most %d, and waited in\n  %v\nTenant %d held %d before\n  %v",
					z.name, key, waited, most, a, got, least, b)
				return
			}
		}
	}
}

// checkWake checks that a request that waits for a slot gets one as soon as its instance gives one back. Each question
// to Redis can find it denied by another zone, and then the next request asks.
func (o *oracle) checkWake(z *zonePlan, requests []*record) {
	const soon = 120 * time.Millisecond // less than the pause after which waiting requests ask anyway
	others := slices.ContainsFunc(o.scenario.zones, func(other *zonePlan) bool { return other != z && other.delay > 0 })
	if z.delay == 0 || len(o.instances) > 1 || others || o.scenario.delay > time.Millisecond {
		return
	}
	for _, q := range requests {
		if q.passed.IsZero() || q.passed.Sub(q.sent) < soon || !o.knowsSlots(q.sent, q.passed) {
			continue
		}
		free := q.sent // since when a slot has been free
		for full := true; full; {
			full = false
			busy, next := int64(0), q.passed
			for _, other := range requests {
				passedBefore := !other.passed.IsZero() && !other.passed.After(q.passed) && !other.passed.After(free.Add(soon))
				if other != q && passedBefore && other.ended.After(free) {
					if busy++; other.ended.Before(next) {
						next = other.ended
					}
				}
			}
			if busy >= z.slots && next.Before(q.passed) && next.After(free) {
				free, full = next, true
			}
		}
		if waited := q.passed.Sub(free); waited > soon {
			o.add("zone %s: waited for %v although a slot was free: %v", z.name, waited, q)
		}
	}
}
