package algorithms

import _ "embed"

//go:embed sliding_window.lua
var slidingWindowLua string

// sliding_window estimates the events of the last window from two counters: cur, of the current
// window, and prev, of the window before. Windows begin at multiples of window since the Unix
// epoch, UTC. It promises that at most 2·events events pass in any span as long as a window.
//
// The estimate assumes that the events of the previous window were evenly spread. At e into a
// window of length W, (W−e)/W of them still count. So a request passes if
// prev·(W−e) + (cur+cost)·W ≤ events·W.
//
// For example, with 10 events per minute, 15 seconds into a window, prev is 8 and cur is 3. Then
// 8·45/60 + 3 = 9 events count, and 1 remains. A request of cost 2 has to wait until 22.5 seconds
// into the window, where 8·37.5/60 + 3 + 2 = 10.
//
// State: A is the start of the current window, in µs. B is prev and C is cur, in events. Both 0 is
// the same as no state. They can be above events, because a larger limit or corrections have charged more. Then the window was
// full, and the rest does not count. D is 4 times the events of the limit that wrote the state.
//
// A is the newest instant, and never ahead of the charge that wrote it. If the clock is more than
// a second behind A, A becomes the start of the current window. B and C stay.
func init() {
	register(&Algorithm{
		Name:      "sliding_window",
		lua:       slidingWindowLua,
		numbers:   func(l *Limit) []int64 { return []int64{l.Events, l.Window, l.unit} },
		bound:     slidingWindowBound,
		keepUntil: slidingWindowKeepUntil,
		decide:    slidingWindowDecide,
		commit:    slidingWindowCommit,
		balance:   3,
		outlook:   slidingWindowOutlook,
		refund:    slidingWindowRefund,
	})
}

// slidingWindowBound chooses the unit. It returns an error if no unit makes the numbers small
// enough, or if two windows are too long.
func slidingWindowBound(l *Limit) error {
	if l.Events > exact/8 || 2*l.Window > maxSpan {
		return errBound
	}
	l.unit = slidingWindowUnit(l)
	return nil
}

// slidingWindowUnit returns the least power of ten, in µs, in which 4·events·window is exact. The
// time elapsed of a window is rounded down to this unit, so events count too long, never too short.
func slidingWindowUnit(l *Limit) Micros {
	unit := Micros(1)
	for ceilDiv(l.Window, unit) > exact/4/l.Events {
		unit *= 10
	}
	return unit
}

func slidingWindowKeepUntil(l *Limit, s *State) Micros {
	window := l.Window
	if s.C > 0 {
		return s.A + 2*window
	} else if s.B > 0 {
		return s.A + window
	}
	return s.A
}

// slidingWindowFree returns how many events fit now, below 0 if more are used.
func slidingWindowFree(l *Limit, now, start Micros, prev, cur int64) int64 {
	events, window, unit := l.Events, l.Window, l.unit
	more := max(cur-events, 0)
	prev, cur = min(prev, events), min(cur, events)
	width, elapsed := ceilDiv(window, unit), floorDiv(max(now, start)-start, unit)
	return floorDiv(events*width-prev*(width-elapsed)-cur*width, width) - more
}

// slidingWindowFitsAt returns the first instant at which cost fits. This is in the current window,
// when prev counts little enough, or in the next window, where cur becomes prev.
func slidingWindowFitsAt(l *Limit, start Micros, prev, cur, cost int64) Micros {
	events, window, unit := l.Events, l.Window, l.unit
	prev, cur = min(prev, events), min(cur, events)
	if cur+cost > events {
		start, prev, cur = start+window, cur, 0
	}
	width := ceilDiv(window, unit)
	elapsed := width - floorDiv((events-cur-cost)*width, prev)
	return start + min(elapsed*unit, window)
}

// slidingWindowRoll returns the start of the current window, the events of the window before and
// those of the current one. The window may begin up to a second ahead of now. dirty is 1 if the
// clock has stepped back and the state must be saved.
func slidingWindowRoll(l *Limit, s *State, now Micros) (start Micros, prev, cur, dirty int64) {
	window := l.Window
	start, prev, cur = s.A, s.B, s.C
	if start-now > stepBack {
		start, dirty = now-now%window, 1
	}
	if now-start >= 2*window {
		start, prev, cur = now-now%window, 0, 0
	} else if now-start >= window {
		start, prev, cur = start+window, cur, 0
	}
	return start, prev, cur, dirty
}

func slidingWindowDecide(l *Limit, s *State, now Micros, cost int64) room {
	events := l.Events
	start, prev, cur, dirty := slidingWindowRoll(l, s, now)
	fits := slidingWindowFree(l, now, start, prev, cur)
	retry := int64(0)
	if cost > events {
		retry = Forever
	} else if cost > max(fits, 0) {
		retry = slidingWindowFitsAt(l, start, prev, cur, cost) - now
	}
	return room{fits: fits, retry: retry, a: start, b: prev, c: cur, d: dirty}
}

func slidingWindowCommit(l *Limit, s *State, now Micros, charge int64, o outcome, r room) Balance {
	events := l.Events
	start, prev, cur, dirty := r.a, r.b, r.c, r.d
	most := int64(exact / 2)
	if o == denied {
		most = 2 * events
	}
	charge = max(min(charge, most-cur), 0)
	cur += charge
	if charge > 0 || dirty == 1 && o != peek {
		s.A, s.B, s.C, s.D = start, prev, cur, 4*l.Events
	}
	return Balance{Charged: charge, A: start, B: prev, C: cur}
}

func slidingWindowOutlook(l *Limit, b Balance, now Micros) (remaining int64, more, reset Micros) {
	start, prev, cur := b.A, b.B, b.C
	remaining = max(slidingWindowFree(l, now, start, prev, cur), 0)
	if remaining < l.Events {
		more = slidingWindowFitsAt(l, start, prev, cur, remaining+1) - now
	}
	if cur > 0 || prev > 0 {
		reset = slidingWindowKeepUntil(l, &State{A: start, B: prev, C: cur}) - now
	}
	return remaining, more, reset
}

func slidingWindowRefund(l *Limit, s *State, now Micros, r Receipt, n int64) {
	receiptStart := r.A
	window := l.Window
	start, prev, cur, _ := slidingWindowRoll(l, s, now)
	if receiptStart == start && cur > 0 {
		cur = max(cur-n, 0)
	} else if receiptStart == start-window && prev > 0 {
		prev = max(prev-n, 0)
	} else {
		return
	}
	s.A, s.B, s.C, s.D = start, prev, cur, 4*l.Events
}
