package algorithms

import _ "embed"

//go:embed gcra.lua
var gcraLua string

// gcra: the generic cell rate algorithm (ITU-T I.371). One event takes
// window/events, its spacing; what was admitted pushes the theoretical arrival
// time of the next event, tat, ahead, and a request passes while tat stays
// within burst spacings of now. At most burst + T·events/window events pass in
// any span T.
//
// State: A is the whole µs of tat, B the rest in 1/events µs, so that a spacing
// which is no whole number of µs isn't rounded either. A tat that has passed is
// the same as none. C is the instant of the last charge.
//
// C is the newest instant; tat is ahead of it by debt and by charges in advance, without
// a bound. If the clock is more than a second behind C, C becomes now, and tat moves
// with it.
func init() {
	register(&Algorithm{
		Name: "gcra", Burst: true,
		lua:          gcraLua,
		numbers:      func(l *Limit) []int64 { return []int64{l.events, l.window, l.Burst} },
		bound:        productBound,
		longestDelay: productDelay,
		queued:       func(_ *Limit, tat Micros, part int64) (Micros, int64) { return tat, part },
		untouched:    gcraUntouched,
		decide:       gcraDecide,
		commit:       gcraCommit,
		refund:       gcraRefund,
	})
}

func gcraUntouched(l *Limit, s *State) Micros { return s.A + ceilDiv(s.B, l.events) }

func gcraDecide(l *Limit, s *State, now Micros, cost int64) verdict {
	events, window, burst := l.events, l.window, l.Burst
	tat, part, eff, dirty := gcraArrival(s, now)
	ahead := tat - eff
	fits := gcraFree(l, ahead, part)
	retry := int64(0)
	if cost > burst {
		retry = Forever
	} else if cost > fits {
		retry = ahead + ceilDiv(part+(cost-burst)*window, events) + eff - now
	}
	return verdict{fits: fits, retry: retry, a: tat, b: part, c: eff, d: dirty}
}

func gcraCommit(l *Limit, s *State, now Micros, charge int64, o outcome, v verdict) (charged, a, b, remaining int64, more, reset Micros) {
	events, window, burst := l.events, l.window, l.Burst
	tat, part, eff, dirty := v.a, v.b, v.c, v.d
	ahead, most := tat-eff, 2*burst*window
	if o == refused {
		charge = max(min(charge, ceilDiv(most-ahead*events-part, window)), 0)
	}
	part += charge * window
	ahead, part = ahead+floorDiv(part, events), part%events
	if o == refused && charge > 0 && ahead*events+part > most {
		ahead, part = floorDiv(most, events), most%events
	}
	remaining = gcraFree(l, ahead, part)
	if remaining < burst {
		more = ahead + ceilDiv(part+(remaining+1-burst)*window, events) + eff - now
		reset = ahead + ceilDiv(part, events) + eff - now
	}
	tat = eff + ahead
	if charge > 0 || dirty == 1 && o != peek {
		s.A, s.B, s.C = tat, part, eff
	}
	return charge, tat, part, remaining, more, reset
}

func gcraRefund(l *Limit, s *State, now Micros, a, b, n int64) {
	events, window, burst := l.events, l.window, l.Burst
	tat, part, eff, _ := gcraArrival(s, now)
	if tat == eff && part == 0 || a < eff {
		return
	}
	if behind := tat > a || tat == a && part > b; behind && tat-eff > floorDiv(burst*window, events) {
		return // others wait behind it
	}
	back := min(n, 2*burst) * window
	if a-eff <= floorDiv(back, events) {
		back = min(back, (a-eff)*events+b)
	}
	part -= back
	tat, part = tat+floorDiv(part, events), part-floorDiv(part, events)*events
	if tat < eff {
		tat, part = eff, 0
	}
	s.A, s.B, s.C = tat, part, eff
}

// gcraArrival returns tat as of eff, which is the later of now and the last charge. dirty
// is 1 if the clock has stepped back and the state must be saved.
func gcraArrival(s *State, now Micros) (tat Micros, part int64, eff Micros, dirty int64) {
	tat, part, at := s.A, s.B, s.C
	if at-now > stepBack {
		tat, at, dirty = tat-at+now, now, 1
	}
	eff = max(now, at)
	if tat < eff {
		tat, part = eff, 0
	}
	return tat, part, eff, dirty
}

// gcraFree returns how many events fit before tat is burst spacings away; tat is now
// ahead + part/events µs from eff. It multiplies only if any fit, because charges in
// advance can put tat far ahead.
func gcraFree(l *Limit, ahead Micros, part int64) int64 {
	events, window, burst := l.events, l.window, l.Burst
	if ahead > floorDiv(burst*window, events) {
		return 0
	}
	return max(floorDiv(burst*window-ahead*events-part, window), 0)
}
