package htmlreport

import (
	"fmt"
	"strings"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
)

// zonePart is a zone in one configuration.
type zonePart struct {
	*report.Zone
	report        *report.Report
	Configuration *configuration
	Facts         []fact
	Timeline      *timePlot
	Quantiles     table
	Proposals     []*proposal
	Alternatives  *alternatives
	Windows       []string // of the peaks
}

// proposal is a limit to be pasted.
type proposal struct {
	*report.Proposal
	Outcome   string
	Next      string
	WasDenied string // by the configured limit
	Newly     *change
	InGap     *gap
	Curve     *curvePlot
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
	z.Facts = z.facts()
	if z.Configuration.Begins != nil {
		z.Timeline = newTimePlot(n, subject, z.Configuration.timeScale(), z.Zone.Timeline, peak)
	}
	z.Quantiles = table{Caption: "Events of a key in its busiest window", Head: []string{"Window", "Median", "95%", "99%", "Most"}}
	for i := range z.Demand {
		d := &z.Demand[i]
		window := span(d.WindowSeconds)
		z.Windows = append(z.Windows, window)
		z.Quantiles.add(window, decimal(d.P50), decimal(d.P95), decimal(d.P99), decimal(d.Max))
	}
	found, others := z.report.Alternatives(z.Configuration.Configuration, z.Zone)
	for _, p := range others {
		z.Proposals = append(z.Proposals, newProposal(n, subject, p))
	}
	if found != nil {
		z.Alternatives = newAlternatives(n, subject, found)
	}
}

// facts returns the smaller facts about a zone. It leaves out the ones that are zero.
func (z *zonePart) facts() []fact {
	var facts []fact
	if z.FirstDenied != nil && z.LastDenied != nil {
		facts = append(facts, fact{"First denied", instant(*z.FirstDenied) + " UTC"}, fact{"Last denied", instant(*z.LastDenied) + " UTC"})
	}
	if z.DeniedByBan > 0 {
		facts = append(facts, fact{"Denied by a ban", number(z.DeniedByBan)})
	}
	if z.DeniedBySlots > 0 {
		facts = append(facts, fact{"Denied by concurrency", number(z.DeniedBySlots)})
	}
	if z.DeniedByShadow > 0 {
		facts = append(facts, fact{"Denied only in shadow mode", number(z.DeniedByShadow)})
	}
	if z.Delayed > 0 {
		facts = append(facts, fact{"Delayed", number(z.Delayed) + ", the longest by " + span(z.LongestDelay)})
	}
	if z.RequestsWithoutRoom > 0 {
		facts = append(facts, fact{"Requests of keys beyond max_keys", number(z.RequestsWithoutRoom)})
	}
	return facts
}

func newProposal(n *ids, subject string, p *report.Proposal) *proposal {
	if p.Set != "" {
		subject += ", " + plain(p.Set)
	}
	shown := &proposal{Proposal: p, Curve: newCurvePlot(n, subject, p)}
	if p.Line != "" {
		shown.Outcome = "It would have denied " + denials(p.DeniedRequests, p.DeniedKeys, p) + "."
		shown.Next = "There is no smaller limit."
	}
	if p.Next != nil {
		shown.Next = fmt.Sprintf("The next smaller limit, %s, would have denied %s.",
			plain(report.OneLine(p.Next.Line)), denials(p.Next.DeniedRequests, p.Next.DeniedKeys, p))
	}
	if c := p.Configured; c != nil && p.Line != p.Current {
		shown.WasDenied = "Alone, it would have denied " + denials(c.DeniedRequests, c.DeniedKeys, p) + "."
	}
	shown.Newly, shown.InGap = newChange(p, p.Change), newGap(p)
	return shown
}

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
	middle := &p.Gap.Middle
	return &gap{
		Text: plain(strings.ReplaceAll(p.Gap.Text(p), "\u00a0", " ")), Line: middle.Line, Newly: newChange(p, &p.Gap.Change),
		Outcome: p.Gap.Outcome(p),
	}
}

// denials says what a limit would have denied.
func denials(requests, keys int64, p *report.Proposal) string {
	if requests == 0 {
		return "no request"
	}
	return fmt.Sprintf("%s (%s), from %s (%s)",
		count(requests, "request"), shareOf(requests, p.Requests), count(keys, "key"), shareOf(keys, p.Keys))
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
