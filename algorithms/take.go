package algorithms

import (
	"fmt"
	"slices"
)

// Mode is the rule by which a zone grants and charges a request that doesn't fit its limits.
type Mode uint8

// The modes. Binary is the zero Mode.
const (
	// Binary grants all of the cost or nothing. Denied requests are free.
	Binary Mode = iota
	// Nary grants as much of the cost as fits all limits. Denied requests are free.
	Nary
	// Uniform grants like Binary, but also charges denied requests. So a client that keeps
	// retrying stays denied. The debt is bounded.
	Uniform
	// Force grants everything, and charges each limit as much of the cost as fits it. Only a calendar is
	// charged the whole cost.
	Force
	// Settle is for corrections. It grants everything, and charges each limit the whole cost. Only smooth limits are
	// charged as in mode Force. Settle also lets a calendar claim the count that it has reached: see [Limit.Crossed].
	// No configuration can choose it.
	Settle
)

var modeNames = [...]string{"binary", "nary", "uniform", "force", "settle"}

// String returns the mode's name in configurations.
func (m Mode) String() string { return modeNames[m] }

// ParseMode returns the mode with that name. "" is Binary.
func ParseMode(name string) (Mode, error) {
	if i := slices.Index(modeNames[:Settle], name); i >= 0 {
		return Mode(i), nil
	}
	if name == "" {
		return Binary, nil
	}
	return Binary, fmt.Errorf("mode must be binary, nary, uniform or force, not %q", name)
}

// ZoneRequest is one HTTP request to one zone.
type ZoneRequest struct {
	Mode Mode
	// Cost is the number of events the request counts as, 0 or more. A request of cost 0 takes
	// nothing.
	Cost int64
	// Peek makes Take decide as always, but change nothing: see [Take].
	Peek bool
	// MaxWait is the longest time a request may be delayed. A request that doesn't fit now but
	// will fit by then is charged in advance. 0 means no delay. MaxWait requires Binary, and
	// limits whose [Limit.CheckDelay] allows it.
	MaxWait Micros
	// Shadow makes the zone only watch: it never denies the request. It is charged by its own
	// decision, but not if a zone that isn't a shadow denies the request.
	Shadow bool
	// Checks has one check for each limit of the zone; it may be empty.
	Checks []Check
	// Slots is nil if the zone doesn't limit the requests in flight.
	Slots *SlotsCheck
	// Reserved is nil if all charges are final.
	Reserved *ReservedCheck
	// Ban is nil if the zone never bans.
	Ban *BanCheck
}

// Check asks one limit whether the budget in State has room for a request.
type Check struct {
	Limit *Limit
	State *State
	// Decision is filled in by [Take].
	Decision Decision

	room room
}

// SlotsCheck asks whether one more request of a key may be in flight.
type SlotsCheck struct {
	// Limit is the number of requests that may be in flight, InFlight the number that are. Ahead is the number
	// of requests whose turn comes first.
	Limit, InFlight, Ahead int64
	// Taken is filled in by [Take]. It reports whether the request has taken a slot.
	Taken bool
}

// Free reports whether one more request may be in flight.
func (c *SlotsCheck) Free() bool { return c == nil || c.InFlight+c.Ahead < c.Limit }

// ReservedCheck has the reserved events of a key: charges that are not final, because their requests may give events back.
type ReservedCheck struct {
	// Events is the number of reserved events. Ahead is the number of requests that wait for reserved events, and whose
	// turn comes first.
	Events, Ahead int64
	// Added is filled in by [Take]. It is the number of events that the request has reserved. A request that is charged in
	// advance reserves nothing. Otherwise a flood of such requests would never be denied by the limits, nor banned.
	Added int64
}

// ReservedRetryAfter is the RetryAfter of a request that lacks only reserved events, because the end of the requests that
// have reserved them is unknown.
const ReservedRetryAfter Micros = 1_000_000

// Take decides all zones of one HTTP request as of now, and reports whether the request is
// allowed. A request is allowed if no zone except shadows denies it. Then Take charges all limits
// by their zones' modes, and takes all slots. If a zone denies the request, Take charges only the
// limits of Uniform zones. A shadow that denies is charged as for a denied request. The other zones
// are charged as if that shadow weren't there. No two checks may share a State.
//
// If a limit has no room for a request, but would have room without the reserved events, its decision is Reserved. The ban
// doesn't count such a decision. It is also Reserved if the requests whose turn comes first leave no room.
//
// While a zone's ban stands, the zone denies, delays nothing and charges nothing, whatever its mode.
// At other times the ban counts the denials by the zone's own limits. A lack of free slots
// doesn't count.
//
// A peek is decided like any other request, and changes nothing. Its decisions show the budgets
// without its charge, and the ban that it would begin. In mode Uniform a denied request waits for
// its own charge, too, but a denied peek doesn't.
//
// For example, a zone has a limit with 4 events left and one with 2 left. A request of cost 3 is
// denied. In mode Binary both keep their events. In mode Nary the request passes, and both are
// charged 2. In mode Force it passes, and they are charged 3 and 2.
//
// operations.lua mirrors it.
func Take(requests []ZoneRequest, now Micros) (allowed bool) {
	allowed = true
	for i := range requests {
		r := &requests[i]
		needed := r.needed()
		for j := range r.Checks {
			c := &r.Checks[j]
			c.room = c.Limit.algorithm.decide(c.Limit, c.State, now, needed)
			c.Decision = Decision{Allowed: needed <= max(c.room.fits, 0), RetryAfter: c.room.retry}
			if retry := c.room.retry; !c.Decision.Allowed && retry <= r.MaxWait {
				c.Decision = Decision{Allowed: true, Wait: retry}
			} else if retry > r.MaxWait && retry < Forever {
				c.Decision.RetryAfter = retry - r.MaxWait
			}
			if r.Reserved != nil {
				c.reserve(r.Reserved, needed)
			}
		}
		if r.Ban != nil {
			r.Ban.decide(now)
		}
		allowed = allowed && (r.Shadow || r.hasRoom())
	}
	for i := range requests {
		r := &requests[i]
		passes := allowed && (!r.Shadow || r.hasRoom())
		charge, o := r.charge(passes), r.outcome(passes)
		if r.Reserved != nil && r.Mode < Force && passes && !r.isDelayed() {
			r.Reserved.Added = charge
			r.Reserved.Events += charge
		}
		for j := range r.Checks {
			c := &r.Checks[j]
			d := &c.Decision
			l := c.Limit
			if r.Mode >= Force && passes && !r.Peek {
				if charge = r.Cost; l.algorithm.BinaryOnly || r.Mode == Force && !l.algorithm.Calendar {
					charge = min(charge, max(c.room.fits, 0))
				}
			}
			if r.Reserved != nil {
				c.room.reserved = r.Reserved.Events
			}
			l.Describe(d, l.algorithm.commit(l, c.State, now, charge, o, c.room), now)
			if r.Mode == Uniform && !passes { // a retry also has to wait for this charge
				d.RetryAfter = l.algorithm.decide(l, c.State, now, r.Cost).retry
			}
		}
		if r.Slots != nil {
			if r.Slots.Taken = passes && !r.Peek; r.Slots.Taken {
				r.Slots.InFlight++
			}
		}
		if r.Ban != nil {
			r.Ban.commit(now, r.limitDenies(), o == peek)
		}
	}
	return allowed
}

// reserve makes the decision Reserved if the limit lacks room only for what others have reserved, or wait for.
func (c *Check) reserve(reserved *ReservedCheck, needed int64) {
	d, fits := &c.Decision, c.room.fits
	lacks := needed > fits-reserved.Ahead*needed && needed > 0 && d.Wait == 0
	if !d.Allowed {
		lacks = needed <= fits+reserved.Events && c.room.retry < Forever
	}
	if lacks {
		d.Allowed, d.Reserved, d.RetryAfter = false, true, ReservedRetryAfter
	}
}

// needed returns the number of events that must fit for the zone to allow the request.
func (r *ZoneRequest) needed() int64 {
	switch r.Mode {
	case Nary:
		return min(r.Cost, 1)
	case Force, Settle:
		return 0
	default:
		return r.Cost
	}
}

// hasRoom reports whether the zone has room: its limits do, a slot is free, and no ban stands.
func (r *ZoneRequest) hasRoom() bool { return r.limitsHaveRoom() && r.Slots.Free() && !r.Ban.stands() }

// limitsHaveRoom reports whether all of the zone's limits have room.
func (r *ZoneRequest) limitsHaveRoom() bool {
	return !r.anyDecision(func(d *Decision) bool { return !d.Allowed })
}

// limitDenies reports whether a limit denies the request.
func (r *ZoneRequest) limitDenies() bool {
	return r.anyDecision(func(d *Decision) bool { return d.Denies() })
}

// isDelayed reports whether a limit delays the request.
func (r *ZoneRequest) isDelayed() bool {
	return r.anyDecision(func(d *Decision) bool { return d.Wait > 0 })
}

// anyDecision reports whether something is true of a decision.
func (r *ZoneRequest) anyDecision(is func(*Decision) bool) bool {
	for j := range r.Checks {
		if is(&r.Checks[j].Decision) {
			return true
		}
	}
	return false
}

// charge returns the charge to each of the zone's limits, except in the modes Force and Settle.
func (r *ZoneRequest) charge(passes bool) int64 {
	charge := r.Cost
	if r.Peek || !passes && r.Mode != Uniform || r.Ban.stands() {
		return 0
	}
	if r.Mode == Nary {
		for j := range r.Checks {
			charge = min(charge, max(r.Checks[j].room.fits, 0))
		}
	}
	return charge
}

func (r *ZoneRequest) outcome(passes bool) outcome {
	switch {
	case r.Mode == Settle:
		return settled
	case r.Peek || r.Cost == 0:
		return peek
	case passes:
		return granted
	default:
		return denied
	}
}

// Refund gives back n events of a charge, at most the Charged of the decision with the receipt. If
// the algorithm is BinaryOnly, n must be all of them. A receipt is good for one refund.
//
// Refund gives back less if time may have given back events of the charge already. It gives back
// nothing if later requests were charged in advance: they wait behind this charge, and their waits
// don't change. A state that was dropped stays dropped. So no more passes than without the charge,
// unless other refunds come between the charge and its refund.
//
// For example, 5 of 10 events per second are charged at once. A refund of 5 after 200 ms gives
// back 3, because time has given back 2.
//
// A receipt that is more than a second ahead of now gives nothing back, because the clock has
// stepped back, and the state with it. A log still finds the charge.
//
// operations.lua mirrors it.
func Refund(l *Limit, s *State, now Micros, r Receipt, n int64) {
	if n > 0 && (r.At-now <= stepBack || l.algorithm.log) {
		l.algorithm.refund(l, s, now, r, n)
	}
}
