package htmlreport

import (
	"fmt"
	"strings"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
)

// view is a report as the page shows it.
type view struct {
	Policy         string
	Title          string
	Log            *report.Log
	Span           string
	Target         string // of the proposals
	Recommended    []report.Recommendation
	Configurations []*configuration
	Comparison     *report.Comparison
	Zones          []*zoneGroup // by name
	NoRequests     []string     // the zones without requests
}

// configuration is the outcome of one configuration as a whole.
type configuration struct {
	*report.Configuration
	Letter   string    // A or B, if there are two
	Findings []finding // of the zones that deny
	Fine     []finding // of the others
	Timeline *timePlot
}

// finding is a sentence about a zone.
type finding struct {
	ID, Text string
	Denies   bool
}

// zoneGroup is a zone in all configurations that have it.
type zoneGroup struct {
	ID, Name string
	Parts    []*zonePart
}

func newView(r *report.Report) *view {
	v := &view{Policy: policy, Log: &r.Log, Comparison: r.Comparison, Recommended: r.Recommendations()}
	if r.Log.From != nil && r.Log.To != nil {
		span := r.Log.To.Sub(*r.Log.From).Truncate(time.Second)
		v.Span = fmt.Sprintf("%s to %s UTC (%s)", instant(*r.Log.From), instant(*r.Log.To), report.Window(span.Seconds()))
	}
	if r.Propose != "" {
		v.Target = r.Share()
	}
	var n ids
	groups := make(map[string]*zoneGroup)
	var names []string
	for i := range r.Configurations {
		c := &configuration{Configuration: &r.Configurations[i], Letter: r.Letter(i)}
		v.Configurations = append(v.Configurations, c)
		names = append(names, plain(c.Name))
		for j := range c.Zones {
			z := &c.Zones[j]
			if groups[z.Name] == nil {
				groups[z.Name] = &zoneGroup{ID: n.next("zone"), Name: z.Name}
				v.Zones = append(v.Zones, groups[z.Name])
			}
			g := groups[z.Name]
			g.Parts = append(g.Parts, &zonePart{Zone: z, report: r, Configuration: c})
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
	return v
}

// drawTimelines draws what depends on all configurations: plots that stand side by side have the same
// scale. Zones without requests have no plots.
func (v *view) drawTimelines(n *ids) {
	var all [][]report.Tally
	for _, c := range v.Configurations {
		all = append(all, c.Configuration.Timeline)
	}
	for _, c := range v.Configurations {
		if c.Begins != nil {
			c.Timeline = newTimePlot(n, c.subject("all requests"), c.timeScale(), c.Configuration.Timeline, peaks(all...))
		}
	}
	var shown []*zoneGroup
	for _, g := range v.Zones {
		all = nil
		var requests int64
		for _, p := range g.Parts {
			all = append(all, p.Zone.Timeline)
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

// subject returns a subject with the letter of the configuration, if there are two.
func (c *configuration) subject(name string) string {
	if c.Letter != "" {
		name += ", configuration " + c.Letter
	}
	return name
}

func (c *configuration) timeScale() timeScale {
	return timeScale{c.Begins.UTC(), c.BucketSeconds}
}

// newFinding returns the sentence about a zone.
func newFinding(id string, z *report.Zone) finding {
	f := finding{ID: id, Text: z.Sentence(), Denies: z.AllDenied() > 0}
	if z.Requests == 0 { // the zone has no section
		f.ID, f.Text = "", "Zone "+plain(z.Name)+" matches no request."
	}
	return f
}
