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
	Zone      string      // the zone with one of the limits, to be pasted into a Caddyfile
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
	return &Alternatives{Proposals: from, Advice: r.advice(z, from), Zone: zoneWith(c, z, from)}, others
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
				longer = append(longer, window(d.WindowSeconds))
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

// zoneWith returns a zone of a Caddyfile with one of the limits: that of a minute, or else the first one.
func zoneWith(c *Configuration, z *Zone, alternatives []*Proposal) string {
	if c.ZoneOptions == "" {
		return ""
	}
	line := alternatives[0].Line
	for _, p := range alternatives {
		if strings.HasSuffix(p.Line, " 1m") {
			line = p.Line
		}
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
// with semicolons between spaces.
func ZoneLines(options string) string {
	return strings.TrimSpace(strings.ReplaceAll(options, " ; ", "\n"))
}
