package htmlreport

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
)

// plot is the part that all plots have in common. The page draws the area of a plot as large as it has
// room for, so positions are percentages. Labels are beside the area.
type plot struct {
	ID, Title, Desc string
	X, Y            []tick
}

// tick is a tick of an axis. A minor one is left out if the plot is narrow.
type tick struct {
	At, Label string
	Minor     bool
}

// table is a table of numbers. The first column says what the numbers in a row are about.
type table struct {
	Caption string
	Head    []string
	Rows    [][]string
}

func (t *table) add(cells ...string) { t.Rows = append(t.Rows, cells) }

func percent(p float64) string {
	return strconv.FormatFloat(p*100, 'f', 2, 64) + "%"
}

// ids numbers the elements of a page that others refer to.
type ids int

func (n *ids) next(kind string) string {
	*n++
	return fmt.Sprintf("%s-%d", kind, *n)
}

// Plots over time.

// timePlot is the requests over time, and below them the denied and shadow denied ones again, on their own scale.
type timePlot struct {
	Every    string
	Day      string
	Requests timePanel
	Denied   *timePanel // nil if none was denied or shadow denied
	Kind     string     // of the requests in Denied
}

// timePanel is one of the areas of a timePlot. Its areas are paths.
type timePanel struct {
	plot
	Allowed, Shadow, Hatched string
	Slots                    []slot
}

// slot is a bucket of a plot, which shows its numbers below the pointer.
type slot struct {
	X, Width, Text string
}

// timeScale is the common scale of all plots over time.
type timeScale struct {
	begins time.Time
	bucket float64 // in seconds
}

func (s timeScale) at(i int) time.Time {
	return s.begins.Add(time.Duration(float64(i) * s.bucket * float64(time.Second)))
}

func (s timeScale) format() string {
	if s.bucket >= 60 && s.begins.Equal(s.begins.Truncate(time.Minute)) {
		return "2006-01-02 15:04"
	}
	return "2006-01-02 15:04:05"
}

// newTimePlot returns a plot of a timeline. Plots with the same peaks can be compared.
func newTimePlot(n *ids, subject string, s timeScale, timeline []report.Tally, peak report.Tally) *timePlot {
	if len(timeline) == 0 {
		return nil
	}
	series := func(count func(report.Tally) int64) (values []int64) {
		for _, b := range timeline {
			values = append(values, count(b))
		}
		return values
	}
	none := make([]int64, len(timeline))
	requests := series(func(b report.Tally) int64 { return b.Requests })
	passing := series(func(b report.Tally) int64 { return b.Requests - b.Denied })
	allowed := series(func(b report.Tally) int64 { return b.Requests - b.AllDenied() })
	shadow := series(func(b report.Tally) int64 { return b.ShadowDenied })
	denied := series(report.Tally.AllDenied)
	var total report.Tally
	var slots, deniedSlots []slot
	busiest := 0
	end := s.at(len(timeline))
	p := &timePlot{Every: span(s.bucket), Day: days(s.begins, end)}
	for i, b := range timeline {
		total.Add(b)
		if denied[i] > denied[busiest] || denied[busiest] == 0 && b.Requests > timeline[busiest].Requests {
			busiest = i
		}
		if b.Requests == 0 {
			continue
		}
		from := s.at(i).UTC().Format(s.format())
		width := 1 / float64(len(timeline))
		shown := slot{
			percent(float64(i) * width), percent(width),
			fmt.Sprintf("%s UTC: %s, %s denied%s", from, count(b.Requests, "request"), number(b.Denied), andShadow(b)),
		}
		slots = append(slots, shown)
		if denied[i] > 0 {
			deniedSlots = append(deniedSlots, shown)
		}
	}
	var x []tick
	for i, t := range timeTicks(s.begins, end, 9) {
		at := float64(t.at.Sub(s.begins)) / float64(end.Sub(s.begins))
		x = append(x, tick{percent(at), t.label, i%2 == 1})
	}
	y, top := countAxis(peak.Requests, 4)
	p.Requests = timePanel{
		plot: plot{
			ID: n.next("plot"), Title: "Requests over time, " + subject,
			Desc: fmt.Sprintf("From %s to %s UTC, in steps of %s: %s, of which %s are denied%s. The busiest step has %s.",
				instant(s.begins), instant(end), span(s.bucket), count(total.Requests, "request"), number(total.Denied), andShadow(total),
				count(slices.Max(requests), "request")),
			X: x, Y: y,
		},
		Allowed: stepArea(none, allowed, top), Shadow: stepArea(allowed, passing, top), Hatched: stepArea(passing, requests, top), Slots: slots,
	}
	switch {
	case total.AllDenied() == 0:
		return p
	case total.ShadowDenied == 0:
		p.Kind = "Denied"
	case total.Denied == 0:
		p.Kind = "Shadow denied"
	default:
		p.Kind = "Denied and shadow denied"
	}
	p.Requests.X = unlabeled(x) // the labels are below the other panel
	y, top = countAxis(peak.Denied, 2)
	p.Denied = &timePanel{
		plot: plot{
			ID: n.next("plot"), Title: p.Kind + " requests over time, " + subject,
			Desc: fmt.Sprintf("Most are denied in the step from %s UTC: %s of %s.",
				instant(s.at(busiest)), number(denied[busiest]), count(requests[busiest], "request")),
			X: x, Y: y,
		},
		Shadow: stepArea(none, shadow, top), Hatched: stepArea(shadow, denied, top), Slots: deniedSlots,
	}
	return p
}

// andShadow says how many requests are shadow denied, if any.
func andShadow(t report.Tally) string {
	if t.ShadowDenied == 0 {
		return ""
	}
	return ", " + number(t.ShadowDenied) + " shadow denied"
}

func unlabeled(ticks []tick) []tick {
	ticks = slices.Clone(ticks)
	for i := range ticks {
		ticks[i].Label = ""
	}
	return ticks
}

// peaks returns the most requests of a bucket, and the most denied and shadow denied ones together as Denied.
func peaks(timelines ...[]report.Tally) report.Tally {
	var peak report.Tally
	for _, timeline := range timelines {
		for _, b := range timeline {
			peak.Requests, peak.Denied = max(peak.Requests, b.Requests), max(peak.Denied, b.AllDenied())
		}
	}
	return peak
}

func countAxis(peak int64, maxTicks int) (ticks []tick, top float64) {
	values := countTicks(peak, maxTicks)
	top = float64(values[len(values)-1])
	for _, v := range values {
		ticks = append(ticks, tick{At: percent(height(float64(v), top)), Label: short(v)})
	}
	return ticks, top
}

// days writes the days of a span in UTC.
func days(from, to time.Time) string {
	first, last := from.UTC().Format(time.DateOnly), to.UTC().Add(-1).Format(time.DateOnly)
	if first == last {
		return first
	}
	return first + " to " + last
}

// Curves of a proposal.

// curvePlot is the share of requests and of keys that limits would deny.
type curvePlot struct {
	plot
	Of            string // the proposed limit
	Lines         []curveLine
	Marks         []mark
	IsLogarithmic bool
}

type curveLine struct {
	Class, Path string
	Points      []place
}

// add draws the line to a point.
func (l *curveLine) add(x, y float64) {
	command := "L"
	if l.Path == "" {
		command = "M"
	}
	l.Path += command + coordinate(x) + " " + coordinate(1-y)
	l.Points = append(l.Points, place{percent(x), percent(1 - y)})
}

type place struct{ X, Y string }

// mark is a limit in a plot.
type mark struct {
	Class, X, Anchor, Label string
	Top, LabelY             int // in pixels
}

// mostPoints is up to how many points a curve shows one by one.
const mostPoints = 40

// newCurvePlot returns the plot of a proposal, or nil if it has no curve. recommends reports whether the report
// recommends the limit in the gap, or else the proposed one.
func newCurvePlot(n *ids, subject string, p *report.Proposal, recommends bool) *curvePlot {
	if len(p.Curve) == 0 {
		return nil
	}
	curve := slices.Clone(p.Curve)
	slices.SortStableFunc(curve, func(a, b report.CurvePoint) int { return cmp.Compare(a.Events, b.Events) })
	var current, proposed, recommended int64 // 0 if there is none
	for _, c := range curve {
		if c.Line == p.Line {
			proposed = c.Events
		}
	}
	if p.Configured != nil {
		current = p.Configured.Events
	}
	if point, _ := p.Recommended(); recommends {
		recommended = cmp.Or(point.Events, proposed)
	}
	low, high := curve[0].Events, curve[len(curve)-1].Events
	for _, e := range []int64{current, proposed, recommended} {
		if e > 0 {
			low, high = min(low, e), max(high, e)
		}
	}
	x := newAxis(float64(low), float64(high))
	var shares []float64
	for _, c := range curve {
		shares = append(shares, c.RequestShare, c.KeyShare)
	}
	y := newShareAxis(shares)
	plotted := &curvePlot{Of: report.OneLine(p.Line), IsLogarithmic: x.log}
	plotted.plot = plot{
		ID: n.next("plot"), Title: "Share denied by limit, " + subject,
		Desc: fmt.Sprintf("With %s the limit denies %s of the requests and %s of the keys, with %s it denies %s and %s.",
			count(curve[0].Events, "event"), share(curve[0].RequestShare), share(curve[0].KeyShare),
			count(curve[len(curve)-1].Events, "event"), share(curve[len(curve)-1].RequestShare), share(curve[len(curve)-1].KeyShare)),
	}
	for i, v := range x.ticks(8) {
		plotted.X = append(plotted.X, tick{percent(x.position(v)), short(int64(v)), i%2 == 1})
	}
	for _, v := range y.ticks() {
		plotted.Y = append(plotted.Y, tick{At: percent(1 - y.position(v)), Label: share(v)})
	}
	keys, requests := curveLine{Class: "keys"}, curveLine{Class: "requests"}
	for _, c := range curve {
		at := x.position(float64(c.Events))
		keys.add(at, y.position(c.KeyShare))
		requests.add(at, y.position(c.RequestShare))
	}
	if len(curve) > mostPoints {
		keys.Points, requests.Points = nil, nil
	}
	plotted.Lines = []curveLine{keys, requests}
	plotted.Marks = newMarks(x, []string{"configured", "proposed", "recommended"}, []int64{current, proposed, recommended})
	return plotted
}

// newMarks returns the marks of limits, which are 0 if there is none. Equal limits share a mark. Labels are one above the
// other, and stay within the plot.
func newMarks(x axis, names []string, events []int64) (marks []mark) {
	for i, e := range events {
		if e == 0 || slices.Contains(events[:i], e) {
			continue
		}
		label, class := "", ""
		for j := range events {
			if events[j] == e {
				label, class = strings.TrimPrefix(label+" and "+names[j], " and "), names[j]
			}
		}
		at, anchor := x.position(float64(e)), "start"
		if at > 0.5 {
			anchor = "end"
		}
		marks = append(marks, mark{Class: class, X: percent(at), Anchor: anchor, Label: label + ": " + number(e)})
	}
	for i := range marks {
		marks[i].Top = -4 - 14*(len(marks)-1-i)
		marks[i].LabelY = marks[i].Top - 5
	}
	return marks
}
