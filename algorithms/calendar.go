package algorithms

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

//go:embed calendar.lua
var calendarLua string

// calendar is a counter that starts from zero with each day, week, month or year of a time zone. It
// promises at most events per period. A span as long as a period can overlap two of them, so up to
// 2·events pass in it.
//
// For example, 10 events per month in UTC are used up on 12 March. A request on that day is denied until
// 1 April, 00:00.
//
// State: A is the end of the period, in µs. B is the number of events charged in it. C is the highest number of used
// events that was claimed in the period: see [Limit.Crossed]. Reserved events are charged, and not used.
//
// While now is before A, A holds, even if another version of the time zone database says otherwise. If the
// clock steps back into the period before, then by up to a second A holds. Otherwise A becomes the end of the
// period that now is in, and B stays. The clock has stepped back if A is nearer to the end of the next period
// than to the end of the present one.
//
// Mode Force and corrections charge the whole cost. So B can exceed the events of the limit. It counts for a limit with
// other events, too.
//
// The receipt holds A, and C as it was before the request.
func init() {
	register(&Algorithm{
		Name: "calendar", Calendar: true, Options: []*Option{startDay},
		lua:       calendarLua,
		numbers:   func(l *Limit) []int64 { return []int64{l.Events} },
		bound:     func(*Limit) error { return nil },
		keepUntil: func(_ *Limit, s *State) Micros { return s.A },
		decide:    calendarDecide,
		commit:    calendarCommit,
		balance:   4,
		outlook:   calendarOutlook,
		refund:    calendarRefund,
	})
}

// Days of a week as [Quota].StartDay. The days of a month are 1 to 28.
const (
	Monday int64 = 101 + iota
	Tuesday
	Wednesday
	Thursday
	Friday
	Saturday
	Sunday
)

var weekdays = []string{"monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"}

// ParseStartDay returns the day of a week with that name, or the day of a month with that number.
func ParseStartDay(text string) (int64, error) {
	if i := slices.Index(weekdays, strings.ToLower(text)); i >= 0 {
		return Monday + int64(i), nil
	}
	day, err := strconv.ParseInt(text, 10, 64)
	if err != nil || day < 1 || day > 31 {
		return 0, fmt.Errorf("start_day must be from 1 to 28 for a month, or monday to sunday for a week, not %q", text)
	}
	return day, nil
}

func writeStartDay(day int64) string {
	if day >= Monday && day <= Sunday {
		return weekdays[day-Monday]
	}
	return strconv.FormatInt(day, 10)
}

// startDay moves the beginning of weeks and months.
var startDay = &Option{
	Name: "start_day", Example: "15", phrase: " starting on %s",
	value: func(q *Quota) *int64 { return unlessZero(&q.StartDay) },
	write: writeStartDay,
	check: func(q *Quota) error {
		switch {
		case q.Period == "month" && (q.StartDay < 1 || q.StartDay > 28):
			return fmt.Errorf("start_day of a month must be from 1 to 28, the days of every month, not %s", writeStartDay(q.StartDay))
		case q.Period == "week" && (q.StartDay < Monday || q.StartDay > Sunday):
			return fmt.Errorf("start_day of a week must be monday to sunday, not %s", writeStartDay(q.StartDay))
		case q.Period != "month" && q.Period != "week":
			return fmt.Errorf("a %s has no start_day: it belongs to week and month", q.Period)
		}
		return nil
	},
	normalize: func(q *Quota) {
		if q.StartDay == 1 || q.StartDay == Monday {
			q.StartDay = 0
		}
	},
}

const day Micros = 24 * 60 * 60 * 1_000_000

// periods are the periods of calendars, and the longest time that each takes.
var periods = []struct {
	name    string
	longest Micros
}{{"day", 25 * day / 24}, {"week", 7*day + day/24}, {"month", 31*day + day/24}, {"year", 366 * day}}

// prepareCalendar checks the period of a calendar, and returns its time zone. The window becomes the longest time that a
// period takes.
func prepareCalendar(q *Quota) (*time.Location, error) {
	var longest Micros
	for _, p := range periods {
		if p.name == q.Period {
			longest = p.longest
		}
	}
	switch {
	case longest == 0:
		return nil, fmt.Errorf("period must be day, week, month or year, not %q: write for example calendar %d month", q.Period, q.Events)
	case q.Window != 0 && q.Window != longest:
		return nil, fmt.Errorf("calendar has a period instead of a window: leave %s out", describeDuration(q.Window))
	case q.TimeZone == "Local":
		return nil, fmt.Errorf("time zone Local differs from computer to computer: write a name, such as Europe/Berlin")
	}
	q.Window = longest
	zone, err := time.LoadLocation(q.TimeZone)
	if err != nil {
		return nil, fmt.Errorf("unknown time zone %q: write its name in the time zone database, such as Europe/Berlin", q.TimeZone)
	}
	if q.TimeZone == "UTC" {
		q.TimeZone = ""
	}
	return zone, nil
}

func (q *Quota) describePeriod() string {
	if q.TimeZone == "" || q.TimeZone == "UTC" {
		return q.Period
	}
	return q.Period + " " + q.TimeZone
}

func calendarRoll(l *Limit, now, end Micros, count, highest int64) (currentEnd Micros, countNow, highestNow, dirty int64) {
	endNow, endNext := l.calendar.ends(now)
	if end-endNow > endNext-end && endNow-now > stepBack {
		end, dirty = endNow, 1
	}
	if now >= end {
		end, count, highest = endNow, 0, 0
	}
	return end, count, highest, dirty
}

func calendarDecide(l *Limit, s *State, now Micros, cost int64) room {
	events := l.Events
	end, count, highest, dirty := calendarRoll(l, now, s.A, s.B, s.C)
	fits := events - count
	retry := int64(0)
	if cost > events {
		retry = Forever
	} else if cost > max(fits, 0) {
		retry = end - now
	}
	return room{fits: fits, retry: retry, a: end, b: count, c: highest, d: dirty}
}

func calendarCommit(l *Limit, s *State, now Micros, charge int64, o outcome, r room) Balance {
	events := l.Events
	end, count, before, dirty := r.a, r.b, r.c, r.d
	if o == denied {
		charge = min(charge, max(events-count, 0))
	}
	charge = min(charge, exact/2-count)
	count += charge
	used := max(count-r.reserved, 0)
	highest := before
	if o == settled {
		highest = max(highest, used)
	}
	if o != peek && (charge > 0 || dirty == 1 || highest > before) {
		s.A, s.B, s.C = end, count, highest
	}
	return Balance{Charged: charge, A: end, B: before, C: count, D: used}
}

func calendarOutlook(l *Limit, b Balance, now Micros) (remaining int64, more, reset Micros) {
	end, count := b.A, b.C
	if count > 0 {
		more, reset = end-now, end-now
	}
	return max(l.Events-count, 0), more, reset
}

func calendarRefund(l *Limit, s *State, now Micros, r Receipt, n int64) {
	receiptEnd := r.A
	end, count, highest, _ := calendarRoll(l, now, s.A, s.B, s.C)
	if count > 0 && end == receiptEnd {
		count = max(count-n, 0)
		s.A, s.B, s.C = end, count, highest
	}
}

// Crossed reports whether the used events of a calendar's period have reached a number, 1 to [Quota].Events, that no
// request had claimed before. Requests in mode [Settle] claim what is used, so it is true for only one of them in a
// period. Other requests claim nothing, because their charges may be given back at once. It is false for a budget that
// keys share.
//
// For example, 79 of 100 events are used. The next request reaches 80, and Crossed is true for it and for those that
// follow. Each of them then sends a request in mode Settle, and Crossed is true for the first of these.
func (l *Limit) Crossed(d Decision, events int64) bool {
	r := d.Receipt
	return l.calendar != nil && r.A > 0 && !r.Overflow && r.B < events && d.Used >= events
}
