package algorithms

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
)

// zonesOfTests have summer time in both hemispheres, days that begin at 01:00, a day that does not exist, and odd
// offsets.
var zonesOfTests = []string{
	"", "Europe/Berlin", "America/New_York", "America/Sao_Paulo", "Africa/Cairo", "Pacific/Apia", "Asia/Kathmandu", "Australia/Lord_Howe",
	"America/St_Johns", "Asia/Tehran", "Africa/Monrovia", "America/Juneau",
}

// A period begins and ends where the calendar on the wall says.
func TestCalendarBoundaries(t *testing.T) {
	for _, test := range []struct {
		name                         string
		period, zone                 string
		startDay                     int64
		in, start, end, endOfTheNext string // in UTC
	}{
		{"a day", "day", "", 0, "2026-03-12T08:00:00Z", "2026-03-12T00:00:00Z", "2026-03-13T00:00:00Z", "2026-03-14T00:00:00Z"},
		{"a day of 23 hours", "day", "Europe/Berlin", 0, "2026-03-29T00:30:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z", "2026-03-30T22:00:00Z"},
		{"a day of 25 hours", "day", "Europe/Berlin", 0, "2026-10-25T22:59:59Z", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z", "2026-10-26T23:00:00Z"},
		{"it begins at 01:00", "day", "Africa/Cairo", 0, "2026-04-24T12:00:00Z", "2026-04-23T22:00:00Z", "2026-04-24T21:00:00Z", "2026-04-25T21:00:00Z"},
		{"it begins at 01:00, too", "day", "America/Sao_Paulo", 0, "2018-11-04T05:00:00Z", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z", "2018-11-06T02:00:00Z"},
		{"the day before a day that does not exist", "day", "Pacific/Apia", 0, "2011-12-30T09:00:00Z", "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"},
		{"the day after it", "day", "Pacific/Apia", 0, "2011-12-30T10:00:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z", "2012-01-01T10:00:00Z"},
		{"a week", "week", "", 0, "2026-11-22T23:59:59Z", "2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"},
		{"a week from Sunday", "week", "", Sunday, "2026-11-22T00:00:00Z", "2026-11-22T00:00:00Z", "2026-11-29T00:00:00Z", "2026-12-06T00:00:00Z"},
		{"a week from Saturday", "week", "Asia/Tehran", Saturday, "2026-11-20T12:00:00Z", "2026-11-13T20:30:00Z", "2026-11-20T20:30:00Z", "2026-11-27T20:30:00Z"},
		{"a month", "month", "Europe/Berlin", 0, "2026-10-31T23:30:00Z", "2026-10-31T23:00:00Z", "2026-11-30T23:00:00Z", "2026-12-31T23:00:00Z"},
		{"a month from the 15th", "month", "", 15, "2026-01-03T00:00:00Z", "2025-12-15T00:00:00Z", "2026-01-15T00:00:00Z", "2026-02-15T00:00:00Z"},
		{"February", "month", "", 28, "2027-02-28T00:00:00Z", "2027-02-28T00:00:00Z", "2027-03-28T00:00:00Z", "2027-04-28T00:00:00Z"},
		{"a leap day", "day", "", 0, "2028-02-29T23:00:00Z", "2028-02-29T00:00:00Z", "2028-03-01T00:00:00Z", "2028-03-02T00:00:00Z"},
		{"31 December of a leap year", "day", "Africa/Cairo", 0, "2048-12-31T12:00:00Z", "2048-12-30T22:00:00Z", "2048-12-31T22:00:00Z", "2049-01-01T22:00:00Z"},
		{"a year", "year", "Asia/Kathmandu", 0, "2026-12-31T18:14:59Z", "2025-12-31T18:15:00Z", "2026-12-31T18:15:00Z", "2027-12-31T18:15:00Z"},
		{"before standard time", "day", "Africa/Monrovia", 0, "1971-06-01T12:00:00Z", "1971-06-01T00:44:30Z", "1971-06-02T00:44:30Z", "1971-06-03T00:44:30Z"},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := mustLimit(t, Quota{Algorithm: "calendar", Events: 1, Period: test.period, TimeZone: test.zone, StartDay: test.startDay})
			micros := func(text string) Micros {
				at, err := time.Parse(time.RFC3339, text)
				errtest.None(t, err)
				return at.UnixMicro()
			}
			wantStart, wantEnd, wantNext := micros(test.start), micros(test.end), micros(test.endOfTheNext)
			for _, now := range []Micros{micros(test.in), wantStart, wantEnd - 1} {
				if start, end, next := l.Periods(now); start != wantStart || end != wantEnd || next != wantNext {
					t.Errorf("at %v it is %v to %v and then %v", time.UnixMicro(now).UTC(),
						time.UnixMicro(start).UTC(), time.UnixMicro(end).UTC(), time.UnixMicro(next).UTC())
				}
			}
			if start, _, _ := l.Periods(wantEnd); start != wantEnd {
				t.Errorf("the next one begins %d µs later", start-wantEnd)
			}
			if start, end, _ := l.Periods(wantStart - 1); start >= wantStart || end != wantStart {
				t.Errorf("the one before ends %d µs later", end-wantStart)
			}
		})
	}
}

// Each instant is in one period, and the date on the wall changes at each boundary.
func TestCalendarPeriodsFollowEachOther(t *testing.T) {
	calendar, _ := Lookup("calendar")
	for seed := range seedtest.Cases(t, uint64(1000)) {
		r := rand.New(rand.NewPCG(seed, 29))
		l := mustLimit(t, randomQuota(r, calendar))
		now := r.Int64N(4_000_000_000 * second) // until 2096
		start, end, next := l.Periods(now)
		if start > now || now >= end || end >= next {
			t.Fatalf("seed %d: %v at %d is from %d to %d, and then to %d", seed, l, now, start, end, next)
		}
		for _, at := range []Micros{start, start + (end-start)/2, end - 1} {
			if s, e, n := l.Periods(at); s != start || e != end || n != next {
				t.Fatalf("seed %d: %v at %d is from %d to %d, and then to %d, and at %d %d, %d and %d", seed, l, now, start, end, next, at, s, e, n)
			}
		}
		if s, e, _ := l.Periods(end); s != end || e != next {
			t.Fatalf("seed %d: %v is followed by %d to %d, want %d to %d", seed, l, s, e, end, next)
		}
		if longest := l.Window; end-start > longest {
			t.Fatalf("seed %d: %v takes %d, longer than %d", seed, l, end-start, longest)
		}
		date := func(at Micros) string { return time.UnixMicro(at).In(l.calendar.zone).Format(time.DateOnly) }
		if date(end-1) == date(end) {
			t.Fatalf("seed %d: %v ends at %d, where the date stays %s", seed, l, end, date(end))
		}
	}
}

// Two versions of the time zone database disagree by an hour about the end of a period. The first one that charges
// decides, and the period is not split.
func TestCalendarKeepsItsEnd(t *testing.T) {
	utc := Quota{Algorithm: "calendar", Events: 10, Period: "day"}
	other := utc
	other.TimeZone = "Africa/Lagos" // an hour ahead
	early, late := mustLimit(t, other), mustLimit(t, utc)
	for _, first := range []*Limit{early, late} {
		second := early
		if first == early {
			second = late
		}
		_, end, _ := first.Periods(1_790_000_000 * 1_000_000)
		h := &history{limit: first, state: new(State), now: end - 10*minute}
		for _, now := range []Micros{h.now, h.now + minute, end - 1} {
			h.take(now, 2)
			h.limit = second
			if d := h.take(now, 1); d.ResetAfter != end-now {
				t.Errorf("%v says that the period of %v ends after %d, want %d", second, first, d.ResetAfter, end-now)
			}
			h.limit = first
		}
		if h.state.B != 9 {
			t.Errorf("%d events are counted, want 9", h.state.B)
		}
	}
}

// A clock that was wrong by more than a period is right again: the count stays, and the period that now is in ends in time.
func TestCalendarAfterAWrongClock(t *testing.T) {
	l := mustLimit(t, Quota{Algorithm: "calendar", Events: 10, Period: "month", TimeZone: "Europe/Berlin"})
	now := Micros(1_790_000_000 * 1_000_000)
	_, end, next := l.Periods(now)
	for _, ahead := range []Micros{end - now, end - now + 3*day, 100 * 366 * day} {
		h := &history{limit: l, state: new(State)}
		h.take(now+ahead, 4)
		if d := h.take(now, 1); d.Remaining != 5 || d.ResetAfter != end-now {
			t.Errorf("%+v after the clock was ahead by %d", d, ahead)
		}
		if d := h.take(end, 1); d.Remaining != 9 || d.ResetAfter != next-end {
			t.Errorf("%+v in the next period, after the clock was ahead by %d", d, ahead)
		}
	}
}

// The nodes of a cluster disagree by a minute about the turn of a month, and the key moves from one to the other. If it moves
// to the clock that is behind, the month turns once more, and at most one full limit more passes.
func TestCalendarOfNodesThatDisagree(t *testing.T) {
	const events, apart = 5, minute
	l := mustLimit(t, Quota{Algorithm: "calendar", Events: events, Period: "month", TimeZone: "Europe/Berlin"})
	_, end, _ := l.Periods(1_790_000_000 * 1_000_000)
	for first, most := range map[Micros]int64{0: 2 * events, apart: 3 * events} { // how far the first node is ahead
		for moves := end - 2*apart; moves < end+2*apart; moves += 7 * second {
			h := &history{limit: l, state: new(State)}
			granted := int64(0)
			for now := end - 3*apart; now < end+3*apart; now += second {
				shown := now + first
				if now >= moves {
					shown = now + apart - first
				}
				if d := h.take(shown, 1); d.Allowed {
					granted++
				} else if d.RetryAfter > end-shown && shown < end-second {
					t.Fatalf("retry after %d at %d before the turn", d.RetryAfter, end-shown)
				}
			}
			if granted < 2*events || granted > most {
				t.Errorf("%d granted around the turn, want %d to %d: it moved %d µs after it", granted, 2*events, most, moves-end)
			}
		}
	}
}

// A calendar is charged the whole cost in mode Force, as corrections are.
func TestCalendarChargesInFull(t *testing.T) {
	l := mustLimit(t, Quota{Algorithm: "calendar", Events: 10, Period: "year"})
	h := &history{limit: l, state: new(State), now: 1_790_000_000 * 1_000_000, mode: Force}
	if d := h.take(h.now, 4242); d.Charged != 4242 || d.Remaining != 0 || h.state.B != 4242 {
		t.Errorf("%+v, and %d are counted", d, h.state.B)
	}
	for range 3 {
		h.take(h.now, 1<<62)
	}
	if h.state.B > exact {
		t.Errorf("%d are counted, more than a script can", h.state.B)
	}
	_, end, _ := l.Periods(h.now)
	if d := h.take(end, 1); d.Remaining != 9 {
		t.Errorf("%+v in the next year, so a debt is left", d)
	}
}

// One claim of a period crosses a share, after the share is used, whatever is denied or given back. Without a claim, each
// request after that shows that it is due.
func TestCalendarIsCrossedOnce(t *testing.T) {
	eachHistory(t, func(t *testing.T, r *rand.Rand, h *history) {
		if !h.limit.algorithm.Calendar {
			if h.limit.Crossed(h.take(h.now, 1), 1) {
				t.Errorf("%v was crossed", h.limit)
			}
			return
		}
		h.state = new(State)
		share := 1 + r.Int64N(h.limit.Events)
		crossed := make(map[Micros]bool)
		for range 60 {
			h.now += r.Int64N(h.limit.Window / 10)
			_, end, _ := h.limit.Periods(h.now)
			d := h.take(h.now, []int64{1, 2, 3, h.limit.Events, 1 << 40}[r.IntN(5)])
			if d.Allowed && d.Charged > 0 {
				h.charges = append(h.charges, charged{h.now, d.Charged, d.Receipt, h.limit})
			}
			used := h.state.A == end && h.state.B >= share
			if due := h.limit.Crossed(d, share); due != (used && !crossed[end]) {
				t.Errorf("%d of %d events, and %d used: crossed %v, and before %v", share, h.limit.Events, h.state.B, due, crossed[end])
			}
			if r.IntN(3) == 0 {
				h.refund(r)
			}
			if r.IntN(3) == 0 {
				claim, cost := *h, r.Int64N(2)
				claim.mode = Settle
				d := claim.take(h.now, cost)
				used := h.state.A == end && h.state.B >= share
				if due := h.limit.Crossed(d, share); due != (used && !crossed[end]) {
					t.Errorf("%d of %d events, and %d used: claimed %v, and before %v", share, h.limit.Events, h.state.B, due, crossed[end])
				}
				crossed[end] = crossed[end] || used
			}
		}
	})
}

func TestCalendarErrors(t *testing.T) {
	for want, q := range map[string]Quota{
		`period must be day, week, month or year, not "": write for example calendar 5 month`:               {},
		`period must be day, week, month or year, not "12h": write for example calendar 5 month`:            {Period: "12h"},
		`unknown time zone "Europe/Berln": write its name in the time zone database, such as Europe/Berlin`: {Period: "day", TimeZone: "Europe/Berln"},
		`time zone Local differs from computer to computer: write a name, such as Europe/Berlin`:            {Period: "day", TimeZone: "Local"},
		`start_day of a month must be from 1 to 28, the days of every month, not 31`:                        {Period: "month", StartDay: 31},
		`start_day of a month must be from 1 to 28, the days of every month, not sunday`:                    {Period: "month", StartDay: Sunday},
		`start_day of a week must be monday to sunday, not 15`:                                              {Period: "week", StartDay: 15},
		`a year has no start_day: it belongs to week and month`:                                             {Period: "year", StartDay: 15},
		`calendar has a period instead of a window: leave 1h out`:                                           {Period: "day", Window: 60 * minute},
		`calendar takes no burst, not 9: it allows events at once, and no more`:                             {Period: "day", Burst: 9},
		`fixed_window has no period and no time zone: they belong to calendar`:                              {Algorithm: "fixed_window", Window: minute, Period: "day"},
	} {
		if q.Algorithm == "" {
			q.Algorithm = "calendar"
		}
		q.Events = 5
		if _, err := NewLimit(q); err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}
