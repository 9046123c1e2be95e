package simulate

import (
	"slices"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/lines"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// flight is a request on its way through the handlers, and afterwards until its end.
type flight struct {
	decided Decided
	handler int               // at which the request is; the number of handlers if it has passed them all
	zone    int               // the index of the handler's first zone in decided.Zones
	wait    lines.Request     // the request in the handler
	looked  algorithms.Micros // when the request came to its line, or looked whether it is its turn
	lookAt  algorithms.Micros // the instant of the next look; 0: there is none

	observed  bool
	events    int                   // to come
	decisions []algorithms.Decision // memory for the outcomes of all handlers
}

// newFlight returns the flight of a request that comes to its first handler.
func (d *Decider) newFlight(v *Visit) *flight {
	var f *flight
	if n := len(d.free); n > 0 {
		f, d.free = d.free[n-1], d.free[:n-1]
	} else {
		f = new(flight)
	}
	f.decided = Decided{Visit: v, Came: d.now, Zones: f.decided.Zones[:0]}
	f.handler, f.zone, f.observed = 0, 0, false
	limits := 0
	for i := range v.Handlers {
		h := &v.Handlers[i]
		for j := range h.Requests {
			r := &h.Requests[j]
			limits += len(r.Limits)
			f.decided.Zones = append(f.decided.Zones, DecidedZone{
				ZoneVisit: &h.Zones[j], Key: r.Key, Shadow: r.Shadow, Cost: r.Cost, Mode: r.Mode,
			})
		}
	}
	f.decisions = slices.Grow(f.decisions[:0], limits)
	f.comeToHandler(d)
	return f
}

// comeToHandler begins with the handler at which the request is.
func (f *flight) comeToHandler(d *Decider) {
	f.wait, f.lookAt = lines.Request{Came: d.now, Zones: f.wait.Zones[:0], Wake: f.wait.Wake}, 0
	if f.handler == len(f.decided.Handlers) {
		return
	}
	h := f.handlerVisit()
	f.wait.Requests = h.Requests
	decisions := f.decisions
	for i := range h.Requests {
		r := &h.Requests[i]
		end := len(decisions) + len(r.Limits)
		r.Outcome.Decisions, decisions = decisions[len(decisions):len(decisions):end], decisions[:end]
		r.MaxWait = 0
		zone := lines.Zone{}
		if policy := &d.policies[h.Zones[i].Zone]; policy.MaxDelay > 0 {
			zone.Policy = policy
		}
		f.wait.Zones = append(f.wait.Zones, zone)
	}
	f.decisions = decisions
}

// recycle lets a flight that is over be used for another request.
func (d *Decider) recycle(f *flight) {
	if !f.observed || f.events > 0 {
		return
	}
	clear(f.decided.Zones) // so that the Visit can be freed
	f.decided.Visit, f.wait.Requests = nil, nil
	d.free = append(d.free, f)
}

// handlerVisit returns the handler at which the request is.
func (f *flight) handlerVisit() *HandlerVisit { return &f.decided.Handlers[f.handler] }

// proceed leads the request through its handlers, until it waits, is denied, or has passed them all.
func (d *Decider) proceed(f *flight) {
	for f.handler < len(f.decided.Handlers) {
		if len(f.handlerVisit().Requests) > 0 {
			f.wait.Reserve(func() bool { return true })
			next, zone := d.slots.Begin(&f.wait, d.now)
			if !d.decide(f, next, zone) {
				return
			}
		}
		d.toNextHandler(f)
	}
	d.pass(f)
}

// decide takes the next steps of a request at its handler. It reports whether the request comes to the next
// handler at once.
func (d *Decider) decide(f *flight, next lines.Step, zone int) (passes bool) {
	allowed := false
	if next == lines.Ask {
		allowed = d.take(f)
		next, zone = d.slots.Answered(&f.wait, allowed, d.now)
	}
	if next == lines.Wait {
		d.join(f, zone)
		return false
	}
	return d.leave(f, allowed)
}

// join lets a request wait in the line of a zone of its handler.
func (d *Decider) join(f *flight, zone int) {
	if f.wait.Wake == nil {
		f.wait.Wake = func(wait algorithms.Micros) { d.scheduleLook(f, wait) }
	}
	f.looked = d.now
	d.scheduleLook(f, d.slots.Join(&f.wait, zone, d.now))
}

// scheduleLook makes a request look after a while whether it is its turn.
func (d *Decider) scheduleLook(f *flight, wait algorithms.Micros) {
	if at := d.now + wait; f.lookAt == 0 || at < f.lookAt {
		f.lookAt = at
		d.schedule(at, eventLook, f)
	}
}

// look looks whether it is the turn of a request that waits for a slot. at is the instant for which this look
// was scheduled.
func (d *Decider) look(f *flight, at algorithms.Micros) {
	if f.lookAt != at { // an earlier look has come between
		return
	}
	f.lookAt = 0
	f.decided.Zones[f.zone+f.wait.Line()].Delay += d.now - f.looked
	f.looked = d.now
	next, wait := d.slots.Look(&f.wait, d.now)
	if next == lines.Wait {
		d.scheduleLook(f, wait)
		return
	}
	d.correct(f.wait.PrepareShadows())
	if d.decide(f, next, 0) {
		d.toNextHandler(f)
		d.proceed(f)
	}
}

func (d *Decider) toNextHandler(f *flight) {
	f.zone += len(f.handlerVisit().Requests)
	f.handler++
	f.comeToHandler(d)
}

// leave reads the outcome of the handler, and reports whether the request comes to the next one at once.
// If a limit delays the request, it does so later.
func (d *Decider) leave(f *flight, allowed bool) (passes bool) {
	f.decided.Delay += d.now - f.wait.Came
	delay := d.readOutcome(f, allowed)
	if allowed && delay > 0 {
		d.delay(f, delay)
		return false
	}
	f.wait.Release()
	if !allowed {
		d.deny(f)
	}
	return allowed
}

// delay lets a request pass later.
func (d *Decider) delay(f *flight, delay algorithms.Micros) {
	f.decided.Delay += delay
	d.schedule(d.now+delay, eventPass, f)
	if f.isAtLastHandler() { // the outcome is known already
		f.handler = len(f.decided.Handlers)
		d.pass(f)
	}
}

// isAtLastHandler reports whether no further handler limits the request.
func (f *flight) isAtLastHandler() bool {
	return !slices.ContainsFunc(f.decided.Handlers[f.handler+1:], func(h HandlerVisit) bool { return len(h.Requests) > 0 })
}

// endDelay lets a delayed request pass.
func (d *Decider) endDelay(f *flight) {
	f.wait.Release()
	if !f.observed {
		d.toNextHandler(f)
		d.proceed(f)
	}
}

// readOutcome fills in the zones of the handler, and returns how long their limits delay the request.
func (d *Decider) readOutcome(f *flight, allowed bool) (delay algorithms.Micros) {
	requests := f.handlerVisit().Requests
	for i := range requests {
		r, z := &requests[i], &f.decided.Zones[f.zone+i]
		z.Denied, z.Reached = r.Denies(), r.Outcome.Verdict != store.NotAsked
		z.Reason = reasonOf(r)
		if !r.Shadow {
			wait := algorithms.Micros(0)
			for _, decision := range r.Outcome.Decisions {
				wait = max(wait, decision.Wait)
			}
			if !allowed {
				wait = 0
			}
			delay = max(delay, wait)
			z.Delay += wait
		}
	}
	return delay
}

// reasonOf returns the reason of a denial. If a limit and the slots deny the request, the reason is the one
// with the longer retry after, as in the log of a server. For slots, retry after is one second, because
// the instant at which a slot becomes free is not known.
func reasonOf(r *store.Request) Reason {
	if r.Outcome.Verdict == store.Banned {
		return ByBan
	}
	if !r.LacksSlot() {
		return ByLimit
	}
	for _, d := range r.Outcome.Decisions {
		if d.Denies() && d.RetryAfter >= 1_000_000 {
			return ByLimit
		}
	}
	return ByConcurrency
}

// pass ends the decisions about a request that has passed all handlers.
func (d *Decider) pass(f *flight) {
	d.observe(f)
	switch {
	case !d.needsEnd(f):
	case d.capacity == 0:
		d.end(f)
	default:
		d.capacity--
		end := max(min(f.decided.End, latestInstant), f.decided.Came)
		d.schedule(end+f.decided.Delay, eventEnd, f)
	}
}

// deny ends a request that its present handler denies. Earlier handlers get the response of the denial at
// once.
func (d *Decider) deny(f *flight) {
	f.decided.Denied = true
	d.observe(f)
	d.end(f)
}

func (d *Decider) observe(f *flight) {
	f.observed = true
	for _, o := range d.observers {
		o.Observe(&f.decided)
	}
}

// end corrects the charges of the handlers that the request has passed, and gives the slots back. The last
// handler comes first, because it writes its response through the others.
func (d *Decider) end(f *flight) {
	for i := f.handler - 1; i >= 0; i-- {
		corrections := d.corrections[:0]
		for j := range f.decided.Handlers[i].Requests {
			if c := d.correction(f, i, j); correctsAnything(&c) {
				corrections = append(corrections, c)
			}
		}
		d.correct(corrections)
		d.slots.Wake(corrections)
		clear(corrections)
		d.corrections = corrections
	}
}

// correction returns what the response corrects in zone j of handler i.
//
// The response to a request that was denied when it was logged says nothing about its true cost, so its
// charge stays. The response to a request that a later handler denies is the denial.
func (d *Decider) correction(f *flight, i, j int) store.Correction {
	h := &f.decided.Handlers[i]
	r, z := &h.Requests[j], &h.Zones[j]
	c := store.Correction{Request: r, Leave: r.Outcome.Slots.Taken}
	switch {
	case len(r.Limits) == 0 || r.Shadow && r.Denies(): // without shadow mode there would be no response
	case f.decided.Denied:
		if d.zones[z.Zone].RefundsDenied {
			c.Refund = r.Cost
		}
	case z.Settled && !f.decided.WasDenied:
		c.Refund, c.Charge = max(r.Cost-z.TrueCost, 0), max(z.TrueCost-r.Cost, 0)
	}
	return c
}

func correctsAnything(c *store.Correction) bool { return c.Leave || c.Refund > 0 || c.Charge > 0 }

// needsEnd reports whether the end of the request corrects anything.
func (d *Decider) needsEnd(f *flight) bool {
	for i := range f.decided.Handlers {
		for j := range f.decided.Handlers[i].Requests {
			if c := d.correction(f, i, j); correctsAnything(&c) {
				return true
			}
		}
	}
	return false
}
