package simulate

import (
	"slices"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Requests wait for slots by the rules of the handler in a server. A request waits in the line of one zone at
// a time, and takes no slot of the handler meanwhile. A line has the order in which its requests came. Only
// the first request of a line asks the store. It asks when a slot was given back, and after pauses.

const (
	// firstSlotPause is the pause before the first question of a line that needs no reason. Each further
	// pause is twice as long, up to maxSlotPause, until a request leaves the line with an answer.
	firstSlotPause algorithms.Micros = 10_000
	maxSlotPause   algorithms.Micros = 250_000
)

// slotKey names the slots of a key in a zone.
type slotKey struct{ id, key string }

func slotKeyOf(r *store.Request) slotKey { return slotKey{r.Slots.ID, r.Key} }

// slotLine is a line of requests that wait for a slot of one key.
type slotLine struct {
	slotKey
	waiting   []*flight // in the order in which they came
	mayBeFree bool      // a slot may have become free since the last question
	nextAsk   algorithms.Micros
	pause     algorithms.Micros
	lookAt    algorithms.Micros // the instant of the next event of the line; 0: there is none
}

// slotWaiter is the part of a flight about the slots for which it waits in a handler.
type slotWaiter struct {
	line   *slotLine         // nil if the request stands in no line
	zone   int               // the index of the handler's zone in whose line it stands
	joined algorithms.Micros // that line
	giveUp algorithms.Micros // the instant of the next event that may end the wait; 0: there is none
}

func (w *slotWaiter) reset() { *w = slotWaiter{} }

// decide decides the handler at which the request is, or puts the request into a line.
func (d *Decider) decide(f *flight) (allowed, waits bool) {
	if i := d.occupiedLine(f); i >= 0 { // a newcomer doesn't overtake the requests that wait
		if !d.canWaitIn(f, i) {
			denyForSlot(f, i)
			return false, false
		}
		d.join(f, i)
		return false, true
	}
	allowed = d.take(f)
	if !allowed {
		if i := d.missingSlot(f); i >= 0 {
			d.join(f, i)
			return false, true
		}
	}
	return allowed, false
}

// occupiedLine returns a zone of the handler in which other requests wait for a slot of the request's
// key, or -1.
func (d *Decider) occupiedLine(f *flight) int {
	if len(d.lines) == 0 || chargesDenials(f) {
		return -1
	}
	requests := f.handlerVisit().Requests
	for i := range requests {
		r := &requests[i]
		if r.Slots != nil && !r.Shadow && d.zoneOf(f, i).MaxDelay > 0 && d.lines[slotKeyOf(r)] != nil {
			return i
		}
	}
	return -1
}

// missingSlot returns a zone without a free slot for the request, if the request can wait for all the
// slots that it lacks, and nothing else denies it. Otherwise it returns -1. The zone in whose line the
// request stands comes first.
func (d *Decider) missingSlot(f *flight) int {
	requests, missing := f.handlerVisit().Requests, -1
	for i := range requests {
		r := &requests[i]
		if r.Shadow || !denies(r) {
			continue
		}
		lacksMore := r.Outcome.Verdict == store.Banned || slices.ContainsFunc(r.Outcome.Decisions, limitDenies)
		if !lacksSlot(r) || lacksMore || !d.canWaitIn(f, i) {
			return -1
		}
		if missing < 0 || f.waiter.line != nil && f.waiter.zone == i {
			missing = i
		}
	}
	if missing >= 0 && chargesDenials(f) {
		return -1
	}
	return missing
}

// canWaitIn reports whether the request can wait for a slot of a zone now.
func (d *Decider) canWaitIn(f *flight, i int) bool {
	return f.hasPlace[i] && d.now < d.waitsUntil(f, i)
}

// waitsUntil returns when the request gives up in the line of a zone.
func (d *Decider) waitsUntil(f *flight, i int) algorithms.Micros {
	return f.came + d.zoneOf(f, i).MaxDelay
}

// chargesDenials reports whether a zone charges the request even if it is denied. Such a request doesn't
// wait for slots, because each decision would charge it again.
func chargesDenials(f *flight) bool {
	return slices.ContainsFunc(f.handlerVisit().Requests, func(r store.Request) bool { return r.Mode == algorithms.Uniform && !r.Shadow })
}

// denyForSlot denies the request because no slot of a zone is free, without asking the store.
func denyForSlot(f *flight, zone int) {
	requests := f.handlerVisit().Requests
	for i := range requests {
		r := &requests[i]
		decisions := r.Outcome.Decisions[:0]
		for range r.Limits {
			decisions = append(decisions, algorithms.Decision{NotAsked: true})
		}
		r.Outcome = store.Outcome{Decisions: decisions, Slots: store.SlotsOutcome{Free: true}}
	}
	r := &requests[zone]
	r.Outcome.Verdict, r.Outcome.Slots = store.Denied, store.SlotsOutcome{InFlight: r.Slots.Limit}
}

// join puts the request into the line of a zone. If it has just asked as the first of this line, the next
// question comes after a pause.
func (d *Decider) join(f *flight, zone int) {
	d.takePlaces(f)
	if line := f.waiter.line; line != nil && f.waiter.zone == zone {
		line.nextAsk = d.now + line.pause
		line.pause = min(2*line.pause, maxSlotPause)
		d.callFirst(line)
		return
	}
	if f.waiter.line != nil {
		d.leaveLineAfterAsking(f, true)
	}
	d.enterLine(f, zone)
}

// enterLine puts the request into the line of a zone. A new line asks at once.
func (d *Decider) enterLine(f *flight, zone int) {
	key := slotKeyOf(&f.handlerVisit().Requests[zone])
	line := d.lines[key]
	if line == nil {
		line = &slotLine{slotKey: key, pause: firstSlotPause, nextAsk: d.now}
		d.lines[key] = line
	}
	at := len(line.waiting)
	for at > 0 && line.waiting[at-1].came > f.came {
		at--
	}
	line.waiting = slices.Insert(line.waiting, at, f)
	f.waiter.line, f.waiter.zone, f.waiter.joined = line, zone, d.now
	if until := d.waitsUntil(f, zone); f.waiter.giveUp == 0 || until < f.waiter.giveUp {
		f.waiter.giveUp = until
		d.schedule(event{at: until, kind: eventGiveUp, flight: f})
	}
	d.callFirst(line)
}

// leaveLineAfterAsking removes a request that has asked from its line. slotsRemain reports whether slots
// may still be free.
func (d *Decider) leaveLineAfterAsking(f *flight, slotsRemain bool) {
	line := f.waiter.line
	line.mayBeFree = line.mayBeFree || slotsRemain
	line.nextAsk, line.pause = d.now+firstSlotPause, firstSlotPause
	d.leaveLine(f)
}

// leaveLine removes the request from its line.
func (d *Decider) leaveLine(f *flight) {
	line := f.waiter.line
	f.decided.Zones[f.zone+f.waiter.zone].Delay += d.now - f.waiter.joined
	line.waiting = slices.DeleteFunc(line.waiting, func(other *flight) bool { return other == f })
	f.waiter.line = nil
	if len(line.waiting) == 0 {
		delete(d.lines, line.slotKey)
		return
	}
	d.callFirst(line)
}

// callFirst makes the first request of a line ask when it is time.
func (d *Decider) callFirst(line *slotLine) {
	at := max(line.nextAsk, d.now)
	if line.mayBeFree {
		at = d.now
	}
	if line.lookAt == 0 || at < line.lookAt {
		line.lookAt = at
		d.schedule(event{at: at, kind: eventAsk, line: line})
	}
}

// lookAt makes the first request of a line ask if it is time. at is the instant for which this look was
// scheduled.
func (d *Decider) lookAt(line *slotLine, at algorithms.Micros) {
	if line.lookAt != at { // an earlier look has come between
		return
	}
	line.lookAt = 0
	if len(line.waiting) == 0 {
		return
	}
	switch f := line.waiting[0]; {
	case d.now >= d.waitsUntil(f, f.waiter.zone):
		d.giveUp(f)
	case !line.mayBeFree && line.nextAsk > d.now:
		d.callFirst(line)
	default:
		if zone := d.earlierLine(f); zone >= 0 {
			d.leaveLine(f)
			d.enterLine(f, zone)
			return
		}
		line.mayBeFree = false
		d.ask(f)
	}
}

// earlierLine returns a zone in whose line a request waits that came before f, or -1.
func (d *Decider) earlierLine(f *flight) int {
	requests := f.handlerVisit().Requests
	for i := range requests {
		if r := &requests[i]; r.Slots != nil && f.hasPlace[i] && i != f.waiter.zone {
			if line := d.lines[slotKeyOf(r)]; line != nil && line.waiting[0].came < f.came {
				return i
			}
		}
	}
	return -1
}

// ask lets the store decide the first request of a line again.
func (d *Decider) ask(f *flight) {
	if f.asked {
		d.prepareShadows(f)
	}
	requests := f.handlerVisit().Requests
	for i := range requests {
		if f.hasPlace[i] {
			requests[i].MaxWait = d.longestLimitDelay(f, i, d.now-f.came)
		}
	}
	allowed := d.take(f)
	if !allowed {
		if i := d.missingSlot(f); i >= 0 {
			d.join(f, i)
			return
		}
	}
	r := &requests[f.waiter.zone]
	d.leaveLineAfterAsking(f, !allowed || r.Outcome.Slots.InFlight < r.Slots.Limit)
	d.goOn(f, allowed)
}

// prepareShadows prepares the shadow zones for another decision about the request. Zones in mode uniform get
// back the charges of the last decision. The denials of their limits were counted then, and must not be
// counted again.
func (d *Decider) prepareShadows(f *flight) {
	charged := d.corrections[:0]
	requests := f.handlerVisit().Requests
	for i := range requests {
		r := &requests[i]
		if !r.Shadow {
			continue
		}
		if r.Mode == algorithms.Uniform {
			charged = append(charged, store.Correction{Request: r, Refund: r.Cost})
		}
		if r.Outcome.Verdict == store.Denied && r.Outcome.Ban.EndsAfter == 0 {
			r.Ban = nil
		}
	}
	d.correct(charged)
	clear(charged)
	d.corrections = charged
}

// giveUp denies the request if it has waited for a slot as long as it can.
func (d *Decider) giveUp(f *flight) {
	zone := f.waiter.zone
	if f.waiter.line == nil {
		return
	}
	if until := d.waitsUntil(f, zone); until > d.now { // in another line than when the event was scheduled
		f.waiter.giveUp = until
		d.schedule(event{at: until, kind: eventGiveUp, flight: f})
		return
	}
	d.leaveLine(f)
	if !f.asked {
		denyForSlot(f, zone)
	}
	d.goOn(f, false)
}

// wakeWaiting lets requests ask if they wait for slots that corrections have given back.
func (d *Decider) wakeWaiting(corrections []store.Correction) {
	if len(d.lines) == 0 {
		return
	}
	for i := range corrections {
		if c := &corrections[i]; c.Leave {
			if line := d.lines[slotKeyOf(c.Request)]; line != nil {
				line.mayBeFree = true
				d.callFirst(line)
			}
		}
	}
}
