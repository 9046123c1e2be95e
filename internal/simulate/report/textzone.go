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
	t.block(t.bold(t.wrap(z.Sentence(), "")), t.zoneFacts(z))
	t.margin = 2
	t.topKeys(z)
	t.demand(z)
	t.proposals(c, z)
	t.margin = 0
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
	for _, fact := range z.Facts(t.instant) {
		add(fact.Name, fact.Texts...)
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
	titles := []string{titleIf(z.Denied > 0, ">DENIED"), titleIf(z.ShadowDenied > 0, ">SHADOW DENIED"), ">REQUESTS", ">SHARE"}
	for _, d := range z.Demand {
		titles = append(titles, ">PEAK "+Window(d.WindowSeconds))
	}
	table := terminal.NewTable(append(titles, "KEY", "FIRST DENIED", "LAST DENIED")...)
	shown := z.TopKeys[:min(len(z.TopKeys), maxTextKeys)]
	for _, k := range shown {
		row := []any{redIf(k.Denied), yellowIf(k.ShadowDenied), numberCell(k.Requests), percentCell(k.AllDenied(), k.Requests)}
		for i := range z.Demand {
			peak := ""
			if i < len(k.Peaks) {
				peak = Number(k.Peaks[i])
			}
			row = append(row, peak)
		}
		table.Add(append(row, cut(keyText(k.Key), maxTableKey), t.instant(k.First), t.instant(k.Last))...)
	}
	if len(shown) > 0 {
		t.block(t.table(table) + more(z.KeysDenied+z.KeysShadowDenied-int64(len(shown)), "key"))
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
		cells := []any{Window(d.WindowSeconds)}
		for i, q := range []float64{d.P50, d.P95, d.P99, d.Max} {
			text := Number(int64(q))
			if i < 3 {
				text = "up to " + text
			}
			cells = append(cells, text)
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
	if p.Line == "" {
		t.block(t.wrap(p.Text(), ""))
		return
	}
	t.block(t.pasted(p.Line), "", t.wrap(p.Text(), ""))
	t.change(p, p.Change)
	if p.Gap != nil {
		t.block(t.wrap("Recommended, in the widest gap of this kind of limit:", ""))
		point, _ := p.Recommended()
		t.recommended(p, point.Line)
	}
}

// recommended adds the recommended limit of a proposal, and what it denies.
func (t *textReport) recommended(p *Proposal, pasted string) {
	_, change := p.Recommended()
	t.block(t.pasted(pasted), "", t.wrap(p.Outcome(), ""))
	t.change(p, change)
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
	t.block(t.bold(t.wrap("Recommended, to be written into rate_limit:", "")))
	t.recommended(a.Recommended, a.Zone)
	t.block(t.bold(t.wrap("Proposed limits, one of which is enough"+t.allowing("each is the smallest that"), "")), t.table(table))
	t.block(t.wrap(terminal.Printable(strings.Join(a.Advice, " ")), ""))
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
