package faultsim

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Times that the oracle allows.
const (
	recovery   = 3 * time.Second        // after a fault, until Redis decides all requests again
	giveBack   = time.Second            // after a response, until its charges are corrected
	hop        = 300 * time.Millisecond // for a decision, while nothing fails
	crowded    = 1600 * time.Millisecond
	slotMemory = 35 * time.Second // after an instance was killed, until its slots are free again
	recount    = 15 * time.Second // after any other fault, until lost slots are free again
)

// oracle compares what clients saw with the promises.
type oracle struct {
	*world
	*verdict
}

// judge lets the oracle look at a world that has come to rest.
func (w *world) judge() *verdict {
	o := &oracle{w, &verdict{tried: w.scenario, virtual: time.Since(w.began)}}
	for _, f := range w.scenario.faults {
		if f.untold {
			o.extend(f)
		}
	}
	o.checkAnswers()
	o.checkFailures()
	o.checkOutages()
	o.checkSilence()
	o.checkOnce()
	for n := range w.scenario.zones {
		if n > 0 {
			o.checkZone(n)
		}
	}
	o.checkRest()
	o.tell()
	return o.verdict
}

// start and end are when a fault began and ended.
func (o *oracle) start(f *fault) time.Time { return o.began.Add(f.at) }
func (o *oracle) end(f *fault) time.Time   { return o.start(f).Add(f.lasts) }

// extend lets a fault that no Sentinel told of last until each instance has noticed it.
func (o *oracle) extend(f *fault) {
	last := time.Duration(0)
	for i := range o.instances {
		last = max(last, o.noticed(f, i).Sub(o.end(f)))
	}
	f.over = last + recovery
}

// noticed returns when an instance noticed that another server has taken over, which no Sentinel told it. It notices it by
// its next request that is not denied. The old primary is a replica now, and can still deny.
func (o *oracle) noticed(f *fault, instance int) time.Time {
	noticed, never := o.end(f), true
	for _, q := range o.scenario.requests {
		if q.instance == instance && q.status != 429 && q.sent.After(o.end(f)) && (never || q.sent.Before(noticed)) {
			noticed, never = q.sent, false
		}
	}
	return noticed
}

// isDisturbed reports whether a fault may make requests fail at any time in a span.
func (o *oracle) isDisturbed(from, to time.Time) bool {
	return slices.ContainsFunc(o.scenario.faults, func(f *fault) bool {
		return f.disturbs && !o.start(f).After(to) && from.Before(o.end(f).Add(cmp.Or(f.over, recovery)))
	})
}

// count returns how many faults match that overlap a span.
func (o *oracle) count(from, to time.Time, match func(*fault) bool) (n int) {
	for _, f := range o.scenario.faults {
		if match(f) && !o.start(f).After(to) && !o.end(f).Before(from) {
			n++
		}
	}
	return n
}

func loses(f *fault) bool     { return f.loses }
func steps(f *fault) bool     { return f.by != 0 }
func stepsBack(f *fault) bool { return f.by < 0 }
func killed(f *fault) bool    { return f.kills }

// changesClock reports whether the clock of a key may go ahead: a node with another clock may take the key.
func changesClock(f *fault) bool {
	return f.by > 0 || strings.HasPrefix(f.kind, "failover") || f.kind == "slots move"
}

// isCertain reports whether nothing went wrong from the request until its charges were corrected.
func (o *oracle) isCertain(q *record) bool {
	until := q.ended.Add(giveBack)
	return !q.killed && !o.isDisturbed(q.sent, until) && o.count(q.sent, until, loses) == 0 &&
		o.count(q.sent, until, stepsBack) == 0 && o.count(q.ended, until, killed) == 0
}

// answered is when the client knew the decision.
func (q *record) answered() time.Time {
	if q.passed.IsZero() {
		return q.ended
	}
	return q.passed
}

// checkAnswers checks that each request got an answer in time, and none failed without a cause.
func (o *oracle) checkAnswers() {
	for _, q := range o.scenario.requests {
		if q.ended.IsZero() {
			o.add("never answered: %v", q)
			continue
		}
		if q.killed {
			o.doubtful++
			continue
		}
		certain := o.isCertain(q)
		allowed := crowded
		if certain {
			allowed = hop
		}
		for _, z := range o.zonesOf(q) {
			allowed += z.delay
		}
		if took := q.answered().Sub(q.sent); took > allowed {
			o.add("answered after %v, later than %v: %v", took, allowed, q)
		}
		switch {
		case !certain:
			o.doubtful++
		case !q.passed.IsZero():
			o.passed++
		case q.status == 429:
			o.denied++
		case !q.left:
			o.add("failed, although nothing was wrong: %v", q)
		}
		if q.status >= 500 {
			o.failed++
		}
	}
}

// checkFailures checks that no instance reported a failure while nothing was wrong.
func (o *oracle) checkFailures() {
	for _, f := range o.failures {
		// In a cluster, a call that follows a redirect may wait for a correction in flight until its deadline.
		if f.what == shed && o.cluster == nil {
			o.add("%v: instance %d shed a request, although nothing is ever overloaded: %v", f.at.Sub(o.began), f.instance, f.err)
		}
		since := f.at.Add(-giveBack)
		if f.what == "a correction" {
			since = f.at.Add(-6 * time.Second) // for which it may have been queued
		}
		if !o.isDisturbed(since, f.at) {
			o.add("%v: instance %d reported the failure of %s, although nothing was wrong: %v", f.at.Sub(o.began), f.instance, f.what, f.err)
		}
	}
}

// checkOutages checks that on_store_error decides while there is no Redis.
func (o *oracle) checkOutages() {
	mode := o.scenario.mode
	for _, f := range o.scenario.faults {
		if !strings.HasPrefix(f.kind, "restart") || o.cluster != nil {
			continue
		}
		from, to := o.start(f), o.end(f)
		if f.partly {
			from = from.Add(f.lasts / 2)
		}
		for _, q := range o.scenario.requests {
			if !q.sent.After(from.Add(time.Millisecond)) || !q.answered().Before(to) || q.killed || q.patience > 0 {
				continue
			}
			passed := !q.passed.IsZero()
			if q.status == 429 && q.sent.Before(o.lastAnswer(q.instance, from).Add(time.Second)) {
				continue // a denial from before that is remembered
			}
			if mode == "deny" && (passed || q.status != 503) || mode == "allow" && !passed || q.status == 503 && mode != "deny" {
				o.add("not decided as on_store_error %s says, while there was no Redis: %v", mode, q)
			}
		}
	}
}

// lastAnswer returns when the last message of an instance was answered that it had sent before an instant at which its Redis
// ended, or later to an old primary.
func (o *oracle) lastAnswer(instance int, ended time.Time) time.Time {
	last := ended
	for _, f := range o.scenario.faults {
		if f.untold && f.kind == demotion && o.end(f).Before(ended) {
			if noticed := o.noticed(f, instance).Add(timeout); noticed.After(last) {
				last = noticed
			}
		}
	}
	return last
}

// peek returns how many events of a zone are charged for each key, and how many of its slots are taken.
func (o *oracle) peek(n int, keys []string) (used, inFlight map[string]int64) {
	used, inFlight = make(map[string]int64), make(map[string]int64)
	var mu sync.Mutex
	var all sync.WaitGroup
	i := o.instances[0]
	b := i.limiter.Zones[n].DefaultSet.Budgets[0]
	turns := make(chan struct{}, 16)
	for _, key := range keys {
		turns <- struct{}{}
		all.Go(func() {
			defer func() { <-turns }()
			r := []store.Request{{Zone: o.scenario.zones[n].name, Key: key, Limits: b.Limits, Slots: b.Slots, Peek: true}}
			_, err := i.redis.Take(context.Background(), r)
			if err != nil { // the instance may notice only now that another server has taken over
				time.Sleep(time.Second) // in simulated time
				_, err = i.redis.Take(context.Background(), r)
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				o.add("in the end, key %s of zone %d: %v", key, n, err)
				return
			}
			if len(b.Limits) > 0 {
				d, isCalendar := r[0].Outcome.Decisions[0], false
				if used[key], isCalendar = b.Limits[0].Used(d); !isCalendar {
					used[key] = b.Limits[0].Events - d.Remaining
				}
			}
			inFlight[key] = r[0].Outcome.Slots.InFlight
		})
	}
	all.Wait()
	return used, inFlight
}

// checkOnce checks what each request was charged in the end, in the zone in which it has its own budget.
func (o *oracle) checkOnce() {
	var keys []string
	for _, q := range o.scenario.requests {
		keys = append(keys, fmt.Sprint("n", q.number))
	}
	used, _ := o.peek(0, keys)
	for i, q := range o.scenario.requests {
		allowed := []int64{0, q.cost, q.trueCost}
		if o.count(q.sent, q.ended.Add(giveBack), loses) > 0 { // only what was charged after the response is left
			allowed = append(allowed, q.trueCost-q.cost)
		}
		if o.cluster != nil && o.scenario.waitsForSlots() && !o.isCertain(q) {
			continue // it has asked several nodes again and again, and each refund may have been lost
		}
		if o.isFrozenOut(q) { // Redis runs its message too late
			allowed = []int64{0}
		}
		switch certain := o.isCertain(q) && o.count(q.ended, o.began.Add(o.virtual), loses) == 0; {
		case !certain:
		case q.passed.IsZero():
			allowed = []int64{0}
		case q.left:
			allowed = []int64{q.cost, q.trueCost}
		default:
			allowed = []int64{q.trueCost}
		}
		if !slices.Contains(allowed, used[keys[i]]) {
			o.add("charged %d, want one of %v: %v", used[keys[i]], allowed, q)
		}
	}
}

// checkZone checks the promises of a zone, for each key.
func (o *oracle) checkZone(n int) {
	z := o.scenario.zones[n]
	byKey := make(map[string][]*record)
	for _, q := range o.scenario.requests {
		if q.belongs(n) && !q.ended.IsZero() {
			byKey[q.key] = append(byKey[q.key], q)
		}
	}
	var keys []string
	for key := range byKey {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	used, inFlight := o.peek(n, keys)
	for _, key := range keys {
		requests := byKey[key]
		if z.isCounted() {
			o.checkCount(z, key, requests, used[key])
		}
		if z.quota.Algorithm != "" {
			o.checkBound(z, key, requests)
			o.checkLimitDenials(z, requests)
		}
		if z.slots > 0 {
			if inFlight[key] != 0 {
				o.add("zone %s, key %s: %d slots are taken in the end", z.name, key, inFlight[key])
			}
			o.checkSlots(z, key, requests)
			o.checkSlotDenials(z, requests)
			o.checkOrder(z, key, requests)
			o.checkWake(z, requests)
		}
		if z.ban != nil {
			o.checkBan(z, key, requests)
		}
	}
}

// checkCount checks the sum of all charges to a budget that never refills.
func (o *oracle) checkCount(z *zonePlan, key string, requests []*record, used int64) {
	least, most, asked := int64(0), int64(0), int64(0)
	end := o.began.Add(o.virtual)
	for _, q := range requests {
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
		asked += q.most(z)
	}
	if used > most || (z.isCalendar() || asked <= z.quota.Events) && used < max(least, 0) {
		o.add("zone %s, key %s: %d events are charged in the end, want %d to %d", z.name, key, used, least, most)
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

// mayHold reports whether a request may have had slots and charges before its end, although no fault let it. A request
// that did not pass had some if a limit delayed it until its client left, or on the other nodes of a cluster.
func (o *oracle) mayHold(q *record) bool {
	if !q.passed.IsZero() || o.cluster != nil {
		return true
	}
	return q.status == 499 && slices.ContainsFunc(o.zonesOf(q), func(z *zonePlan) bool { return z.delay > 0 && z.quota.Algorithm != "" })
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
func (o *oracle) checkLimitDenials(z *zonePlan, requests []*record) {
	if z.delay > 0 || z.ban != nil {
		return // charges in advance, and bans, last longer
	}
	horizon := time.Duration(z.quota.Window) * time.Microsecond
	if z.quota.Algorithm == "sliding_window" || z.quota.Algorithm == "leaky_bucket" {
		horizon *= 2
	}
	const furthest = 25 * time.Second // that a clock steps back; until the next request of a key nothing refills then
	for _, q := range requests {
		since := q.sent.Add(-horizon - time.Second)
		if !slices.Contains(q.denied, z.name) || o.isDisturbed(since, q.ended) || o.count(since.Add(-furthest), q.ended, steps) > 0 {
			continue
		}
		charged := int64(0)
		for _, other := range requests {
			switch {
			case other == q || !other.sent.Before(q.ended):
			case other.ended.Before(since):
			case z.isCalendar() && o.isYesterday(other) && o.isCertain(other) && q.sent.After(o.midnight().Add(hop)):
			case o.isCertain(other) && !o.mayHold(other):
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

// checkRest checks that nothing is left of the requests.
func (o *oracle) checkRest() {
	for n, i := range o.instances {
		if requests, lines := i.lines.Waiting(); requests != 0 || lines != 0 {
			o.add("instance %d: %d requests wait in %d lines in the end", n, requests, lines)
		}
		if s := i.redis.Stats(); s.Queued != 0 || s.Failing != 0 || s.InUse != 0 {
			o.add("instance %d in the end: %+v", n, s)
		}
		for _, z := range i.limiter.Zones {
			if z.Delay != nil {
				if places, _ := z.Delay.Places.Taken(); places != 0 {
					o.add("instance %d, zone %s: %d places are taken in the end", n, z.Name, places)
				}
			}
		}
	}
}
