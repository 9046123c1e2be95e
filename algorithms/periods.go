package algorithms

import (
	"sync/atomic"
	"time"
	_ "time/tzdata" // for systems without a time zone database
)

// calendar computes the periods of a limit. It is safe for concurrent use.
type calendar struct {
	zone   *time.Location
	period string
	first  int // of a month: its first day; of a week: the time.Weekday
	last   atomic.Pointer[nearPeriods]
	limit  func(ends ...Micros) string // writes the text of Limit.Message
}

// nearPeriods are the period of some instant, and those that follow.
type nearPeriods struct {
	start Micros
	ends  [3]Micros // of this period, the next, and the one after that
	text  string
}

func newCalendar(q *Quota, zone *time.Location) *calendar {
	c := &calendar{zone: zone, period: q.Period, first: 1}
	switch {
	case q.Period == "week":
		c.first = int(time.Monday)
		if q.StartDay != 0 {
			c.first = int(q.StartDay-Monday+1) % 7
		}
	case q.StartDay != 0:
		c.first = int(q.StartDay)
	}
	return c
}

// ends returns the end of the period of an instant, and the end of the next.
func (c *calendar) ends(now Micros) (end, next Micros) {
	p := c.around(now)
	return p.ends[0], p.ends[1]
}

// around returns the periods around an instant. It remembers the last ones.
func (c *calendar) around(now Micros) *nearPeriods {
	if p := c.last.Load(); p != nil && p.start <= now && now < p.ends[0] {
		return p
	}
	p := new(nearPeriods)
	begins := c.dateOf(now)
	for begins = c.shift(begins, 1); c.begin(begins) > now; {
		begins = c.shift(begins, -1)
	}
	p.start = c.begin(begins)
	end := p.start
	for i := range p.ends {
		for before := end; end <= before; end = c.begin(begins) { // a zone can skip days
			begins = c.shift(begins, 1)
		}
		p.ends[i] = end
	}
	p.text = c.limit(p.ends[:]...)
	c.last.Store(p)
	return p
}

// dateOf returns the first date of the period of an instant, as midnight UTC.
func (c *calendar) dateOf(now Micros) time.Time {
	year, month, day := time.UnixMicro(now).In(c.zone).Date()
	switch c.period {
	case "week":
		weekday := int(time.Date(year, month, day, 0, 0, 0, 0, time.UTC).Weekday())
		day -= (weekday - c.first + 7) % 7
	case "month":
		if day < c.first {
			month--
		}
		day = c.first
	case "year":
		month, day = time.January, 1
	}
	return time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
}

// shift returns the first date n periods later.
func (c *calendar) shift(date time.Time, n int) time.Time {
	switch c.period {
	case "day":
		return date.AddDate(0, 0, n)
	case "week":
		return date.AddDate(0, 0, 7*n)
	case "month":
		return date.AddDate(0, n, 0)
	default:
		return date.AddDate(n, 0, 0)
	}
}

// begin returns the first instant whose local date is a date, given as midnight UTC, or a later one. Midnight
// may not exist there, or exist twice.
func (c *calendar) begin(date time.Time) Micros {
	t := date.Add(-16 * time.Hour) // no zone is further ahead of UTC
	for {
		local := t.In(c.zone)
		_, offset := local.Zone()
		_, end := local.ZoneBounds()
		if !end.IsZero() && !end.After(t) { // Package time says so on the last day of a leap year in UTC.
			end = t.Truncate(24 * time.Hour).Add(24 * time.Hour)
		}
		begins := date.Add(-time.Duration(offset) * time.Second)
		if begins.Before(t) {
			begins = t
		}
		if end.IsZero() || begins.Before(end) {
			return begins.UnixMicro()
		}
		t = end
	}
}
