package report

import (
	"fmt"
	"strings"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/terminal"
)

const (
	// maxTextKeys is how many keys of a zone a text shows.
	maxTextKeys = 10
	// maxTableKey is how many columns of a key the table shows. An IPv6 address fits.
	maxTableKey = 40
)

// zone adds the blocks of a zone.
func (t *textReport) zone(c *Configuration, z *Zone) {
	t.block(t.bold(t.wrap(zoneSentence(z), "")), t.zoneFacts(z))
	t.margin = 2
	t.topKeys(z)
	t.demand(z)
	t.proposals(c, z)
	t.margin = 0
}

// zoneSentence says what a zone would have done.
func zoneSentence(z *Zone) string {
	name := "Zone " + terminal.Printable(z.Name)
	switch {
	case len(z.Limits) == 0 && z.Denied == 0:
		return fmt.Sprintf("%s has no limit. It has %s from %s.", name, counted(z.Requests, "request"), counted(z.Keys, "key"))
	case z.Denied == 0:
		return fmt.Sprintf("%s would have denied none of %s, from %s.", name, counted(z.Requests, "request"), counted(z.Keys, "key"))
	case z.Shadow:
		name += ", without shadow mode,"
	}
	text := fmt.Sprintf("%s would have denied %s (%s)", name, partOf(z.Denied, z.Requests, "request"), percent(z.Denied, z.Requests))
	if z.Keys > 1 {
		text += fmt.Sprintf(", from %s (%s)", partOf(z.KeysDenied, z.Keys, "key"), percent(z.KeysDenied, z.Keys))
	}
	return text + "."
}

// zoneFacts returns the facts of a zone: names on the left, and the texts aligned.
func (t *textReport) zoneFacts(z *Zone) string {
	var lines []string
	add := func(name string, texts ...string) {
		for _, text := range texts {
			label := fmt.Sprintf("  %-13s", name)
			wrapped := strings.TrimLeft(t.wrap(strings.Repeat(" ", len(label))+text, strings.Repeat(" ", len(label)+2)), " ")
			lines = append(lines, t.faint(label)+wrapped)
			name = ""
		}
	}
	add("key", printables(z.Key)...)
	if len(z.Key) == 0 {
		add("key", "the same for all requests")
	}
	for i, limit := range z.Limits {
		add([]string{"limits", ""}[min(i, 1)], terminal.Printable(OneLine(limit)))
	}
	if z.FirstDenied != nil && z.LastDenied != nil {
		text := "at " + t.instant(*z.FirstDenied)
		if z.Denied > 1 {
			text = "the first " + text + ", the last at " + t.instant(*z.LastDenied)
		}
		add("denials", text)
	}
	if z.DeniedByBan > 0 {
		add("", number(z.DeniedByBan)+" of them by a ban")
	}
	if z.DeniedBySlots > 0 {
		add("", number(z.DeniedBySlots)+" of them by concurrency")
	}
	switch {
	case z.DeniedByShadow == 0:
	case z.DeniedByShadow == z.Denied:
		add("", "The requests pass, because the zone is in shadow mode.")
	default:
		add("", fmt.Sprintf("%s of them pass, because the zone is in shadow mode for their keys.", number(z.DeniedByShadow)))
	}
	if z.Delayed > 0 {
		add("delays", fmt.Sprintf("%s, the longest by %s", counted(z.Delayed, "request"), short(z.LongestDelay)))
	}
	if z.RequestsWithoutRoom > 0 {
		add("max_keys", fmt.Sprintf("%s of keys beyond max_keys. The numbers of keys and the proposals leave them out.",
			counted(z.RequestsWithoutRoom, "request")))
	}
	return strings.Join(lines, "\n")
}

func printables(texts []string) (printable []string) {
	for _, text := range texts {
		printable = append(printable, terminal.Printable(text))
	}
	return printable
}

// topKeys adds the keys with most denials.
func (t *textReport) topKeys(z *Zone) {
	if z.Keys < 2 {
		return
	}
	titles := []string{">DENIED", ">REQUESTS", ">SHARE"}
	for _, d := range z.Demand {
		titles = append(titles, ">PEAK "+window(d.WindowSeconds))
	}
	table := terminal.NewTable(append(titles, "KEY", "FIRST DENIED", "LAST DENIED")...)
	shown := z.TopKeys[:min(len(z.TopKeys), maxTextKeys)]
	for _, k := range shown {
		row := []terminal.Cell{redIf(k.Denied), numberCell(k.Requests), percentCell(k.Denied, k.Requests)}
		for i := range z.Demand {
			peak := ""
			if i < len(k.Peaks) {
				peak = number(k.Peaks[i])
			}
			row = append(row, terminal.Plain(peak))
		}
		for _, text := range []string{cut(keyText(k.Key), maxTableKey), t.instant(k.First), t.instant(k.Last)} {
			row = append(row, terminal.Plain(text))
		}
		table.Add(row...)
	}
	if len(shown) > 0 {
		t.block(t.table(table) + more(z.KeysDenied-int64(len(shown)), "key"))
	}
}

// demand adds how many events the keys asked for.
func (t *textReport) demand(z *Zone) {
	several := z.Keys > 1
	title := "Demand: events of the key in its busiest window"
	if several {
		title = "Demand: events of a key in its busiest window"
	}
	table := terminal.NewTable("WINDOW", titleIf(several, ">HALF OF THE KEYS"), titleIf(several, ">95%"), titleIf(several, ">99%"), ">MOST")
	for _, d := range z.Demand {
		cells := []terminal.Cell{terminal.Plain(window(d.WindowSeconds))}
		for i, q := range []float64{d.P50, d.P95, d.P99, d.Max} {
			text := number(int64(q))
			if i < 3 {
				text = "up to " + text
			}
			cells = append(cells, terminal.Plain(text))
		}
		table.Add(cells...)
	}
	if len(z.Demand) > 0 {
		t.block(t.wrap(title, ""), t.table(table))
	}
}

// proposals adds the proposed limits.
func (t *textReport) proposals(c *Configuration, z *Zone) {
	alternatives, others := t.report.Alternatives(c, z)
	if len(others) > 0 {
		title := "Proposed limits" + t.allowing("each is the smallest that")
		if len(others) == 1 {
			title = "Proposed limit" + t.allowing("the smallest one that")
		}
		t.block(t.bold(t.wrap(title, "")))
	}
	for _, p := range others {
		t.proposal(p)
	}
	if alternatives != nil {
		t.alternatives(alternatives)
	}
}

// allowing says what a proposed limit denies at most.
func (t *textReport) allowing(limit string) string {
	if t.report.Propose == "" {
		return ""
	}
	return fmt.Sprintf(": %s denies at most %s", limit, terminal.Printable(t.report.Share()))
}

// proposal adds a proposed limit, as lines to paste.
func (t *textReport) proposal(p *Proposal) {
	var sentences []string
	add := func(format string, args ...any) { sentences = append(sentences, fmt.Sprintf(format, args...)) }
	instead := ""
	if p.Current != "" {
		instead = " for " + limitText(p.Current)
	}
	if p.Set != "" {
		instead += " of " + terminal.Printable(p.Set)
	}
	if p.Line == "" {
		t.block(t.wrap("None"+instead+": "+terminal.Printable(p.Reason)+".", ""))
		return
	}
	switch {
	case p.Line == p.Current:
		add("This is the present limit%s.", strings.TrimPrefix(instead, " for "+limitText(p.Current)))
	case p.Configured != nil:
		add("It replaces%s, which alone would have denied %s.", strings.TrimPrefix(instead, " for"),
			denials(p.Configured.DeniedRequests, p.Configured.DeniedKeys, p))
	case p.Current != "":
		add("It replaces%s.", strings.TrimPrefix(instead, " for"))
	}
	add("It would have denied %s.", denials(p.DeniedRequests, p.DeniedKeys, p))
	if p.Next != nil {
		add("The next smaller limit, %s, would have denied %s.", limitText(p.Next.Line), denials(p.Next.DeniedRequests, p.Next.DeniedKeys, p))
	} else {
		add("There is no smaller limit.")
	}
	t.block(t.pasted(p.Line), "", t.wrap(strings.Join(sentences, " "), ""))
	t.change(p, p.Change)
	if p.Gap != nil {
		t.gap(p)
	}
}

// gap adds the widest gap of a proposal, and the limit in its middle.
func (t *textReport) gap(p *Proposal) {
	g := p.Gap
	t.block(t.wrap(g.Text(p)+" A limit between them:", ""))
	t.block(t.pasted(g.Middle.Line), "", t.wrap(g.Outcome(p), ""))
	t.change(p, &g.Change)
}

// change adds the keys that a limit newly denies.
func (t *textReport) change(p *Proposal, c *Change) {
	if c == nil || c.NewlyDenied+c.NoMoreDenied == 0 {
		return
	}
	t.block(t.wrap(c.Text(p), ""))
	if len(c.Keys) == 0 {
		return
	}
	table := terminal.NewTable(">DENIED", ">REQUESTS", "KEY", titleIf(c.hasUserAgent(), "USER-AGENT OF ITS FIRST REQUEST"))
	for _, k := range c.Keys {
		table.Add(redIf(k.Denied), numberCell(k.Requests),
			terminal.Plain(cut(keyText(k.Key), maxTableKey)), terminal.Plain(terminal.Printable(k.UserAgent)))
	}
	t.block(t.table(table) + more(c.NewlyDenied-int64(len(c.Keys)), "key"))
}

// denials says what a limit would have denied.
func denials(requests, keys int64, p *Proposal) string {
	if requests == 0 {
		return "no request"
	}
	return fmt.Sprintf("%s (%s), from %s (%s)",
		counted(requests, "request"), percent(requests, p.Requests), counted(keys, "key"), percent(keys, p.Keys))
}

// alternatives adds the limits that are proposed from nothing.
func (t *textReport) alternatives(a *Alternatives) {
	table := terminal.NewTable("LIMIT", ">DENIED REQUESTS", ">SHARE", ">KEYS", ">SHARE", titleIf(a.HasGap(), "WIDEST GAP"))
	for _, p := range a.Proposals {
		table.Add(
			terminal.Colored(terminal.Printable(OneLine(p.Line)), terminal.Green),
			numberCell(p.DeniedRequests), percentCell(p.DeniedRequests, p.Requests),
			numberCell(p.DeniedKeys), percentCell(p.DeniedKeys, p.Keys), terminal.Plain(p.Gap.Range()),
		)
	}
	t.block(t.bold(t.wrap("Proposed limits, one of which is enough"+t.allowing("each is the smallest that"), "")), t.table(table))
	t.block(t.wrap(terminal.Printable(strings.Join(a.Advice, " ")), ""))
	if p := a.Example; p.Gap != nil {
		t.gap(p)
	} else {
		t.change(p, p.Change)
	}
	if a.Zone != "" {
		t.block(t.wrap("Write the limit that you choose into a zone of rate_limit, for example:", ""), "", t.pasted(a.Zone))
	}
}

// pasted writes lines of a Caddyfile, to be copied.
func (t *textReport) pasted(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		line = strings.ReplaceAll(strings.TrimSuffix(line, "\n"), "\t", "    ")
		lines = append(lines, "  "+t.style.Paint(terminal.Printable(line), terminal.Green))
	}
	return strings.Join(lines, "\n")
}
