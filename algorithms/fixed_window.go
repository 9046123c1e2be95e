package algorithms

import _ "embed"

//go:embed fixed_window.lua
var fixedWindowLua string

// fixed_window: at most events per window. A window starts with the first event
// charged (align first) or at a multiple of window since the Unix epoch, UTC
// (align clock). Two windows can meet, so up to 2·events pass in a span as long
// as a window.
//
// State: A is the start of the window, B how many events were charged in it. No
// events charged is the same as no window.
func init() {
	register(&Algorithm{
		Name: "fixed_window", Options: []string{"align"},
		lua: fixedWindowLua,
		args: func(l *Limit) []int64 {
			clock := int64(0)
			if l.Align == "clock" {
				clock = 1
			}
			return []int64{l.Events, l.Window, clock}
		},
		bound:  func(*Limit) error { return nil },
		decide: fixedWindowDecide,
		commit: fixedWindowCommit,
	})
}

func fixedWindowDecide(l *Limit, s *State, now Micros, cost int64) verdict {
	events, window, clock := l.Events, l.Window, l.Align == "clock"
	start, count := s.A, s.B
	if count == 0 || now-start >= window {
		start, count = now, 0
		if clock {
			start = now - now%window
		}
	}
	fits := max(events-count, 0)
	retry := int64(0)
	if cost > events {
		retry = Forever
	} else if cost > fits {
		retry = start + window - now
	}
	return verdict{fits: fits, retry: retry, a: start, b: count}
}

func fixedWindowCommit(l *Limit, s *State, now Micros, charge int64, v verdict) (charged, remaining int64, more, reset Micros) {
	events, window, clock := l.Events, l.Window, l.Align == "clock"
	start, count := v.a, v.b
	if count+charge > events { // a refused request that is charged all the same
		if clock {
			charge = events - count
		} else {
			charge = min(charge, events)
			start, count = now, events-charge
		}
	}
	count += charge
	remaining = max(events-count, 0)
	if count > 0 {
		more = start + window - now
		reset = start + window - now
	}
	if charge > 0 {
		s.A, s.B = start, count
	}
	return charge, remaining, more, reset
}
