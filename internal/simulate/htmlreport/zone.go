package htmlreport

import (
	"fmt"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
)

// zonePart is a zone in one configuration.
type zonePart struct {
	*simulate.ZoneReport
	report        *simulate.Report
	Configuration *configuration
	Numbers       []headline
	Facts         []fact
	Run           *simulate.Run
	RunText       string
	Timeline      *timePlot
	Demands       []*demandPlot
	Quantiles     table
	Proposals     []*proposal
	Alternatives  *alternatives
	Windows       []string // of the peaks
	TopKeys       []topKey
}

// headline is a number of a zone, shown large.
type headline struct {
	Name, Text string
	Denied     bool
}

// topKey is a key with denied requests.
type topKey struct {
	Key, Requests, Denied string
	Bar                   shareBar
	Peaks                 []string
	First, Last           string
}

// proposal is a limit to be pasted.
type proposal struct {
	*simulate.Proposal
	Outcome string
	Next    string
	Curve   *curvePlot
}

func (z *zonePart) draw(n *ids, peak simulate.Bucket) {
	of := z.Configuration.of("zone " + plain(z.Zone))
	z.Numbers = []headline{
		{"Requests", number(z.Requests), false},
		{"Denied", number(z.Denied), z.Denied > 0},
		{"Share denied", shareOf(z.Denied, z.Requests), false},
		{"Keys", number(z.Keys), false},
		{"Keys denied", number(z.KeysDenied), z.KeysDenied > 0},
	}
	z.Facts = z.facts()
	if r := z.LongestRun; r != nil {
		z.Run = r
		z.RunText = fmt.Sprintf("%s, at %s UTC", count(r.Requests, "request"), instant(r.From))
		if r.Requests > 1 {
			z.RunText = fmt.Sprintf("%s in %s, from %s UTC", count(r.Requests, "request"), span(r.To.Sub(r.From).Seconds()), instant(r.From))
		}
	}
	if z.Configuration.Begins != nil {
		z.Timeline = newTimePlot(n, of, z.Configuration.timeScale(), z.ZoneReport.Timeline, peak)
	}
	z.Quantiles = table{Caption: "Events of a key in its busiest window", Head: []string{"Window", "Median", "95%", "99%", "Most"}}
	for i := range z.Demand {
		d := &z.Demand[i]
		window := span(d.WindowSeconds)
		z.Windows = append(z.Windows, window)
		z.Quantiles.add(window, decimal(d.P50), decimal(d.P95), decimal(d.P99), decimal(d.Max))
		if len(d.Histogram) > 0 {
			z.Demands = append(z.Demands, newDemandPlot(n, of, d, z.Limits))
		}
	}
	found, others := z.report.Alternatives(z.Configuration.ConfigurationReport, z.ZoneReport)
	for _, p := range others {
		z.Proposals = append(z.Proposals, newProposal(n, of, p))
	}
	if found != nil {
		z.Alternatives = newAlternatives(n, of, found)
	}
	var most int64
	for i := range z.ZoneReport.TopKeys {
		most = max(most, z.ZoneReport.TopKeys[i].Requests)
	}
	for i := range z.ZoneReport.TopKeys {
		k := &z.ZoneReport.TopKeys[i]
		top := topKey{
			Key: k.Key, Requests: number(k.Requests), Denied: number(k.Denied), Bar: newShareBar(k.Requests, k.Denied, most),
			First: instant(k.First), Last: instant(k.Last),
		}
		for j := range z.Demand {
			peak := "–"
			if j < len(k.Peaks) {
				peak = number(k.Peaks[j])
			}
			top.Peaks = append(top.Peaks, peak)
		}
		z.TopKeys = append(z.TopKeys, top)
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
		text := number(z.Delayed)
		if z.Delay != nil {
			text += fmt.Sprintf(" (median %s, 99%% within %s, at most %s)", span(z.Delay.P50), span(z.Delay.P99), span(z.Delay.Max))
		}
		facts = append(facts, fact{"Delayed", text})
	}
	if z.RequestsWithoutRoom > 0 {
		facts = append(facts, fact{"Requests of keys beyond max_keys", number(z.RequestsWithoutRoom)})
	}
	return facts
}

func newProposal(n *ids, of string, p *simulate.Proposal) *proposal {
	if p.Set != "" {
		of += ", " + plain(p.Set)
	}
	shown := &proposal{Proposal: p, Curve: newCurvePlot(n, of, p)}
	if p.Line != "" {
		shown.Outcome = "It would have denied " + denials(p.DeniedRequests, p.DeniedKeys, p) + "."
		shown.Next = "There is no smaller limit."
	}
	if p.Next != nil {
		shown.Next = fmt.Sprintf("The next smaller limit, %s, would have denied %s.",
			plain(simulate.OneLine(p.Next.Line)), denials(p.Next.DeniedRequests, p.Next.DeniedKeys, p))
	}
	return shown
}

// denials says what a limit would have denied.
func denials(requests, keys int64, p *simulate.Proposal) string {
	if requests == 0 {
		return "no request"
	}
	return fmt.Sprintf("%s (%s), from %s (%s)",
		count(requests, "request"), shareOf(requests, p.Requests), count(keys, "key"), shareOf(keys, p.Keys))
}

// alternatives are the limits that are proposed from nothing.
type alternatives struct {
	*simulate.Alternatives
	Rows   [][]string
	Curves []*curvePlot
}

func newAlternatives(n *ids, of string, a *simulate.Alternatives) *alternatives {
	shown := &alternatives{Alternatives: a}
	for _, p := range a.Proposals {
		shown.Rows = append(shown.Rows, []string{
			plain(simulate.OneLine(p.Line)), number(p.DeniedRequests), shareOf(p.DeniedRequests, p.Requests),
			number(p.DeniedKeys), shareOf(p.DeniedKeys, p.Keys),
		})
		if curve := newCurvePlot(n, of+", "+plain(simulate.OneLine(p.Line)), p); curve != nil {
			shown.Curves = append(shown.Curves, curve)
		}
	}
	return shown
}
