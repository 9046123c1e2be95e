package algorithms

import (
	"fmt"
	"slices"
)

// Mode says what a zone grants at the edge of its limits, and what that costs.
type Mode uint8

// The modes. Binary is the zero Mode.
const (
	// Binary grants all of the cost or nothing; refusals are free.
	Binary Mode = iota
	// Nary grants as much of the cost as there is room for; refusals are free.
	Nary
	// Uniform grants as Binary does, and charges refused requests, too, so that
	// a client which keeps hammering stays out. The debt this makes is bounded.
	Uniform
	// Force grants everything and charges as much of it as there is room for.
	Force
)

var modeNames = [...]string{"binary", "nary", "uniform", "force"}

// String is the mode's name in configurations and scripts.
func (m Mode) String() string { return modeNames[m] }

// ParseMode returns the mode of that name; "" is Binary.
func ParseMode(name string) (Mode, error) {
	if i := slices.Index(modeNames[:], name); i >= 0 {
		return Mode(i), nil
	}
	if name == "" {
		return Binary, nil
	}
	return Binary, fmt.Errorf("mode must be binary, nary, uniform or force, not %q", name)
}

// Request asks one zone about one request.
type Request struct {
	Mode Mode
	// Cost is how many events the request is worth, 0 or more. 0 looks without
	// taking anything.
	Cost int64
	// MaxWait is how long a request may be held that doesn't fit now: one that
	// will fit by then is charged in advance. 0 is not at all. It goes with
	// Binary, and with limits whose [Limit.CheckDelay] allows it.
	MaxWait Micros
	// Shadow zones only watch: the request passes whatever they say. They are charged
	// by what they say themselves, and nothing when a zone refuses that isn't a shadow.
	Shadow bool
	// Checks are the zone's limits; there may be none.
	Checks []Check
	// Slots is nil if the zone doesn't bound how many requests are in flight.
	Slots *SlotsCheck
	// Ban is nil if the zone never bans.
	Ban *BanCheck
}

// Check asks one limit whether the budget in State has room.
type Check struct {
	Limit *Limit
	State *State
	// Decision is filled in by [Take].
	Decision Decision

	verdict verdict
}

// SlotsCheck asks whether one more request of a key may be in flight.
type SlotsCheck struct {
	// Limit is how many may be in flight, and InFlight how many are.
	Limit, InFlight int64
	// Peek makes Take leave InFlight as it is.
	Peek bool
	// Taken is filled in by [Take]. It reports whether the request takes a slot.
	Taken bool
}

// Free reports whether one more request may be in flight.
func (c *SlotsCheck) Free() bool { return c == nil || c.InFlight < c.Limit }

// Take decides all zones of one HTTP request as of now, and reports whether the request is
// allowed. A request is allowed if no zone except shadows denies it. Then Take charges all limits
// by their zones' modes, and takes all slots. If a zone denies the request, Take charges only the
// limits of Uniform zones. A shadow that denies is charged as for a denied request. The other zones
// are charged as if that shadow weren't there. No two checks may share a State.
//
// While a zone's ban stands, the zone denies everything, holds nothing back and charges
// nothing, whatever its mode. Before that, its ban counts what the zone's own limits
// deny. The lack of a free slot doesn't count.
//
// operations.lua is its other half.
func Take(requests []Request, now Micros) (allowed bool) {
	allowed = true
	for i := range requests {
		r := &requests[i]
		want := r.want()
		for j := range r.Checks {
			c := &r.Checks[j]
			c.verdict = c.Limit.algorithm.decide(c.Limit, c.State, now, want)
			c.Decision = Decision{Allowed: want <= c.verdict.fits, RetryAfter: c.verdict.retry}
			if retry := c.verdict.retry; !c.Decision.Allowed && retry <= r.MaxWait {
				c.Decision = Decision{Allowed: true, Wait: retry}
			} else if retry > r.MaxWait && retry < Forever {
				c.Decision.RetryAfter = retry - r.MaxWait
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
		for j := range r.Checks {
			c := &r.Checks[j]
			if r.Mode == Force && passes {
				charge = min(r.Cost, c.verdict.fits)
			}
			d := &c.Decision
			d.Charged, d.Receipt.A, d.Receipt.B, d.Remaining, d.MoreAfter, d.ResetAfter = c.Limit.algorithm.commit(c.Limit, c.State, now, charge, o, c.verdict)
			if d.Receipt.At = now; d.Charged == 0 {
				d.Receipt = Receipt{}
			}
			if r.Mode == Uniform && !passes { // what was charged just now has to be waited for, too
				d.RetryAfter = c.Limit.algorithm.decide(c.Limit, c.State, now, r.Cost).retry
			}
		}
		if r.Slots != nil {
			if r.Slots.Taken = passes && !r.Slots.Peek; r.Slots.Taken {
				r.Slots.InFlight++
			}
		}
		if r.Ban != nil {
			r.Ban.commit(now, !r.limitsHaveRoom(), r.Cost == 0)
		}
	}
	return allowed
}

// want is how many events must fit for the zone not to refuse.
func (r *Request) want() int64 {
	switch r.Mode {
	case Nary:
		return min(r.Cost, 1)
	case Force:
		return 0
	default:
		return r.Cost
	}
}

// hasRoom reports whether the zone has room: its limits do, a slot is free, and no ban stands.
func (r *Request) hasRoom() bool { return r.limitsHaveRoom() && r.Slots.Free() && !r.Ban.stands() }

// limitsHaveRoom reports whether all of the zone's limits have room.
func (r *Request) limitsHaveRoom() bool {
	for j := range r.Checks {
		if !r.Checks[j].Decision.Allowed {
			return false
		}
	}
	return true
}

// charge is what each of the zone's limits is charged.
func (r *Request) charge(allowed bool) int64 {
	charge := r.Cost
	if !allowed && r.Mode != Uniform || r.Ban.stands() {
		return 0
	}
	if r.Mode == Nary {
		for j := range r.Checks {
			charge = min(charge, r.Checks[j].verdict.fits)
		}
	}
	return charge
}

func (r *Request) outcome(allowed bool) outcome {
	switch {
	case r.Cost == 0:
		return peek
	case allowed:
		return granted
	default:
		return refused
	}
}

// Refund gives back n events, at most the Charged of the decision that granted them and
// gave the receipt. If the algorithm is BinaryOnly, n must be all of them. A receipt is
// good for one refund. What time has given back already, or may
// have if nothing else was charged since, isn't given back again. Nor is what
// requests that were charged in advance have queued up behind: they keep the time
// they were told, and nobody may come to pass together with them. State that has been
// dropped stays dropped.
//
// So no more passes than if the charge had not been made, unless refunds of others
// come between the charge and its refund: a receipt doesn't know of them.
//
// A receipt that is more than a second ahead of now gives nothing back, because a step
// back of the clock has changed the state since, or will. A log still finds the charge.
//
// operations.lua is its other half.
func Refund(l *Limit, s *State, now Micros, r Receipt, n int64) {
	if n > 0 && (r.At-now <= stepBack || l.algorithm.log) {
		l.algorithm.refund(l, s, now, r.A, r.B, n)
	}
}
