package htmlreport

import (
	"fmt"
	"strings"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
)

// view is a report as the page shows it.
type view struct {
	Policy         string
	Title          string
	Interrupted    bool
	Log            *simulate.LogReport
	Span           string
	Target         string // of the proposals
	Configurations []*configuration
	Comparison     *comparison
	Zones          []*zoneGroup // by name
	NoRequests     []string     // the zones without requests
	LogFacts       []fact
}

// configuration is the outcome of one configuration as a whole.
type configuration struct {
	*simulate.ConfigurationReport
	Letter   string // A or B, if there are two
	Share    string
	Findings []finding // of the zones that deny
	Fine     []finding // of the others
	Timeline *timePlot
	ByStatus []group
	ByPath   []group
}

// finding is a sentence about a zone.
type finding struct {
	ID, Zone string
	Denies   bool
	Before   string // the number
	Number   string
	After    string
	Proposal string
}

// group is a row of a table with a bar.
type group struct {
	Name, Requests, Denied, Share string
	Bar                           shareBar
}

// shareBar is a bar of requests, whose denied part is hatched.
type shareBar struct {
	Allowed, Denied string // widths
	Text            string
}

func newShareBar(requests, denied, most int64) shareBar {
	if most == 0 {
		return shareBar{}
	}
	return shareBar{
		Allowed: percent(within(float64(requests-denied) / float64(most))), Denied: percent(within(float64(denied) / float64(most))),
		Text: fmt.Sprintf("%s, %s denied", count(requests, "request"), number(denied)),
	}
}

type fact struct{ Name, Text string }

// zoneGroup is a zone in all configurations that have it.
type zoneGroup struct {
	ID, Name string
	Parts    []*zonePart
}

func newView(r *simulate.Report) *view {
	v := &view{Policy: policy, Interrupted: r.Interrupted, Log: &r.Log, LogFacts: logFacts(&r.Log)}
	if r.Log.From != nil && r.Log.To != nil {
		v.Span = fmt.Sprintf("%s to %s UTC (%s)", instant(*r.Log.From), instant(*r.Log.To), span(r.Log.To.Sub(*r.Log.From).Seconds()))
	}
	if r.Propose != "" {
		v.Target = r.Share()
	}
	var n ids
	groups := make(map[string]*zoneGroup)
	var names []string
	for i := range r.Configurations {
		c := &configuration{ConfigurationReport: &r.Configurations[i]}
		c.Share = shareOf(c.Denied, c.Requests)
		if len(r.Configurations) > 1 {
			c.Letter = string(rune('A' + i))
		}
		c.ByStatus, c.ByPath = newGroups(c.ConfigurationReport.ByStatus), newGroups(c.ConfigurationReport.ByPath)
		v.Configurations = append(v.Configurations, c)
		names = append(names, plain(c.Name))
		for j := range c.Zones {
			z := &c.Zones[j]
			if groups[z.Zone] == nil {
				groups[z.Zone] = &zoneGroup{ID: n.next("zone"), Name: z.Zone}
				v.Zones = append(v.Zones, groups[z.Zone])
			}
			g := groups[z.Zone]
			g.Parts = append(g.Parts, &zonePart{ZoneReport: z, report: r, Configuration: c})
			f := newFinding(g.ID, z)
			if f.Denies || len(z.Limits) == 0 && z.Requests > 0 {
				c.Findings = append(c.Findings, f)
			} else {
				c.Fine = append(c.Fine, f)
			}
		}
	}
	v.Title = "Rate limit simulation"
	if len(names) > 0 {
		v.Title += " of " + strings.Join(names, " and ")
	}
	v.drawTimelines(&n)
	if r.Comparison != nil {
		v.Comparison = newComparison(r.Comparison)
	}
	return v
}

// drawTimelines draws what depends on all configurations: plots that stand side by side have the same
// scale. Zones without requests have no plots.
func (v *view) drawTimelines(n *ids) {
	var all [][]simulate.Bucket
	for _, c := range v.Configurations {
		all = append(all, c.ConfigurationReport.Timeline)
	}
	for _, c := range v.Configurations {
		if c.Begins != nil {
			c.Timeline = newTimePlot(n, c.of("all requests"), c.timeScale(), c.ConfigurationReport.Timeline, peaks(all...))
		}
	}
	var shown []*zoneGroup
	for _, g := range v.Zones {
		all = nil
		var requests int64
		for _, p := range g.Parts {
			all = append(all, p.ZoneReport.Timeline)
			requests += p.Requests
		}
		if requests == 0 {
			v.NoRequests = append(v.NoRequests, g.Name)
			continue
		}
		shown = append(shown, g)
		for _, p := range g.Parts {
			p.draw(n, peaks(all...))
		}
	}
	v.Zones = shown
}

// of returns a subject with the letter of the configuration, if there are two.
func (c *configuration) of(subject string) string {
	if c.Letter != "" {
		subject += ", configuration " + c.Letter
	}
	return subject
}

func (c *configuration) timeScale() timeScale {
	return timeScale{c.Begins.UTC(), c.BucketSeconds}
}

// newFinding returns the sentence about a zone.
func newFinding(id string, z *simulate.ZoneReport) finding {
	f := finding{ID: id, Zone: z.Zone, Denies: z.Denied > 0}
	if z.Requests == 0 {
		f.ID = "" // the zone has no section
	}
	requests := count(z.Requests, "request")
	switch {
	case z.Requests == 0:
		f.After = "matches no request."
	case len(z.Limits) == 0 && z.Denied == 0:
		f.After = fmt.Sprintf("has no limit. It has %s from %s.", requests, count(z.Keys, "key"))
	case z.Denied == 0:
		f.Before, f.Number = "would have denied", "none"
		f.After = fmt.Sprintf("of %s, from %s.", requests, count(z.Keys, "key"))
	default:
		f.Before, f.Number = "would have denied", number(z.Denied)
		f.After = fmt.Sprintf("of %s (%s), from %s of %s.", requests, shareOf(z.Denied, z.Requests), number(z.KeysDenied), count(z.Keys, "key"))
	}
	if z.Shadow && z.Denied > 0 {
		f.After += " It is in shadow mode, so it would have passed them on."
	}
	for _, p := range z.Proposals {
		if len(z.Proposals) == 1 && p.Line != "" && p.Line != p.Current {
			f.Proposal = simulate.OneLine(p.Line)
		}
	}
	return f
}

func newGroups(groups []simulate.Group) []group {
	var most int64
	for _, g := range groups {
		most = max(most, g.Requests)
	}
	var rows []group
	for _, g := range groups {
		rows = append(rows, group{
			g.Name, number(g.Requests), number(g.Denied), shareOf(g.Denied, g.Requests),
			newShareBar(g.Requests, g.Denied, most),
		})
	}
	return rows
}

// logFacts returns what was read, and what was wrong with it.
func logFacts(l *simulate.LogReport) []fact {
	facts := []fact{{"Lines read", number(l.Lines)}, {"Requests", number(l.Requests)}}
	for _, f := range []struct {
		name string
		n    int64
	}{
		{"Lines that are not requests", l.OtherLines},
		{"Broken lines", l.BrokenLines},
		{"Requests too far out of order to be sorted", l.LateRequests},
		{"Requests denied by a rate limit when the log was written", l.DeniedBefore},
	} {
		if f.n > 0 {
			facts = append(facts, fact{f.name, number(f.n)})
		}
	}
	return facts
}

// comparison is the differences between two configurations.
type comparison struct {
	*simulate.Comparison
	Rows  []comparisonRow
	Newly clients
	Gone  clients
}

type comparisonRow struct {
	Class, Name, Requests, Width, Clients string
}

type client struct {
	Name, Requests string
	Zones          []string
}

// clients are the clients with most requests of a kind, and how many more there are.
type clients struct {
	Shown []client
	More  string
}

func newComparison(c *simulate.Comparison) *comparison {
	most := max(c.NewlyDenied, c.NoMoreDenied, c.DeniedByBoth, 1)
	row := func(class, name string, n int64, clients string) comparisonRow {
		return comparisonRow{class, name, number(n), percent(float64(n) / float64(most)), clients}
	}
	return &comparison{
		Comparison: c,
		Rows: []comparisonRow{
			row("newly", "Newly denied, only by B", c.NewlyDenied, number(c.ClientCountNewlyDenied)),
			row("gone", "No longer denied, only by A", c.NoMoreDenied, number(c.ClientCountNoMoreDenied)),
			row("both", "Denied by both", c.DeniedByBoth, "–"),
		},
		Newly: newClients(c.ClientsNewlyDenied, c.ClientCountNewlyDenied),
		Gone:  newClients(c.ClientsNoMoreDenied, c.ClientCountNoMoreDenied),
	}
}

func newClients(changes []simulate.ClientChange, all int64) (c clients) {
	for _, change := range changes {
		c.Shown = append(c.Shown, client{change.Client, number(change.Requests), change.Zones})
	}
	if more := all - int64(len(changes)); more > 0 {
		c.More = fmt.Sprintf("and %s more", number(more))
	}
	return c
}
