package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// Alternatives are the limits that are proposed for a zone from nothing. Each of them alone is enough.
type Alternatives struct {
	Proposals []*Proposal // first the windows, the shortest first, and then the token buckets
	Advice    []string    // sentences about the choice
	Example   *Proposal   // the limit of a minute, or else the first one
	Zone      string      // the zone with the limit of Example, or in its gap, to be pasted into a Caddyfile
}

// HasGap reports whether one of the limits has a gap.
func (a *Alternatives) HasGap() bool {
	return slices.ContainsFunc(a.Proposals, func(p *Proposal) bool { return p.Gap != nil })
}

// Range returns the least and the largest number of events in a gap, and how many keys it denies, such as
// "15 to 152: 2 keys". It is empty for nil.
func (g *Gap) Range() string {
	if g == nil {
		return ""
	}
	return fmt.Sprintf("%s to %s: %s", Number(g.Least.Events), Number(g.Largest.Events), Counted(g.Middle.DeniedKeys, "key"))
}

// Outcome says in sentences what the limit in the middle of a gap denies.
func (g *Gap) Outcome(p *Proposal) string {
	text := "It would have denied " + denials(g.Middle.DeniedRequests, g.Middle.DeniedKeys, p) + "."
	if p.Configured != nil && g.Middle.Events > p.Configured.Events {
		text += " It allows more than the configured limit."
	}
	return text
}

// Text says in a sentence what a gap is.
func (g *Gap) Text(p *Proposal) string {
	denied := g.Middle.DeniedKeys
	keys := "the same " + Counted(denied, "key")
	if denied == 1 {
		keys = "the same key"
	}
	return fmt.Sprintf("The widest gap of this kind of limit: from %s to %s, each one denies %s (%s).",
		limitText(g.Least.Line), limitText(g.Largest.Line), keys, PercentOf(denied, p.Keys))
}

// Text says in a sentence which keys a change concerns.
func (c *Change) Text(p *Proposal) string {
	switch {
	case p.Configured == nil:
		return fmt.Sprintf("It denies %s:", Counted(c.NewlyDenied, "key"))
	case c.NewlyDenied == 0:
		return fmt.Sprintf("It no longer denies %s.", Counted(c.NoMoreDenied, "key"))
	case c.NoMoreDenied == 0:
		return fmt.Sprintf("It newly denies %s:", Counted(c.NewlyDenied, "key"))
	}
	return fmt.Sprintf("It no longer denies %s, and newly denies %s:", Counted(c.NoMoreDenied, "key"), Counted(c.NewlyDenied, "key"))
}

func (c *Change) hasUserAgent() bool {
	return slices.ContainsFunc(c.Keys, func(k DeniedKey) bool { return k.UserAgent != "" })
}

// Alternatives returns the limits that are proposed for a zone from nothing, and the other proposals. The
// Alternatives are nil if there are none.
func (r *Report) Alternatives(c *Configuration, z *Zone) (found *Alternatives, others []*Proposal) {
	var from []*Proposal
	for i := range z.Proposals {
		if p := &z.Proposals[i]; p.Current == "" && p.Line != "" {
			from = append(from, p)
		} else {
			others = append(others, p)
		}
	}
	if len(from) == 0 {
		return nil, others
	}
	found = &Alternatives{Proposals: from, Advice: r.advice(z, from), Example: from[0]}
	for _, p := range from {
		if strings.HasSuffix(p.Line, " 1m") {
			found.Example = p
		}
	}
	found.Zone = zoneWith(c, z, found.Example)
	return found, others
}

// advice returns sentences about the choice between alternatives.
func (r *Report) advice(z *Zone, alternatives []*Proposal) []string {
	advice := []string{
		"A short window stops bursts, and a long window stops clients that never pause.",
		"A token_bucket does both: its last number is the burst, and its first number is the rate after it.",
	}
	if r.Log.From != nil && r.Log.To != nil {
		covered := r.Log.To.Sub(*r.Log.From)
		var longer []string
		for _, d := range z.Demand {
			if d.WindowSeconds > 1.05*covered.Seconds() { // the log of a day is a little shorter
				longer = append(longer, Window(d.WindowSeconds))
			}
		}
		if len(longer) > 0 {
			advice = append(advice, fmt.Sprintf("The log covers only %s, so it doesn't show how much keys ask for in %s.",
				short(covered.Seconds()), strings.Join(longer, " or ")))
		}
	}
	for _, p := range alternatives {
		if p.Next == nil {
			advice = append(advice, "There is no smaller limit than "+OneLine(p.Line)+".")
		}
	}
	return advice
}

// zoneWith returns a zone of a Caddyfile with a proposed limit, or with the limit in its gap.
func zoneWith(c *Configuration, z *Zone, p *Proposal) string {
	if c.ZoneOptions == "" {
		return ""
	}
	line := p.Line
	if p.Gap != nil {
		line = p.Gap.Middle.Line
	}
	zone := fmt.Sprintf("zone %s {\n%s\n%s\n}\n", z.Name, ZoneLines(c.ZoneOptions), line)
	return string(caddyfile.Format([]byte(zone)))
}

// HasLimit reports whether a zone of the configuration has a limit.
func (c *Configuration) HasLimit() bool {
	return slices.ContainsFunc(c.Zones, func(z Zone) bool { return len(z.Limits) > 0 })
}

// Share returns what a proposed limit may deny, such as "0.1% of the keys, or one key".
func (r *Report) Share() string {
	if share, ofRequests := strings.CutPrefix(r.Propose, "requests:"); ofRequests {
		return share + " of the requests"
	}
	if strings.Trim(r.Propose, "0.%") == "" {
		return r.Propose + " of the keys"
	}
	return r.Propose + " of the keys, or one key"
}

// OneLine returns a limit of several lines in one line. It can be read, but not be pasted into a Caddyfile.
func OneLine(limit string) string { return strings.Join(strings.Fields(limit), " ") }

// ZoneLines returns the options of a zone on separate lines. In a shell it is easier to write them on one line,
// with semicolons between spaces, and with spaces around braces.
func ZoneLines(options string) string {
	return strings.TrimSpace(strings.NewReplacer(" ; ", "\n", " { ", " {\n", " }", "\n}").Replace(options))
}
