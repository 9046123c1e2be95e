package algorithms

import _ "embed"

//go:embed sliding_window.lua
var slidingWindowLua string

// sliding_window: two counters, of the current window and of the one before, on
// windows that begin at multiples of window since the Unix epoch, UTC. What the
// window before held counts less the further the current one has gone: e into a
// window of W, a request passes while prev·(W−e) + (cur+cost)·W ≤ events·W. At most
// 2·events events pass in any span as long as a window.
//
// State: A is the start of the current window, B and C are prev and cur. Both 0
// is the same as no state.
//
// A is the newest instant, and never ahead of the charge that wrote it. If the clock is
// more than a second behind A, A becomes the start of the window of now, and B and C
// stay.
func init() {
	register(&Algorithm{
		Name:      "sliding_window",
		lua:       slidingWindowLua,
		numbers:   func(l *Limit) []int64 { return []int64{l.Events, l.Window, l.unit} },
		bound:     slidingWindowBound,
		untouched: slidingWindowUntouched,
		decide:    slidingWindowDecide,
		commit:    slidingWindowCommit,
		refund:    slidingWindowRefund,
	})
}

// slidingWindowBound chooses the unit. It returns an error if no unit makes the numbers small
// enough, or if two windows are too long.
func slidingWindowBound(l *Limit) error {
	if l.Events > exact/8 || 2*l.Window > longest {
		return errBound
	}
	l.unit = slidingWindowUnit(l)
	return nil
}

// slidingWindowUnit is the least power of ten, in µs, in which 4·events·window is
// exact. The way into a window is rounded down to it, and so is what was let go.
func slidingWindowUnit(l *Limit) Micros {
	unit := Micros(1)
	for ceilDiv(l.Window, unit) > exact/4/l.Events {
		unit *= 10
	}
	return unit
}

func slidingWindowUntouched(l *Limit, s *State) Micros {
	window := l.Window
	if s.C > 0 {
		return s.A + 2*window
	} else if s.B > 0 {
		return s.A + window
	}
	return s.A
}

func slidingWindowDecide(l *Limit, s *State, now Micros, cost int64) verdict {
	events := l.Events
	start, prev, cur, dirty := slidingWindowRoll(l, s, now)
	fits := slidingWindowFree(l, now, start, prev, cur)
	retry := int64(0)
	if cost > events {
		retry = Forever
	} else if cost > fits {
		retry = slidingWindowRoom(l, start, prev, cur, cost) - now
	}
	return verdict{fits: fits, retry: retry, a: start, b: prev, c: cur, d: dirty}
}

func slidingWindowCommit(l *Limit, s *State, now Micros, charge int64, o outcome, v verdict) (charged, a, b, remaining int64, more, reset Micros) {
	events, window := l.Events, l.Window
	start, prev, cur, dirty := v.a, v.b, v.c, v.d
	charge = max(min(charge, 2*events-cur), 0)
	cur += charge
	remaining = slidingWindowFree(l, now, start, prev, cur)
	if remaining < events {
		more = slidingWindowRoom(l, start, prev, cur, remaining+1) - now
	}
	if cur > 0 {
		reset = start + 2*window - now
	} else if prev > 0 {
		reset = start + window - now
	}
	if charge > 0 || dirty == 1 && o != peek {
		s.A, s.B, s.C = start, prev, cur
	}
	return charge, start, 0, remaining, more, reset
}

func slidingWindowRefund(l *Limit, s *State, now Micros, at, _, n int64) {
	window := l.Window
	start, prev, cur, _ := slidingWindowRoll(l, s, now)
	if at == start && cur > 0 {
		s.A, s.B, s.C = start, prev, max(cur-n, 0)
	} else if at == start-window && prev > 0 {
		s.A, s.B, s.C = start, max(prev-n, 0), cur
	}
}

// slidingWindowRoll returns the start of the current window, or of one that begins within
// a second, and the events of this window and the one before. dirty is 1 if the clock has
// stepped back and the state must be saved.
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

// slidingWindowFree is how many events fit now.
func slidingWindowFree(l *Limit, now, start Micros, prev, cur int64) int64 {
	events, window, unit := l.Events, l.Window, l.unit
	width, into := ceilDiv(window, unit), floorDiv(max(now, start)-start, unit)
	return max(floorDiv(events*width-prev*(width-into)-cur*width, width), 0)
}

// slidingWindowRoom is the first instant with room for cost: in this window once
// prev weighs little enough, or in the next, where cur is what came before.
func slidingWindowRoom(l *Limit, start Micros, prev, cur, cost int64) Micros {
	events, window, unit := l.Events, l.Window, l.unit
	if cur+cost > events {
		start, prev, cur = start+window, cur, 0
	}
	width := ceilDiv(window, unit)
	into := width - floorDiv((events-cur-cost)*width, prev)
	return start + min(into*unit, window)
}
