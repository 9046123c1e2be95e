package algorithms

import (
	_ "embed"
	"strings"
)

// Check asks one limit about one request: whether the budget in State has room
// for Cost events.
type Check struct {
	Limit *Limit
	State *State
	// Cost is how many events the request is worth, 0 or more. 0 looks without
	// taking anything.
	Cost int64
	// Decision is the answer, filled in by [Take].
	Decision Decision

	verdict verdict
}

// Take decides all checks of one request as of now, then charges all of them, or
// none if one has no room. It reports whether the request is allowed. No two
// checks may share a State.
//
// take.lua is its other half.
func Take(checks []Check, now Micros) (allowed bool) {
	allowed = true
	for i := range checks {
		c := &checks[i]
		c.verdict = c.Limit.algorithm.decide(c.Limit, c.State, now, c.Cost)
		allowed = allowed && c.Cost <= c.verdict.fits
	}
	for i := range checks {
		c := &checks[i]
		charge := c.Cost
		if !allowed {
			charge = 0
		}
		remaining, more, reset := c.Limit.algorithm.commit(c.Limit, c.State, now, charge, c.verdict)
		c.Decision = Decision{
			Allowed:    c.Cost <= c.verdict.fits,
			Charged:    charge,
			Remaining:  remaining,
			MoreAfter:  more,
			RetryAfter: c.verdict.retry,
			ResetAfter: reset,
		}
	}
	return allowed
}

//go:embed prelude.lua
var preludeLua string

//go:embed take.lua
var takeLua string

// Set is a set of algorithms. The zero Set is empty.
type Set uint64

// With returns the set with one more algorithm in it.
func (s Set) With(a *Algorithm) Set { return s | a.bit }

// Script composes the Redis script that does what [Take] does, for any number of
// requests, with the algorithms of this set in it. take.lua says what it is given
// and what it replies.
func (s Set) Script() string {
	var b strings.Builder
	b.WriteString(preludeLua)
	for _, a := range registered {
		if s&a.bit != 0 {
			b.WriteString(a.lua)
		}
	}
	b.WriteString(takeLua)
	return b.String()
}
