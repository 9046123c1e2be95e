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
// State: A is the start of the window, in µs. B is the number of events charged in it. It can be above events, because a
// larger limit or corrections have charged more. Then the window is full. C is the number of events charged in advance: each
// later window takes events of them. D is 4 times the events of the limit that wrote the state. No events are the same as no state.
//
// A is the newest instant, and never ahead of the charge that wrote it, because charges in
// advance are in C. If the clock is more than a second behind A, a window begins now, and B and C stay.
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

// fixedWindowQueue returns the number of events charged in advance, at most those of all windows that a request can wait for.
// A larger limit may have charged more, and the windows of a smaller one would then end beyond [Forever].
func fixedWindowQueue(l *Limit, queued int64) int64 {
	if windows := maxSpan/2/l.Window + 1; ceilDiv(queued, l.Events) > windows {
		return windows * l.Events
	}
	return queued
}

func fixedWindowKeepUntil(l *Limit, s *State) Micros {
	if s.B+s.C == 0 {
		return s.A
	}
	return s.A + (1+ceilDiv(fixedWindowQueue(l, s.C), l.Events))*l.Window
}

// fixedWindowRoll returns the start of the current window, the number of events charged in it, and the number of those
// charged in advance. start, count and queued are of an earlier window. The window may begin up to a second
// ahead of now. dirty is 1 if the clock has stepped back and the state must be saved.
func fixedWindowRoll(l *Limit, now, start Micros, count, queued int64) (currentStart Micros, countNow, queuedNow, dirty int64) {
	events, window, alignClock := l.Events, l.Window, l.Align == "clock"
	newStart := now
	queued = fixedWindowQueue(l, queued)
	if alignClock {
		newStart = now - now%window
	}
	if start-now > stepBack {
		start, dirty = newStart, 1
	}
	if now-start >= window {
		windows := min(floorDiv(now-start, window), 1+ceilDiv(queued, events))
		count = min(max(queued-(windows-1)*events, 0), events)
		start, queued = start+windows*window, max(queued-windows*events, 0)
	}
	if count == 0 {
		start = newStart
	}
	return start, count, queued, dirty
}

// fixedWindowUsed returns the events that count in the current window and in later ones. While there are some in later ones,
// the current window counts as full.
func fixedWindowUsed(l *Limit, count, queued int64) int64 {
	if queued > 0 {
		return l.Events + queued
	}
	return min(count, l.Events)
}

func fixedWindowDecide(l *Limit, s *State, now Micros, cost int64) room {
	events, window := l.Events, l.Window
	start, count, queued, dirty := fixedWindowRoll(l, now, s.A, s.B, s.C)
	used := fixedWindowUsed(l, count, queued)
	fits := events - max(used, count+queued)
	retry := int64(0)
	if cost > events {
		retry = Forever
	} else if cost > max(fits, 0) {
		retry = floorDiv(used+cost-1, events)*window - (now - start)
	}
	return room{fits: fits, retry: retry, a: start, b: count, c: queued, d: dirty}
}

func fixedWindowCommit(l *Limit, s *State, now Micros, charge int64, o outcome, r room) Balance {
	events, alignClock := l.Events, l.Align == "clock"
	start, count, queued, dirty := r.a, r.b, r.c, r.d
	used := fixedWindowUsed(l, count, queued)
	if o == denied && used+charge > events {
		if alignClock || used > events {
			charge = max(events-used, 0)
		} else {
			charge = min(charge, events)
			start, count, queued, used = max(now, start), max(count, events)-charge, 0, events-charge
		}
	}
	charge = max(min(charge, exact/2-count-queued), 0)
	queue := int64(0)
	if o != settled && used+charge > events {
		queue = min(used+charge-events, charge)
	}
	count, queued = count+charge-queue, queued+queue
	if charge > 0 || dirty == 1 && o != peek {
		s.A, s.B, s.C, s.D = start, count, queued, 4*events
	}
	return Balance{Charged: charge, A: start, B: fixedWindowUsed(l, count, queued)}
}

func fixedWindowOutlook(l *Limit, b Balance, now Micros) (remaining int64, more, reset Micros) {
	events, window := l.Events, l.Window
	start, used := b.A, b.B
	if used > 0 {
		more = start + max(floorDiv(used, events), 1)*window - now
		reset = start + ceilDiv(used, events)*window - now
	}
	return max(events-used, 0), more, reset
}

func fixedWindowRefund(l *Limit, s *State, now Micros, r Receipt, n int64) {
	receiptStart, receiptUsed := r.A, r.B
	events := l.Events
	start, count, queued, _ := fixedWindowRoll(l, now, s.A, s.B, s.C)
	rolledStart, refundable, later, _ := fixedWindowRoll(l, now, receiptStart, min(receiptUsed, events), max(receiptUsed-events, 0))
	refundable += later
	used := fixedWindowUsed(l, count, queued)
	if queued > 0 && used > refundable {
		return // later requests wait behind this charge
	}
	n = min(n, refundable)
	if n > 0 && used > 0 && start == rolledStart {
		ahead := min(n, queued)
		s.A, s.B, s.C, s.D = start, max(count-n+ahead, 0), queued-ahead, 4*events
	}
}
