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
	o.checkOperations()
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
			allowed += max(z.delay, z.wait)
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

// peek returns how many events of a zone are charged for each key, with an override or none, and how many of its slots
// are taken.
func (o *oracle) peek(n int, override string, keys []string) (used, inFlight map[string]int64) {
	used, inFlight = make(map[string]int64), make(map[string]int64)
	var mu sync.Mutex
	var all sync.WaitGroup
	i := o.instances[0]
	z := i.limiter.Zones[n]
	set := z.DefaultSet
	if override != "" {
		set, _, _ = z.CompileOverride(override)
	}
	b := set.Budgets[0]
	turns := make(chan struct{}, 16)
	for _, key := range keys {
		turns <- struct{}{}
		all.Go(func() {
			defer func() { <-turns }()
			r := []store.ZoneRequest{{Zone: z.Name, Key: key, Limits: b.Limits, Slots: b.Slots, Peek: true}}
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
				d := r[0].Outcome.Decisions[0]
				if used[key] = d.Used; !b.Limits[0].Algorithm().Calendar {
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
	used, _ := o.peek(0, "", keys)
	for i, q := range o.scenario.requests {
		allowed := []int64{0, q.cost, q.trueCost}
		if o.count(q.sent, q.ended.Add(giveBack), loses) > 0 { // only what was charged after the response is left
			allowed = append(allowed, q.trueCost-q.cost)
		}
		for _, once := range slices.Clone(allowed) { // a request asks again if it waits for a slot, or other overrides are in force
			for n := range o.charges[keys[i]] - 1 {
				allowed = append(allowed, once+int64(n+1)*q.cost)
			}
		}
		if o.isFrozenOut(q) { // Redis runs its message too late
			allowed = []int64{0}
		}
		switch certain := o.isCertain(q) && o.count(q.ended, o.began.Add(o.virtual), loses) == 0; {
		case !certain:
		case q.passed.IsZero(), q.zones&1 == 0:
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

// requestsOf returns the requests of a key in a zone.
func (o *oracle) requestsOf(n int, key string) (requests []*record) {
	for _, q := range o.scenario.requests {
		if q.belongs(n) && q.key == key && !q.ended.IsZero() {
			requests = append(requests, q)
		}
	}
	return requests
}

// checkZone checks the promises of a zone, for each key.
func (o *oracle) checkZone(n int) {
	z := o.scenario.zones[n]
	for number := range o.scenario.keys {
		key := keyName(number)
		requests := o.requestsOf(n, key)
		if z.quota.Algorithm != "" {
			o.checkBudget(n, o.budgetOf(n, key, requests))
		}
		if z.slots > 0 {
			if _, inFlight := o.peek(n, "", []string{key}); inFlight[key] != 0 {
				o.add("zone %s, key %s: %d slots are taken in the end", z.name, key, inFlight[key])
			}
			o.checkSlots(z, key, requests)
			o.checkSlotDenials(z, requests)
			o.checkOrder(z, key, requests)
			o.checkShares(z, key, requests)
			o.checkWake(z, requests)
		}
		if z.ban != nil {
			o.checkBan(n, key, requests)
			o.checkBans(n, key, requests)
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
