package algorithms

import _ "embed"

//go:embed gcra.lua
var gcraLua string

// gcra is the generic cell rate algorithm (ITU-T I.371), in the form of a virtual schedule.
// It promises that at most burst + T·events/window events pass in any span T.
//
// Evenly spaced events are window/events apart. tat, the theoretical arrival time, is the
// instant at which the next event would be due at that spacing. Each event moves tat one spacing
// ahead. A request passes if tat is then at most burst spacings ahead of now.
//
// For example, 10 events per second have a spacing of 100 ms. With burst 10, after 6 events at
// once, tat is 600 ms ahead. Then 4 events remain, 5 after 100 ms, and 10 after 600 ms.
//
// State: A is tat in whole µs. B is the fraction of a µs to add to A, in 1/events µs, so a
// spacing is never rounded. C is the last charge, in µs. A tat that has passed is the same as
// no state.
//
// C is the newest instant. Debt and charges in advance put tat ahead of C, without a bound. If the
// clock is more than a second behind C, C becomes now, and tat moves with it.
func init() {
	register(&Algorithm{
		Name: "gcra", Burst: true,
		lua:       gcraLua,
		numbers:   func(l *Limit) []int64 { return []int64{l.events, l.window, l.Burst} },
		bound:     productBound,
		refillIn:  steadyRefill,
		maxDelay:  productDelay,
		queued:    func(_ *Limit, tat Micros, part int64) (Micros, int64) { return tat, part },
		keepUntil: gcraKeepUntil,
		decide:    gcraDecide,
		commit:    gcraCommit,
		balance:   3,
		outlook:   gcraOutlook,
		refund:    gcraRefund,
	})
}

func gcraKeepUntil(l *Limit, s *State) Micros { return s.A + ceilDiv(s.B, l.events) }

// gcraArrival returns tat, not before eff. eff is the later of now and the last charge. dirty is 1
// if the clock has stepped back and the state must be saved.
func gcraArrival(s *State, now Micros) (tat Micros, fraction int64, eff Micros, dirty int64) {
	tat, fraction, lastCharge := s.A, s.B, s.C
	if lastCharge-now > stepBack {
		tat, lastCharge, dirty = tat-lastCharge+now, now, 1
	}
	eff = max(now, lastCharge)
	if tat < eff {
		tat, fraction = eff, 0
	}
	return tat, fraction, eff, dirty
}

// gcraFree returns how many events fit before tat is burst spacings ahead of eff. At present it is
// ahead + fraction/events µs ahead. gcraFree multiplies only if an event may fit, because
// charges in advance can put tat far ahead.
func gcraFree(l *Limit, ahead Micros, fraction int64) int64 {
	events, window, burst := l.events, l.window, l.Burst
	if ahead > floorDiv(burst*window, events) {
		return 0
	}
	return max(floorDiv(burst*window-ahead*events-fraction, window), 0)
}

func gcraDecide(l *Limit, s *State, now Micros, cost int64) verdict {
	events, window, burst := l.events, l.window, l.Burst
	tat, fraction, eff, dirty := gcraArrival(s, now)
	ahead := tat - eff
	fits := gcraFree(l, ahead, fraction)
	retry := int64(0)
	if cost > burst {
		retry = Forever
	} else if cost > fits {
		retry = ahead + ceilDiv(fraction+(cost-burst)*window, events) + eff - now
	}
	return verdict{fits: fits, retry: retry, a: tat, b: fraction, c: eff, d: dirty}
}

func gcraCommit(l *Limit, s *State, now Micros, charge int64, o outcome, v verdict) Balance {
	events, window, burst := l.events, l.window, l.Burst
	tat, fraction, eff, dirty := v.a, v.b, v.c, v.d
	ahead, maxDebt := tat-eff, 2*burst*window
	if o == denied {
		charge = max(min(charge, ceilDiv(maxDebt-ahead*events-fraction, window)), 0)
	}
	fraction += charge * window
	ahead, fraction = ahead+floorDiv(fraction, events), fraction%events
	if o == denied && charge > 0 && ahead*events+fraction > maxDebt {
		ahead, fraction = floorDiv(maxDebt, events), maxDebt%events
	}
	tat = eff + ahead
	if charge > 0 || dirty == 1 && o != peek {
		s.A, s.B, s.C = tat, fraction, eff
	}
	return Balance{Charged: charge, A: tat, B: fraction, C: eff}
}

func gcraOutlook(l *Limit, b Balance, now Micros) (remaining int64, more, reset Micros) {
	events, window, burst := l.events, l.window, l.Burst
	tat, fraction, eff := b.A, b.B, b.C
	remaining = gcraFree(l, tat-eff, fraction)
	if remaining < burst {
		more = tat + ceilDiv(fraction+(remaining+1-burst)*window, events) - now
		reset = tat + ceilDiv(fraction, events) - now
	}
	return remaining, more, reset
}

func gcraRefund(l *Limit, s *State, now Micros, r Receipt, n int64) {
	receiptTat, receiptFraction := r.A, r.B
	events, window, burst := l.events, l.window, l.Burst
	tat, fraction, eff, _ := gcraArrival(s, now)
	if tat == eff && fraction == 0 || receiptTat < eff {
		return
	}
	chargedSince := tat > receiptTat || tat == receiptTat && fraction > receiptFraction
	if chargedSince && tat-eff > floorDiv(burst*window, events) {
		return // later requests wait behind this charge
	}
	refunded := min(n, 2*burst) * window
	if receiptTat-eff <= floorDiv(refunded, events) {
		refunded = min(refunded, (receiptTat-eff)*events+receiptFraction)
	}
	fraction -= refunded
	tat, fraction = tat+floorDiv(fraction, events), fraction-floorDiv(fraction, events)*events
	if tat < eff {
		tat, fraction = eff, 0
	}
	s.A, s.B, s.C = tat, fraction, eff
}
