package algorithms

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
)

//go:embed fixed_window.lua
var fixedWindowLua string

// fixed_window: at most events per window. A window starts with the first event
// charged (align first) or at a multiple of window since the Unix epoch, UTC
// (align clock). Two windows can meet, so up to 2·events pass in a span as long
// as a window.
//
// State: A is the start of the window, B how many events were charged in it. No
// events charged is the same as no window. More than events are requests that
// were charged in advance: each later window takes events of them.
//
// A is the newest instant, and never ahead of the charge that wrote it, because charges
// in advance are in B. If the clock is more than a second behind A, a window begins now,
// or with align clock at the last multiple of the window, and B stays.
func init() {
	register(&Algorithm{
		Name: "fixed_window", Options: []*Option{align},
		lua: fixedWindowLua,
		numbers: func(l *Limit) []int64 {
			clock := int64(0)
			if l.Align == "clock" {
				clock = 1
			}
			return []int64{l.Events, l.Window, clock}
		},
		bound:        func(*Limit) error { return nil },
		longestDelay: windowsDelay,
		queued: func(l *Limit, start Micros, count int64) (Micros, int64) {
			return start + count/l.Events*l.Window, count % l.Events
		},
		untouched: fixedWindowUntouched,
		decide:    fixedWindowDecide,
		commit:    fixedWindowCommit,
		refund:    fixedWindowRefund,
	})
}

var alignments = []string{"first", "clock"}

var align = &Option{
	Name: "align", Example: "clock", phrase: " aligned to the %s", usual: "first",
	value: func(q *Quota) *int64 {
		n := int64(slices.Index(alignments, q.Align))
		if q.Align == "" {
			return nil
		}
		return &n
	},
	write: func(n int64) string { return alignments[n] },
	check: func(q *Quota) error {
		if !slices.Contains(alignments, q.Align) {
			return fmt.Errorf("align must be first or clock, not %q", q.Align)
		}
		return nil
	},
	fingerprint: func(q *Quota) string { return strings.TrimPrefix(q.Align, "first") },
}

func fixedWindowUntouched(l *Limit, s *State) Micros { return s.A + ceilDiv(s.B, l.Events)*l.Window }

func fixedWindowDecide(l *Limit, s *State, now Micros, cost int64) verdict {
	events, window := l.Events, l.Window
	start, count, dirty := fixedWindowRoll(l, s.A, s.B, now)
	fits := max(events-count, 0)
	retry := int64(0)
	if cost > events {
		retry = Forever
	} else if cost > fits {
		retry = start + floorDiv(count+cost-1, events)*window - now
	}
	return verdict{fits: fits, retry: retry, a: start, b: count, d: dirty}
}

func fixedWindowCommit(l *Limit, s *State, now Micros, charge int64, o outcome, v verdict) (charged, a, b, remaining int64, more, reset Micros) {
	events, window, clock := l.Events, l.Window, l.Align == "clock"
	start, count, dirty := v.a, v.b, v.d
	if o == refused && count+charge > events {
		if clock || count > events {
			charge = max(events-count, 0)
		} else {
			charge = min(charge, events)
			start, count = max(now, start), events-charge
		}
	}
	count += charge
	remaining = max(events-count, 0)
	if count > 0 {
		more = start + max(floorDiv(count, events), 1)*window - now
		reset = start + ceilDiv(count, events)*window - now
	}
	if charge > 0 || dirty == 1 && o != peek {
		s.A, s.B = start, count
	}
	return charge, start, count, remaining, more, reset
}

func fixedWindowRefund(l *Limit, s *State, now Micros, a, b, n int64) {
	events := l.Events
	start, count, _ := fixedWindowRoll(l, s.A, s.B, now)
	then, left, _ := fixedWindowRoll(l, a, b, now)
	if count > events && count > left {
		return // others wait behind it
	}
	if n = min(n, left); n > 0 && count > 0 && start == then {
		s.A, s.B = start, max(count-n, 0)
	}
}

// fixedWindowRoll returns the start of the current window, or of one that begins within a
// second, and the events charged in it and in later ones; start and count are of an
// earlier window. dirty is 1 if the clock has stepped back and the state must be saved.
func fixedWindowRoll(l *Limit, start Micros, count int64, now Micros) (current Micros, left, dirty int64) {
	events, window, clock := l.Events, l.Window, l.Align == "clock"
	fresh := now
	if clock {
		fresh = now - now%window
	}
	if start-now > stepBack {
		start, dirty = fresh, 1
	}
	if now-start >= window {
		passed := min(floorDiv(now-start, window), ceilDiv(count, events))
		start, count = start+passed*window, max(count-passed*events, 0)
	}
	if count == 0 {
		start = fresh
	}
	return start, count, dirty
}
