package htmlreport

import (
	"strings"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
)

// zonePart is a zone in one configuration.
type zonePart struct {
	*report.Zone
	report        *report.Report
	Configuration *configuration
	Facts         []report.Fact
	Timeline      *timePlot
	Quantiles     table
	Proposals     []*proposal
	Alternatives  *alternatives
	Windows       []string // of the peaks
}

// proposal is a limit to be pasted.
type proposal struct {
	*report.Proposal
	Text  string
	Newly *change
	InGap *gap
	Curve *curvePlot
}

// change is the keys that a limit newly denies.
type change struct {
	*report.Change
	Text string
}

// gap is the widest gap, with the limit in its middle.
type gap struct {
	Text, Line, Outcome string
	Newly               *change
}

func (z *zonePart) draw(n *ids, peak report.Bucket) {
	subject := z.Configuration.subject("zone " + plain(z.Name))
	z.Facts = z.Zone.Facts(instant)
	if z.Configuration.Begins != nil {
		z.Timeline = newTimePlot(n, subject, z.Configuration.timeScale(), z.Zone.Timeline, peak)
	}
	z.Quantiles = table{Caption: "Events of a key in its busiest window", Head: []string{"Window", "Median", "95%", "99%", "Most"}}
	for i := range z.Demand {
		d := &z.Demand[i]
		window := report.Window(d.WindowSeconds)
		z.Windows = append(z.Windows, window)
		z.Quantiles.add(window, number(int64(d.P50)), number(int64(d.P95)), number(int64(d.P99)), number(int64(d.Max)))
	}
	found, others := z.report.Alternatives(z.Configuration.Configuration, z.Zone)
	for _, p := range others {
		z.Proposals = append(z.Proposals, newProposal(n, subject, p))
	}
	if found != nil {
		z.Alternatives = newAlternatives(n, subject, found)
	}
}

func newProposal(n *ids, subject string, p *report.Proposal) *proposal {
	if p.Set != "" {
		subject += ", " + plain(p.Set)
	}
	return &proposal{p, sentence(p.Text()), newChange(p, p.Change), newGap(p), newCurvePlot(n, subject, p)}
}

// sentence returns a text of the report without spaces at which only a terminal doesn't break a line.
func sentence(text string) string { return plain(strings.ReplaceAll(text, "\u00a0", " ")) }

func newChange(p *report.Proposal, c *report.Change) *change {
	if c == nil || c.NewlyDenied+c.NoMoreDenied == 0 {
		return nil
	}
	return &change{c, c.Text(p)}
}

func newGap(p *report.Proposal) *gap {
	if p.Gap == nil {
		return nil
	}
	return &gap{sentence(p.Gap.Text(p)), p.Gap.Middle.Line, p.Gap.Outcome(p), newChange(p, &p.Gap.Change)}
}

// alternatives are the limits that are proposed from nothing.
type alternatives struct {
	*report.Alternatives
	Newly  *change // by the example
	InGap  *gap    // of the example
	Curves []*curvePlot
}

func newAlternatives(n *ids, subject string, a *report.Alternatives) *alternatives {
	shown := &alternatives{Alternatives: a, Newly: newChange(a.Example, a.Example.Change), InGap: newGap(a.Example)}
	for _, p := range a.Proposals {
		if curve := newCurvePlot(n, subject+", "+plain(report.OneLine(p.Line)), p); curve != nil {
			shown.Curves = append(shown.Curves, curve)
		}
	}
	return shown
}
