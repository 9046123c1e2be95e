package algorithms

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
)

//go:embed fixed_window.lua
var fixedWindowLua string

// fixed_window is a counter that starts from zero with each window. It promises at most events per
// window. With align first, a window begins with the first event charged. With align clock, it
// begins at a multiple of window since the Unix epoch, UTC. A span as long as a window can
// overlap two windows, so up to 2·events pass in it.
//
// For example, with 10 events per minute and align first, 10 events at 12:00:20 fill the window
// that ends at 12:01:20. A request at 12:00:50 is denied, with a retry after 30 seconds.
//
// State: A is the start of the window, in µs. B is the number of events charged in it. No events
// are the same as no state. Charges in advance make B more than events: then each later window
// takes events of them.
//
// A is the newest instant, and never ahead of the charge that wrote it, because charges in
// advance are in B. If the clock is more than a second behind A, a window begins now, and B stays.
// With align clock the window that now is in becomes the current one.
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
		bound:     func(*Limit) error { return nil },
		maxDelay:  windowsDelay,
		keepUntil: fixedWindowKeepUntil,
		decide:    fixedWindowDecide,
		commit:    fixedWindowCommit,
		balance:   2,
		outlook:   fixedWindowOutlook,
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

func fixedWindowKeepUntil(l *Limit, s *State) Micros { return s.A + ceilDiv(s.B, l.Events)*l.Window }

// fixedWindowRoll returns the start of the current window, and the number of events charged in it
// and in later windows. start and count belong to an earlier window. The window may begin up to a second
// ahead of now. dirty is 1 if the clock has stepped back and the state must be saved.
func fixedWindowRoll(l *Limit, start Micros, count int64, now Micros) (currentStart Micros, countNow, dirty int64) {
	events, window, alignClock := l.Events, l.Window, l.Align == "clock"
	newStart := now
	if alignClock {
		newStart = now - now%window
	}
	if start-now > stepBack {
		start, dirty = newStart, 1
	}
	if now-start >= window {
		windows := min(floorDiv(now-start, window), ceilDiv(count, events))
		start, count = start+windows*window, max(count-windows*events, 0)
	}
	if count == 0 {
		start = newStart
	}
	return start, count, dirty
}

func fixedWindowDecide(l *Limit, s *State, now Micros, cost int64) room {
	events, window := l.Events, l.Window
	start, count, dirty := fixedWindowRoll(l, s.A, s.B, now)
	fits := max(events-count, 0)
	retry := int64(0)
	if cost > events {
		retry = Forever
	} else if cost > fits {
		retry = start + floorDiv(count+cost-1, events)*window - now
	}
	return room{fits: fits, retry: retry, a: start, b: count, d: dirty}
}

func fixedWindowCommit(l *Limit, s *State, now Micros, charge int64, o outcome, r room) Balance {
	events, alignClock := l.Events, l.Align == "clock"
	start, count, dirty := r.a, r.b, r.d
	if o == denied && count+charge > events {
		if alignClock || count > events {
			charge = max(events-count, 0)
		} else {
			charge = min(charge, events)
			start, count = max(now, start), events-charge
		}
	}
	count += charge
	if charge > 0 || dirty == 1 && o != peek {
		s.A, s.B = start, count
	}
	return Balance{Charged: charge, A: start, B: count}
}

func fixedWindowOutlook(l *Limit, b Balance, now Micros) (remaining int64, more, reset Micros) {
	events, window := l.Events, l.Window
	start, count := b.A, b.B
	if count > 0 {
		more = start + max(floorDiv(count, events), 1)*window - now
		reset = start + ceilDiv(count, events)*window - now
	}
	return max(events-count, 0), more, reset
}

func fixedWindowRefund(l *Limit, s *State, now Micros, r Receipt, n int64) {
	receiptStart, receiptCount := r.A, r.B
	events := l.Events
	start, count, _ := fixedWindowRoll(l, s.A, s.B, now)
	rolledStart, refundable, _ := fixedWindowRoll(l, receiptStart, receiptCount, now)
	if count > events && count > refundable {
		return // later requests wait behind this charge
	}
	n = min(n, refundable)
	if n > 0 && count > 0 && start == rolledStart {
		count = max(count-n, 0)
		s.A, s.B = start, count
	}
}
