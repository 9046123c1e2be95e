package algorithms

// A budget is dropped some time after it is as good as untouched. Setting the expiry is half of
// the cost of a write to Redis. So the expiry moves in steps of one quantum, and most writes leave
// it as it is. Both languages compute the old and the new expiry from the state alone. A quantum
// is the time in which 16 events come back, or the whole burst if that is less, but at least a
// second. The quantum doesn't change with [Limit.Scaled].

// quantumOf returns the quantum of a limit.
func quantumOf(l *Limit) Micros {
	return max(ceilDiv(min(16, l.Burst)*l.Window, l.Events), 1_000_000)
}

// banQuantum is the quantum of all bans.
const banQuantum Micros = 1_000_000

// Expires returns the instant at which a store drops a budget in that state. For limits with
// initial the instant affects decisions: until then the budget is known to be full, and afterwards
// it begins with initial again.
func (l *Limit) Expires(s *State) Micros { return expires(l.algorithm.untouched(l, s), l.quantum) }

// Expires returns the instant at which a store drops a ban in that state.
func (b *Ban) Expires(s *State) Micros { return expires(banUntouched(b, s), banQuantum) }

// expires returns an instant that is at least one quantum and at most two after untouched.
func expires(untouched, quantum Micros) Micros { return (floorDiv(untouched, quantum) + 2) * quantum }

// Lingers reports whether a budget that is known to be full differs from one without a state, as
// with initial.
func (l *Limit) Lingers() bool { return l.Initial != nil }

// linger is how long a full budget is known to be full; 0 if that makes no difference. It
// doesn't change with [Limit.Scaled].
func (l *Limit) linger() Micros {
	if l.Initial == nil {
		return 0
	}
	return l.Window
}
