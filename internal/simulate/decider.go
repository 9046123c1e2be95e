package simulate

import (
	"context"
	"crypto/sha256"
	"fmt"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/lines"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/agenda"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Decider decides logged requests as the rate_limit handlers of a configuration would have decided them,
// in the time of the log. It uses the store in memory, and never a clock. A Decider must be made by
// [NewDecider]. It is not safe for concurrent use. Its outcomes depend only on the Visits and on their
// order.
//
// The Decider keeps a request until its end if the request is delayed, or if its end gives back a slot or
// corrects a charge. Of all other requests, only the charges remain.
//
// The log doesn't say when a response was complete for its client. The Decider makes the corrections of a
// request at its End, which is a little later. A delay in the simulation moves the end by the delay. If the
// server delayed the request, too, both delays count.
type Decider struct {
	zones     []Zone
	maxKeys   int64
	observers []Observer

	shared *store.SharedMemory // nil before the first Visit
	store  *store.Memory

	now       algorithms.Micros // never goes back
	events    agenda.Agenda[event]
	capacity  int            // for further requests whose end is awaited
	free      []*openRequest // to be used again
	slots     *lines.SlotLines
	policies  []lines.DelayPolicy // by the index of the zone
	nextSweep algorithms.Micros
	decided   int64 // requests since the last sweep

	corrections []store.Correction // of one handler
}

// NewDecider returns a Decider for the requests of one log. Each observer sees each request once.
func NewDecider(c Configuration, observers ...Observer) *Decider {
	zones := c.Zones()
	d := &Decider{
		zones: zones, maxKeys: c.MaxKeys(), observers: observers, now: earliestInstant, capacity: maxRunning,
		slots: lines.NewSlotLines(lines.LocalPause, nil), policies: make([]lines.DelayPolicy, len(zones)),
	}
	for i := range zones {
		z := &zones[i]
		d.policies[i] = lines.DelayPolicy{
			MaxDelay: z.MaxDelay, MaxReserved: z.MaxReserved, MaxPlaces: z.Places, SingleKey: z.SingleKey, Places: lines.NewPlaces(nil),
		}
	}
	return d
}

const (
	// earliestInstant is the first instant of a Decider. The store would replace instant 0 by its clock.
	earliestInstant algorithms.Micros = 1
	// latestInstant is the last microsecond of the year 9999. It keeps the arithmetic of instants exact.
	latestInstant algorithms.Micros = 253402300799_999_999
	// sweepInterval is the shortest time between two sweeps of the store.
	sweepInterval algorithms.Micros = 60_000_000
	// minDecidedPerSweep is the number of requests between two sweeps, as a part of the number of keys in
	// the store. A sweep looks at all keys, so it must not be made too often.
	minDecidedPerSweep = 4
	// maxRunning is how many requests can run at the same time, if their ends correct anything. It bounds the memory
	// for a log whose durations are wrong. Any other request ends at once.
	maxRunning = 500_000
)

// Arrival returns the instant at which a Decider decides the Visit. It is the instant at which the server
// decided it. If the log doesn't have that, it is the instant at which the request began. The Visits must
// come to a Decider in the order of their Arrivals.
func (v *Visit) Arrival() algorithms.Micros {
	arrival := v.Instant
	if arrival == 0 {
		arrival = v.Start
	}
	return min(max(arrival, earliestInstant), latestInstant)
}

// Decide decides a request at its Arrival. A request that comes out of order is decided at the latest
// Arrival so far. The Decider keeps the Visit until the request has ended, and writes into it.
func (d *Decider) Decide(v *Visit) {
	if d.store == nil {
		d.makeStore(v)
	}
	d.advance(max(v.Arrival(), d.now))
	d.sweep()
	o := d.newRequest(v)
	d.proceed(o)
	d.recycle(o)
}

// Finish decides the requests that still wait, and ends all requests. The Decider must not be used
// afterwards.
func (d *Decider) Finish() {
	for d.events.Len() > 0 {
		d.handleNext()
	}
}

// Overflowed returns how often a limit or slots were decided on a shared budget, because the store had no
// room for the key.
func (d *Decider) Overflowed() int64 {
	if d.shared == nil {
		return 0
	}
	return d.shared.Overflowed()
}

// makeStore makes the store. Its secrets come from the first request of the log. So a run can be repeated.
// Clients couldn't know the secrets when they chose their keys.
func (d *Decider) makeStore(first *Visit) {
	var secrets [2][16]byte
	for i := range secrets {
		sum := sha256.Sum256(fmt.Append(nil, i, first.Start, first.End, first.Instant, first.Client, first.UserAgent))
		secrets[i] = [16]byte(sum[:])
	}
	d.shared = store.NewRepeatableMemory(secrets)
	d.store = d.shared.Bounded(d.maxKeys, func() int { return len(d.zones) }, nil)
}

// advance handles all events up to an instant.
func (d *Decider) advance(to algorithms.Micros) {
	for d.events.Len() > 0 && d.events.First() <= to {
		d.handleNext()
	}
	d.now = to
}

// event is something that will happen to a request.
type event struct {
	kind    eventKind
	request *openRequest
}

type eventKind uint8

const (
	eventEnd  eventKind = iota // a response is complete
	eventPass                  // a delayed request passes
	eventLook                  // a request that waits for a slot looks whether it is its turn
)

// schedule adds an event at an instant. An instant in the past stands for now.
func (d *Decider) schedule(at algorithms.Micros, kind eventKind, o *openRequest) {
	o.events++
	d.events.Add(max(at, d.now), event{kind, o})
}

// handleNext carries out the next event. There must be one.
func (d *Decider) handleNext() {
	at, e := d.events.Pop()
	d.now = max(d.now, at)
	switch e.kind {
	case eventEnd:
		d.capacity++
		d.end(e.request)
	case eventPass:
		d.endDelay(e.request)
	case eventLook:
		d.look(e.request, at)
	}
	e.request.events--
	d.recycle(e.request)
}

// sweep drops expired budgets from the store once in a while.
func (d *Decider) sweep() {
	d.decided++
	if d.now >= d.nextSweep && d.decided*minDecidedPerSweep >= d.shared.Keys() {
		d.shared.SweepAt(d.now)
		d.nextSweep, d.decided = d.now+sweepInterval, 0
	}
}

// take lets the store decide the handler at which the request is.
func (d *Decider) take(o *openRequest) (allowed bool) {
	// The error would be about run-time overrides, and the store has none.
	allowed, _ = d.store.TakeAt(context.Background(), d.now, o.handlerVisit().Requests)
	return allowed
}

// correct makes corrections.
func (d *Decider) correct(corrections []store.Correction) {
	if len(corrections) > 0 {
		_ = d.store.CorrectAt(context.Background(), d.now, corrections) // never fails
	}
}
