package simulate

import (
	"context"
	"slices"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/lines"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// openRequest is a request on its way through the handlers, and afterwards until its end.
type openRequest struct {
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

// newRequest returns a request that comes to its first handler.
func (d *Decider) newRequest(v *Visit) *openRequest {
	var o *openRequest
	if n := len(d.free); n > 0 {
		o, d.free = d.free[n-1], d.free[:n-1]
	} else {
		o = new(openRequest)
	}
	o.decided = Decided{Visit: v, Came: d.now, Zones: o.decided.Zones[:0]}
	o.handler, o.zone, o.observed = 0, 0, false
	limits := 0
	for i := range v.Handlers {
		h := &v.Handlers[i]
		for j := range h.Requests {
			r := &h.Requests[j]
			limits += len(r.Limits)
			o.decided.Zones = append(o.decided.Zones, DecidedZone{
				ZoneVisit: &h.Zones[j], Key: r.Key, Shadow: r.Shadow, Cost: r.Cost, Mode: r.Mode,
			})
		}
	}
	o.decisions = slices.Grow(o.decisions[:0], limits)
	o.comeToHandler(d)
	return o
}

// comeToHandler begins with the handler at which the request is.
func (o *openRequest) comeToHandler(d *Decider) {
	o.wait, o.lookAt = lines.Request{Came: d.now, Zones: o.wait.Zones[:0], Wake: o.wait.Wake}, 0
	if o.handler == len(o.decided.Handlers) {
		return
	}
	h := o.handlerVisit()
	o.wait.Requests = h.Requests
	decisions := o.decisions
	for i := range h.Requests {
		r := &h.Requests[i]
		end := len(decisions) + len(r.Limits)
		r.Outcome.Decisions, decisions = decisions[len(decisions):len(decisions):end], decisions[:end]
		r.MaxWait = 0
		zone := lines.ZoneWait{}
		if policy := &d.policies[h.Zones[i].Zone]; policy.MaxDelay > 0 || policy.MaxReserved > 0 {
			zone.Delay = policy
		}
		o.wait.Zones = append(o.wait.Zones, zone)
	}
	o.decisions = decisions
}

// recycle lets a request that is over be used for another request.
func (d *Decider) recycle(o *openRequest) {
	if !o.observed || o.events > 0 {
		return
	}
	clear(o.decided.Zones) // so that the Visit can be freed
	o.decided.Visit, o.wait.Requests = nil, nil
	d.free = append(d.free, o)
}

// handlerVisit returns the handler at which the request is.
func (o *openRequest) handlerVisit() *HandlerVisit { return &o.decided.Handlers[o.handler] }

// proceed leads the request through its handlers, until it waits, is denied, or has passed them all.
func (d *Decider) proceed(o *openRequest) {
	for o.handler < len(o.decided.Handlers) {
		if len(o.handlerVisit().Requests) > 0 {
			o.wait.Reserve(func() bool { return true })
			next, need := d.slots.Begin(&o.wait, d.now)
			if !d.decide(o, next, need) {
				return
			}
		}
		d.toNextHandler(o)
	}
	d.pass(o)
}

// decide takes the next steps of a request at its handler. It reports whether the request comes to the next
// handler at once.
func (d *Decider) decide(o *openRequest, next lines.Step, need lines.Need) (passes bool) {
	allowed := false
	if next == lines.Ask {
		allowed = d.take(o)
		next, need = d.slots.Answered(&o.wait, allowed, d.now)
	}
	if next == lines.Wait {
		d.join(o, need)
		return false
	}
	return d.leave(o, allowed)
}

// join lets a request wait in a line of its handler.
func (d *Decider) join(o *openRequest, need lines.Need) {
	if o.wait.Wake == nil {
		o.wait.Wake = func(wait algorithms.Micros) { d.scheduleLook(o, wait) }
	}
	o.looked = d.now
	d.scheduleLook(o, d.slots.Join(&o.wait, need, d.now))
}

// scheduleLook makes a request look after a while whether it is its turn.
func (d *Decider) scheduleLook(o *openRequest, wait algorithms.Micros) {
	if at := d.now + wait; o.lookAt == 0 || at < o.lookAt {
		o.lookAt = at
		d.schedule(at, eventLook, o)
	}
}

// look looks whether it is the turn of a request that waits for a slot. at is the instant for which this look
// was scheduled.
func (d *Decider) look(o *openRequest, at algorithms.Micros) {
	if o.lookAt != at { // an earlier look has come between
		return
	}
	o.lookAt = 0
	o.decided.Zones[o.zone+o.wait.Line()].Delay += d.now - o.looked
	o.looked = d.now
	next, wait := d.slots.Look(&o.wait, d.now)
	if next == lines.Wait {
		d.scheduleLook(o, wait)
		return
	}
	d.correct(o.wait.PrepareShadows())
	if d.decide(o, next, lines.Need{}) {
		d.toNextHandler(o)
		d.proceed(o)
	}
}

func (d *Decider) toNextHandler(o *openRequest) {
	o.zone += len(o.handlerVisit().Requests)
	o.handler++
	o.comeToHandler(d)
}

// leave reads the outcome of the handler, and reports whether the request comes to the next one at once.
// If a limit delays the request, it does so later.
func (d *Decider) leave(o *openRequest, allowed bool) (passes bool) {
	o.decided.Delay += d.now - o.wait.Came
	delay := d.readOutcome(o, allowed)
	if allowed && delay > 0 {
		d.delay(o, delay)
		return false
	}
	o.wait.Release()
	if !allowed {
		d.deny(o)
	}
	return allowed
}

// delay lets a request pass later.
func (d *Decider) delay(o *openRequest, delay algorithms.Micros) {
	o.decided.Delay += delay
	d.schedule(d.now+delay, eventPass, o)
	if o.isAtLastHandler() { // the outcome is known already
		o.handler = len(o.decided.Handlers)
		d.pass(o)
	}
}

// isAtLastHandler reports whether no other handler limits the request.
func (o *openRequest) isAtLastHandler() bool {
	return !slices.ContainsFunc(o.decided.Handlers[o.handler+1:], func(h HandlerVisit) bool { return len(h.Requests) > 0 })
}

// endDelay lets a delayed request pass.
func (d *Decider) endDelay(o *openRequest) {
	o.wait.Release()
	if !o.observed {
		d.toNextHandler(o)
		d.proceed(o)
	}
}

// readOutcome fills in the zones of the handler, and returns how long their limits delay the request.
func (d *Decider) readOutcome(o *openRequest, allowed bool) (delay algorithms.Micros) {
	requests := o.handlerVisit().Requests
	for i := range requests {
		r, z := &requests[i], &o.decided.Zones[o.zone+i]
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

// reasonOf returns the reason of a denial: also ByLimit if the limit lacks only reserved events. If a limit and the slots
// deny the request, the reason is the one with the longer retry after, as in the log of a server. For slots, retry after is
// one second, because the instant at which a slot becomes free is not known.
func reasonOf(r *store.ZoneRequest) Reason {
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

// pass ends the decisions on a request that has passed all handlers.
func (d *Decider) pass(o *openRequest) {
	d.observe(o)
	switch {
	case !d.needsEnd(o):
	case d.capacity == 0:
		d.end(o)
	default:
		d.capacity--
		end := max(min(o.decided.End, latestInstant), o.decided.Came)
		d.schedule(end+o.decided.Delay, eventEnd, o)
	}
}

// deny ends a request that its present handler denies. Earlier handlers get the response of the denial at
// once.
func (d *Decider) deny(o *openRequest) {
	o.decided.Denied = true
	d.observe(o)
	d.end(o)
}

func (d *Decider) observe(o *openRequest) {
	o.observed = true
	for _, observer := range d.observers {
		observer.Observe(&o.decided)
	}
}

// end corrects the charges of the handlers that the request has passed, and gives the slots back. The last
// handler comes first, because it writes its response through the others.
func (d *Decider) end(o *openRequest) {
	for i := o.handler - 1; i >= 0; i-- {
		d.hold(o, i)
		corrections := d.corrections[:0]
		for j := range o.decided.Handlers[i].Requests {
			if c := d.correction(o, i, j); c.Corrects() {
				corrections = append(corrections, c)
			}
		}
		d.correct(corrections)
		d.slots.Wake(corrections)
		clear(corrections)
		d.corrections = corrections
	}
}

// hold bans the keys of handler i as the response says, unless a later handler denied the request.
func (d *Decider) hold(o *openRequest, i int) {
	h := &o.decided.Handlers[i]
	for j := range h.Requests {
		if r, span := &h.Requests[j], h.Zones[j].Hold; span > 0 && !o.decided.Denied {
			_ = d.store.ChangeAt(context.Background(), d.now, r.Hold(span)) // never fails
		}
	}
}

// correction returns what the response corrects in zone j of handler i.
//
// The response to a request that was denied when it was logged says nothing about its true cost, so its
// charge stays. The response to a request that a later handler denies is the denial.
func (d *Decider) correction(o *openRequest, i, j int) store.Correction {
	h := &o.decided.Handlers[i]
	r, z := &h.Requests[j], &h.Zones[j]
	c := store.Correction{Request: r, Leave: r.Outcome.Slots.Taken, Settled: true}
	switch {
	case len(r.Limits) == 0 || r.Shadow && r.Denies(): // without shadow mode there would be no response
	case o.decided.Denied:
		if d.zones[z.Zone].RefundsDenied {
			c.Refund = r.Cost
		}
	case z.Settled && !o.decided.WasDenied:
		c.Refund, c.Charge = max(r.Cost-z.TrueCost, 0), max(z.TrueCost-r.Cost, 0)
	}
	return c
}

// needsEnd reports whether the end of the request corrects anything, or bans a key.
func (d *Decider) needsEnd(o *openRequest) bool {
	for i := range o.decided.Handlers {
		for j := range o.decided.Handlers[i].Requests {
			if c := d.correction(o, i, j); c.Corrects() || o.decided.Handlers[i].Zones[j].Hold > 0 {
				return true
			}
		}
	}
	return false
}
