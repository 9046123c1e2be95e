package algorithms

// A budget is dropped some time after it is fully restored. Setting the expiry is half of
// the cost of a write to Redis. So the expiry moves in steps of one quantum, and most writes leave
// it as it is. Both languages compute the old and the new expiry from the state alone. A quantum
// is the time in which 16 events come back, or a window if that is less, but at least a
// second. The quantum depends on the events and the window alone.

// quantumOf returns the quantum of a limit.
func quantumOf(l *Limit) Micros {
	if l.calendar != nil { // its expiry moves once in a period
		return 1_000_000
	}
	return max(ceilDiv(min(16, l.Events)*l.Window, l.Events), 1_000_000)
}

// banQuantum is the quantum of all bans.
const banQuantum Micros = 1_000_000

// Expires returns the instant at which a store drops a budget in that state. For limits with
// initial the instant affects decisions: until then the budget is known to be full, and afterwards
// it begins with initial again.
func (l *Limit) Expires(s *State) Micros { return expires(l.algorithm.keepUntil(l, s), l.quantum) }

// KeptUntil returns the instant from which on a state decides like the zero State, for this limit and for a larger one that
// counts it. It does not hold for limits that are kept after a reset: see [Limit.KeptAfterReset].
func (l *Limit) KeptUntil(s *State) Micros { return l.algorithm.keepUntil(l, s) }

// Expires returns the instant at which a store drops a ban in that state.
func (b *Ban) Expires(s *State) Micros { return expires(banKeepUntil(b, s), banQuantum) }

// expires returns an instant that is at least one quantum and at most two after keepUntil.
func expires(keepUntil, quantum Micros) Micros { return (floorDiv(keepUntil, quantum) + 2) * quantum }

// KeptAfterReset reports whether the state of a full budget is kept for a time, because without a
// state the budget would begin with initial again.
//
// A calendar is kept until its period ends, because its state has more than the budget.
func (l *Limit) KeptAfterReset() bool { return l.Initial != nil || l.calendar != nil }

// retention returns the time for which the state of a full budget is kept; 0 if it isn't kept. It
// doesn't change with [Limit.Scaled].
func (l *Limit) retention() Micros {
	if l.Initial == nil {
		return 0
	}
	return l.Window
}
