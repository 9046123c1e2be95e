package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/terminal"
)

// Alternatives are the limits that are proposed for a zone from nothing. Each of them alone is enough.
type Alternatives struct {
	Proposals   []*Proposal // first the windows, the shortest first, and then the token buckets
	Advice      []string    // sentences about the choice
	Recommended *Proposal   // of those with a gap, if there are any: that of a minute, or else the first one
	Zone        string      // the zone with the recommended limit, to be pasted into a Caddyfile
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

// Recommended returns the recommended limit, and the keys that it newly denies. It is in the gap, and is the configured
// limit if this one is there, too. Without a gap it is the proposed limit.
func (p *Proposal) Recommended() (CurvePoint, *Change) {
	switch g, configured := p.Gap, p.Configured; {
	case g == nil && configured != nil && configured.DeniedRequests == 0:
		return *configured, nil
	case g == nil:
		return CurvePoint{Line: p.Line, DeniedRequests: p.DeniedRequests, DeniedKeys: p.DeniedKeys}, p.Change
	case configured != nil && g.Least.Events <= configured.Events && configured.Events <= g.Largest.Events:
		return *configured, nil
	}
	return p.Gap.Middle, &p.Gap.Change
}

// Outcome says in sentences what the recommended limit denies.
func (p *Proposal) Outcome() string {
	recommended, _ := p.Recommended()
	text := "It would have denied " + denials(recommended.DeniedRequests, recommended.DeniedKeys, p) + "."
	if p.Configured != nil && recommended.Events > p.Configured.Events {
		text += " It allows more than the configured limit."
	}
	return text
}

// Recommendation is a limit that a report recommends. Its texts are safe on a terminal.
type Recommendation struct {
	For     string // such as "zone api, plan gold"
	Limit   string
	Instead string // behind Limit: " instead of gcra 5 1s" or ", the present limit"; empty if there is no limit
	Why     string // a sentence
}

// Recommendations returns a limit for each limit of a zone, or for a zone without limits.
func (r *Report) Recommendations() (all []Recommendation) {
	for i := range r.Configurations {
		c := &r.Configurations[i]
		for j := range c.Zones {
			z := &c.Zones[j]
			found, proposals := r.Alternatives(c, z)
			if found != nil {
				proposals = append(proposals, found.Recommended)
			}
			for _, p := range proposals {
				if p.Line != "" {
					all = append(all, r.recommendation(r.Letter(i), z, p))
				}
			}
		}
	}
	return all
}

func (r *Report) recommendation(letter string, z *Zone, p *Proposal) Recommendation {
	point, _ := p.Recommended()
	recommended := Recommendation{
		For: terminal.Printable("zone " + z.Name), Limit: limitText(point.Line),
		Why: "It is the smallest of its kind that denies at most " + terminal.Printable(r.Share()) + ".",
	}
	if p.Set != "" {
		recommended.For += ", " + terminal.Printable(p.Set)
	}
	if letter != "" {
		recommended.For += ", configuration " + letter
	}
	switch p.Current {
	case "":
	case point.Line:
		recommended.Instead = ", the present limit"
	default:
		recommended.Instead = " instead of " + limitText(p.Current)
	}
	if p.Gap == nil && p.Current == point.Line && point.DeniedRequests == 0 {
		recommended.Why = "It denies no request."
	}
	if g := p.Gap; g != nil {
		keys := "the same " + Counted(g.Middle.DeniedKeys, "key")
		if g.Middle.DeniedKeys == 1 {
			keys = "the same key"
		}
		recommended.Why = fmt.Sprintf("Each limit from %s to %s denies %s (%s).",
			limitText(g.Least.Line), limitText(g.Largest.Line), keys, PercentOf(g.Middle.DeniedKeys, p.Keys))
	}
	return recommended
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
	best := slices.MinFunc(from, func(a, b *Proposal) int { return cmp.Compare(a.rank(), b.rank()) })
	point, _ := best.Recommended()
	zone := fmt.Sprintf("zone %s {\n%s\n%s\n}\n", z.Name, ZoneLines(c.ZoneOptions), point.Line)
	return &Alternatives{from, r.advice(z, from), best, string(caddyfile.Format([]byte(zone)))}, others
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

// rank is lower for a better alternative. Minutes are long enough for people, and short enough for bursts.
func (p *Proposal) rank() (rank int) {
	if p.Gap == nil {
		rank += 2
	}
	if !strings.HasSuffix(p.Line, " 1m") {
		rank++
	}
	return rank
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
