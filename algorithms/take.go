package algorithms

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
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
	// Checks are the zone's limits, one or more, and then its ban, if it has one; see
	// [NewBan].
	Checks []Check
}

// Check asks one limit whether the budget in State has room.
type Check struct {
	Limit *Limit
	State *State
	// Decision is the answer, filled in by [Take].
	Decision Decision

	verdict verdict
}

// Take decides all checks of all zones one HTTP request belongs to as of now, and
// reports whether it is allowed: it is when no zone refuses, shadows apart. Then it
// charges all limits by their zones' modes or, if a zone refused, those of Uniform
// zones alone. A shadow that refuses is charged as for a refused request, and the
// others as if it weren't there. No two checks may share a State.
//
// While a zone's ban stands, the zone refuses everything, holds nothing back and charges
// nothing, whatever its mode. Before that, its ban counts what the zone's own limits
// refuse; if this brings about a ban, its RetryAfter says so, though it had room.
//
// take.lua is its other half.
func Take(requests []Request, now Micros) (allowed bool) {
	allowed = true
	for i := range requests {
		r := &requests[i]
		want := r.want()
		for j := range r.Checks {
			c := &r.Checks[j]
			c.verdict = c.Limit.algorithm.decide(c.Limit, c.State, now, want)
			c.Decision = Decision{Allowed: want <= c.verdict.fits, RetryAfter: c.verdict.retry}
			longest := r.MaxWait
			if c.Limit.Bans() { // nobody is held until a ban ends
				longest = 0
			}
			if retry := c.verdict.retry; !c.Decision.Allowed && retry <= longest {
				c.Decision = Decision{Allowed: true, Wait: retry}
			} else if retry > longest && retry < Forever {
				c.Decision.RetryAfter = retry - longest
			}
			allowed = allowed && (c.Decision.Allowed || r.Shadow)
		}
	}
	for i := range requests {
		r := &requests[i]
		passes := allowed && (!r.Shadow || r.hasRoom())
		charge, o := r.charge(passes), r.outcome(passes)
		if r.banned() {
			charge = 0
		}
		for j := range r.Checks {
			c := &r.Checks[j]
			if r.Mode == Force && passes {
				charge = min(r.Cost, c.verdict.fits)
			}
			if c.Limit.Bans() { // it comes last
				charge, o = 0, r.counts()
			}
			d := &c.Decision
			d.Charged, d.Receipt.A, d.Receipt.B, d.Remaining, d.MoreAfter, d.ResetAfter = c.Limit.algorithm.commit(c.Limit, c.State, now, charge, o, c.verdict)
			if d.Receipt.At = now; d.Charged == 0 {
				d.Receipt = Receipt{}
			}
			if r.Mode == Uniform && !passes { // what was charged just now has to be waited for, too
				d.RetryAfter = c.Limit.algorithm.decide(c.Limit, c.State, now, r.Cost).retry
			}
			if c.Limit.Bans() { // a ban may have begun just now
				d.RetryAfter = d.MoreAfter
			}
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

// hasRoom tells whether all of the zone's limits have room.
func (r *Request) hasRoom() bool {
	for j := range r.Checks {
		if !r.Checks[j].Decision.Allowed {
			return false
		}
	}
	return true
}

// banned tells whether a ban stands.
func (r *Request) banned() bool {
	last := &r.Checks[len(r.Checks)-1]
	return last.Limit.Bans() && !last.Decision.Allowed
}

// counts is what became of the request as the zone's ban sees it: refused by a limit of
// the zone, or nothing to count.
func (r *Request) counts() outcome {
	switch {
	case !r.hasRoom() && !r.banned():
		return refused
	case r.Cost == 0:
		return peek
	default:
		return granted
	}
}

// charge is what each of the zone's limits is charged.
func (r *Request) charge(allowed bool) int64 {
	charge := r.Cost
	if !allowed && r.Mode != Uniform {
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
// refund.lua is its other half.
func Refund(l *Limit, s *State, now Micros, r Receipt, n int64) {
	if n > 0 && (r.At-now <= stepBack || l.algorithm.log) {
		l.algorithm.refund(l, s, now, r.A, r.B, n)
	}
}

//go:embed prelude.lua
var preludeLua string

//go:embed take.lua
var takeLua string

//go:embed refund.lua
var refundLua string

//go:embed renew.lua
var renewLua string

//go:embed change.lua
var changeLua string

// Set is a set of algorithms. The zero Set is empty.
type Set uint64

// With returns the set with one more algorithm in it.
func (s Set) With(a *Algorithm) Set { return s | a.bit }

// TakeScript composes the Redis script that does what [Take] does, for any number
// of requests, with the algorithms of this set in it. take.lua says what it is
// given and what it replies.
func (s Set) TakeScript() string { return s.compose(takeLua) }

// RefundScript composes the Redis script that does what [Refund] does, for any
// number of budgets. refund.lua says what it is given.
func (s Set) RefundScript() string { return s.compose(refundLua) }

// RenewScript composes the Redis script that does what [Refund] and then [Take] in mode
// [Force] do, for any number of budgets one after the other. renew.lua says what it is
// given and what it replies.
func (s Set) RenewScript() string { return s.compose(renewLua) }

// ChangeScript is the Redis script that forgets budgets, and sets bans and overrides.
// change.lua says what it is given.
func ChangeScript() string { return Set(0).With(banAlgorithm).compose(changeLua) }

func (s Set) compose(body string) string {
	var b strings.Builder
	b.WriteString(preludeLua)
	for _, a := range registered {
		if s&a.bit != 0 {
			b.WriteString(a.lua)
		}
	}
	if s&banAlgorithm.bit != 0 {
		b.WriteString(banLua)
	}
	b.WriteString(body)
	return b.String()
}
