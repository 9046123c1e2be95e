package algorithms

// Redis does nothing else while a script runs. So the work of one script call is bounded. It
// is counted in steps of about 0.1 µs on one core.

// MaxWork is the most steps of one script call, about 6 ms. On a slower or busier core this
// is still less than 10 ms.
const MaxWork = 60_000

// work is the number of steps of a limit. The numbers are the processor time that Redis took for the longest
// script calls, rounded up.
type work struct {
	take          int64 // to decide and charge
	eventsPerStep int64 // how many events are charged in each later step; 0 if all at once
	refund        int64 // to give back
}

// CounterWork is the most steps of a ban, of slots, or of a limit whose state is a few numbers.
// It includes reading the limit and an override.
const CounterWork = 100

// ReservedWork is the most steps to reserve events, or to end a reservation.
const ReservedWork = 50

// ExtraWork returns the most steps that a request of a zone needs besides those of its limits. The counters are for example
// a ban, slots, and an override without limits; each costs steps if it is there.
func ExtraWork(reserved bool, counters ...bool) (steps int64) {
	if reserved {
		steps = ReservedWork
	}
	for _, there := range counters {
		if there {
			steps += CounterWork
		}
	}
	return steps
}

var counterWork = work{take: CounterWork, refund: CounterWork}

// Work returns the most steps to decide and charge a request of that cost.
func (l *Limit) Work(cost int64) int64 {
	if l.work.eventsPerStep == 0 {
		return l.work.take
	}
	return l.work.take + ceilDiv(min(cost, l.Events), l.work.eventsPerStep)
}

// RefundWork returns the most steps to give back a charge.
func (l *Limit) RefundWork() int64 { return l.work.refund }

// WorstWork returns the most steps to decide, charge or give back a request of up to that
// cost.
func (l *Limit) WorstWork(cost int64) int64 { return max(l.Work(cost), l.work.refund) }
