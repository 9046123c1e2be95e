package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/terminal"
)

// TextOptions are the options of [WriteText].
type TextOptions struct {
	Width int  // of the terminal, in columns; 0 if it is unknown
	Color bool // with the colors of a terminal
}

// WriteText writes a report for people: first the recommended limits and the requests that would have been denied, then
// each zone, then the notes and the log. Times are in UTC. Texts from the log are safe on a terminal.
func WriteText(w io.Writer, r *Report, o TextOptions) error {
	t := &textReport{TextOptions: o, style: terminal.Style{Colored: o.Color}, report: r}
	if r.Log.From != nil && r.Log.To != nil {
		t.oneDay = r.Log.From.UTC().Format(time.DateOnly) == r.Log.To.UTC().Format(time.DateOnly)
	}
	var leftOut []string
	for i, c := range r.Configurations {
		for _, left := range c.LeftOut {
			text := left.Text()
			if letter := r.Letter(i); letter != "" {
				text = "Configuration " + letter + ": " + text
			}
			leftOut = append(leftOut, t.style.Paint(t.wrap(terminal.Printable(text), "  "), terminal.Yellow))
		}
	}
	t.block(leftOut...)
	for _, recommended := range r.Recommendations() {
		head := "Recommended for " + recommended.For + ": " + recommended.Limit + recommended.Instead
		t.block(t.style.Paint(t.wrap(head, "  "), terminal.Green), t.wrap("  "+recommended.Why, "  "))
	}
	if l := &r.Log; l.From != nil && l.To != nil {
		head := fmt.Sprintf("%s from %s to %s UTC", Counted(l.Requests, "request"), l.From.UTC().Format(time.DateTime), t.instant(*l.To))
		t.block(t.wrap(head, ""))
	}
	if r.Comparison != nil && len(r.Configurations) == 2 {
		t.comparison(r.Comparison)
	}
	for i := range r.Configurations {
		t.configuration(&r.Configurations[i], r.Letter(i))
	}
	t.log(&r.Log)
	_, err := io.WriteString(w, strings.Join(t.blocks, "\n"))
	return err
}

// textReport is a report on its way to a text.
type textReport struct {
	TextOptions
	style  terminal.Style
	report *Report
	oneDay bool // the log is of one day
	margin int  // of the blocks of a zone
	blocks []string
}

// block adds a part of the text. An empty line is between two blocks.
func (t *textReport) block(lines ...string) {
	text := strings.TrimRight(strings.Join(lines, "\n"), "\n")
	if text == "" {
		return
	}
	var b strings.Builder
	for line := range strings.Lines(text + "\n") {
		if line != "\n" {
			b.WriteString(strings.Repeat(" ", t.margin))
		}
		b.WriteString(line)
	}
	t.blocks = append(t.blocks, b.String())
}

func (t *textReport) bold(text string) string { return t.style.Paint(text, terminal.Bold) }

func (t *textReport) faint(text string) string { return t.style.Paint(text, terminal.Faint) }

// configuration adds the blocks of a configuration.
func (t *textReport) configuration(c *Configuration, letter string) {
	title := ""
	if letter != "" {
		title = t.bold(t.wrap("Configuration "+letter+": "+terminal.Printable(c.Name), "  ")) + "\n"
	}
	t.block(title + t.verdict(c))
	zones := slices.SortedStableFunc(slices.Values(c.Zones), func(a, b Zone) int { return cmp.Compare(b.AllDenied(), a.AllDenied()) })
	t.zoneTable(zones)
	t.timeline(c, "Denied", terminal.Red, func(b Tally) int64 { return b.Denied })
	t.timeline(c, "Shadow denied", terminal.Yellow, func(b Tally) int64 { return b.ShadowDenied })
	for i := range zones {
		if zones[i].Requests > 0 {
			t.zone(c, &zones[i])
		}
	}
	var notes []string
	for _, note := range c.Notes {
		notes = append(notes, t.wrap("- "+terminal.Printable(note), "  "))
	}
	if len(notes) > 0 {
		t.block(append([]string{t.bold("Notes")}, notes...)...)
	}
}

// verdict returns the answer in a few lines.
func (t *textReport) verdict(c *Configuration) string {
	if c.Requests == 0 {
		return "The log has no request.\n"
	}
	text := t.bold("No request would have been denied.")
	switch {
	case c.Denied > 0:
		sentence := fmt.Sprintf("%s would have been denied (%s)", partOf(c.Denied, c.Requests, "request"), PercentOf(c.Denied, c.Requests))
		if n := c.ShadowDenied; n > 0 {
			sentence += fmt.Sprintf(", and %s more without shadow mode (%s)", Number(n), PercentOf(n, c.Requests))
		}
		text = t.style.Paint(t.wrap(sentence+".", ""), terminal.Red)
	case c.ShadowDenied > 0:
		sentence := fmt.Sprintf("%s would have been denied without shadow mode (%s), and none with it.",
			partOf(c.ShadowDenied, c.Requests, "request"), PercentOf(c.ShadowDenied, c.Requests))
		text = t.style.Paint(t.wrap(sentence, ""), terminal.Yellow)
	case len(c.Zones) == 0:
		text = t.bold("No zone can be simulated.")
	case !c.HasLimit():
		text = t.bold("No limit is configured.")
	}
	lines := []string{text}
	if c.Delayed > 0 {
		lines = append(lines, Counted(c.Delayed, "request")+" would have been delayed.")
	}
	if free := c.Requests - c.Limited; free > 0 {
		lines = append(lines, fmt.Sprintf("%s to no zone.", verb(free, "request", "belongs", "belong")))
	}
	return strings.Join(lines, "\n") + "\n"
}

// zoneTable adds the table of all zones, unless there is only one.
func (t *textReport) zoneTable(zones []Zone) {
	if len(zones) < 2 {
		return
	}
	delays := slices.ContainsFunc(zones, func(z Zone) bool { return z.Delayed > 0 })
	shadow := func(title string) string {
		return titleIf(slices.ContainsFunc(zones, func(z Zone) bool { return z.ShadowDenied > 0 }), title)
	}
	table := terminal.NewTable("ZONE", ">REQUESTS", ">DENIED", ">SHARE", shadow(">SHADOW DENIED"), shadow(">SHARE"),
		titleIf(delays, ">DELAYED"), ">KEYS", ">KEYS DENIED", ">SHARE", shadow(">KEYS SHADOW DENIED"), shadow(">SHARE"))
	for i := range zones {
		z := &zones[i]
		table.Add(
			terminal.Plain(zoneName(z)), numberCell(z.Requests), redIf(z.Denied), percentCell(z.Denied, z.Requests),
			yellowIf(z.ShadowDenied), percentCell(z.ShadowDenied, z.Requests), numberCell(z.Delayed), numberCell(z.Keys),
			numberCell(z.KeysDenied), percentCell(z.KeysDenied, z.Keys), numberCell(z.KeysShadowDenied), percentCell(z.KeysShadowDenied, z.Keys),
		)
	}
	t.block(t.table(table))
}

// bars are eighths of a line.
var bars = []rune("▁▂▃▄▅▆▇█")

// timeline adds a line with the denied or shadow denied requests over time, if there are any.
func (t *textReport) timeline(c *Configuration, what, color string, count func(Tally) int64) {
	if len(c.Timeline) < 2 || c.Begins == nil || count(c.Tally) == 0 {
		return
	}
	columns := 80
	if t.Width > 0 {
		columns = max(min(t.Width, 100), 20)
	}
	each := (len(c.Timeline) + columns - 1) / columns // buckets in a column
	var sums []int64
	for part := range slices.Chunk(c.Timeline, each) {
		sum := int64(0)
		for _, b := range part {
			sum += count(b)
		}
		sums = append(sums, sum)
	}
	highest := slices.Max(sums)
	line := ""
	for _, n := range sums {
		if n == 0 {
			line += "·"
		} else {
			line += string(bars[(n*int64(len(bars))-1)/highest])
		}
	}
	length := c.BucketSeconds * float64(each)
	last := c.Begins.Add(time.Duration(float64(len(sums)-1) * length * 1e9))
	from, to := t.instant(*c.Begins), t.instant(last)
	axis := from
	if gap := len(sums) - len(from) - len(to); gap > 0 {
		axis += strings.Repeat(" ", gap) + to
	}
	title := fmt.Sprintf("%s requests over time (a column is %s, the highest is %s)", what, Window(length), Counted(highest, "request"))
	t.block(t.wrap(title, ""), t.style.Paint(line, color), t.faint(axis))
}

// comparison adds the differences between two configurations.
func (t *textReport) comparison(c *Comparison) {
	var names [2]string
	for i := range names {
		names[i] = t.report.Letter(i) + " (" + terminal.Printable(t.report.Configurations[i].Name) + ")"
	}
	if c.NewlyDenied == 0 && c.NoMoreDenied == 0 {
		title := t.wrap("Configurations "+names[0]+" and "+names[1]+" deny the same requests.", "")
		t.block(t.bold(title), "Both would have denied "+Counted(c.DeniedByBoth, "request")+".")
		return
	}
	table := terminal.NewTable("COMPARED", ">REQUESTS", ">CLIENTS")
	table.Add(terminal.Plain("newly denied: only by "+names[1]), redIf(c.NewlyDenied), numberCell(c.ClientCountNewlyDenied))
	table.Add(terminal.Plain("no longer denied: only by "+names[0]), numberCell(c.NoMoreDenied), numberCell(c.ClientCountNoMoreDenied))
	table.Add(terminal.Plain("denied by both"), numberCell(c.DeniedByBoth), terminal.Plain(""))
	t.block(t.table(table))
	t.clients("CLIENTS NEWLY DENIED", c.ClientsNewlyDenied, c.ClientCountNewlyDenied)
	t.clients("CLIENTS NO LONGER DENIED", c.ClientsNoMoreDenied, c.ClientCountNoMoreDenied)
}

func (t *textReport) clients(title string, clients []ClientChange, all int64) {
	table := terminal.NewTable(">REQUESTS", title, "ZONES")
	for _, c := range clients {
		var zones []string
		for _, zone := range c.Zones {
			zones = append(zones, terminal.Printable(zone))
		}
		table.Add(numberCell(c.Requests), terminal.Plain(keyText(c.Client)), terminal.Plain(strings.Join(zones, ", ")))
	}
	t.block(t.table(table) + more(all-int64(len(clients)), "client"))
}

// log adds the description of the log.
func (t *textReport) log(l *Log) {
	lines := []string{t.bold("Log")}
	for _, sentence := range l.Sentences() {
		lines = append(lines, t.wrap(sentence, ""))
	}
	if l.BrokenLines > 0 {
		head := verb(l.BrokenLines, "line", "is", "are") + " broken"
		switch {
		case len(l.Broken) == 0:
			head += "."
		case int64(len(l.Broken)) < l.BrokenLines:
			head += ". The first ones:"
		default:
			head += ":"
		}
		lines = append(lines, t.style.Paint(t.wrap(head, ""), terminal.Yellow))
		for _, b := range l.Broken {
			lines = append(lines, t.wrap(terminal.Printable(fmt.Sprintf("  %s:%d: %s", b.File, b.Line, b.Error)), "    "))
		}
	}
	t.block(lines...)
}
