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
	InGap *recommended // nil without a gap
	Curve *curvePlot
}

// change is the keys that a limit newly denies.
type change struct {
	*report.Change
	Text string
}

// recommended is the recommended limit of a proposal.
type recommended struct {
	Pasted, Outcome string
	Newly           *change
}

func (z *zonePart) draw(n *ids, peak report.Tally) {
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
	shown := &proposal{p, sentence(p.Text()), newChange(p, p.Change), nil, newCurvePlot(n, subject, p, true)}
	if point, _ := p.Recommended(); p.Gap != nil {
		shown.InGap = newRecommended(p, point.Line)
	}
	return shown
}

// sentence returns a text of the report without spaces at which only a terminal doesn't break a line.
func sentence(text string) string { return plain(strings.ReplaceAll(text, "\u00a0", " ")) }

func newChange(p *report.Proposal, c *report.Change) *change {
	if c == nil || c.NewlyDenied+c.NoMoreDenied == 0 {
		return nil
	}
	return &change{c, c.Text(p)}
}

func newRecommended(p *report.Proposal, pasted string) *recommended {
	_, change := p.Recommended()
	return &recommended{pasted, p.Outcome(), newChange(p, change)}
}

// alternatives are the limits that are proposed from nothing.
type alternatives struct {
	*report.Alternatives
	Best   *recommended
	Curves []*curvePlot
}

func newAlternatives(n *ids, subject string, a *report.Alternatives) *alternatives {
	shown := &alternatives{Alternatives: a, Best: newRecommended(a.Recommended, a.Zone)}
	for _, p := range a.Proposals {
		if curve := newCurvePlot(n, subject+", "+plain(report.OneLine(p.Line)), p, p == a.Recommended); curve != nil {
			shown.Curves = append(shown.Curves, curve)
		}
	}
	return shown
}
