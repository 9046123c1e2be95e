// Package propose records the requests that a simulation decides, and proposes limits that deny almost none of them. It
// never decides a request of the simulation itself.
package propose

import (
	"fmt"
	"slices"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
)

// Target returns the share that a proposed limit may deny, as [ParseTarget] reads it.
func (r *Recorder) Target() string { return r.target.String() }

// Propose adds proposals for the limits of each zone to a report. They are in the order of the
// sets of limits.
//
// Each limit is proposed on its own, as if the zone had no other. A proposal has the algorithm, the
// window and the options of the present limit. Its burst and its initial change in proportion to its
// events. Propose replays the recorded requests through the algorithm, with the zone's mode, costs, settle
// and delay. It simulates no bans, and no bound on the number of delayed requests. A zone in shadow mode
// is judged as if it denied and delayed.
//
// A proposed limit denies at most the share of the target, and the next smaller limit denies more. For most
// logs it is the least such limit. For a few logs a larger limit denies more than a smaller one: with
// costs that differ, with mode nary, and with limits that have steps (leaky_bucket), initial or warm_up. Then
// there can be a smaller limit that denies less than the share. Very large limits can't all be counted
// exactly. Among these, Propose tries only round numbers of events.
//
// The results don't depend on the number of goroutines.
func (r *Recorder) Propose(c *report.Configuration) {
	proposals := r.propose()
	for i := range c.Zones {
		z := &c.Zones[i]
		z.Proposals = proposals[z.Name]
		if len(z.Proposals) > 0 && z.Keys > 0 && r.target.isBelowOneOf(z.Keys) {
			c.Note("in zone %s, %v of the keys is less than one key, so the proposed limits deny nobody: name a larger share, or a longer log",
				z.Name, r.target)
		}
	}
}

// propose returns the proposals for each zone, by its name.
func (r *Recorder) propose() map[string][]report.Proposal {
	all := make(map[string][]report.Proposal, len(r.zones))
	for i := range r.zones {
		all[r.zones[i].Name] = r.proposeForZone(&r.zones[i])
	}
	return all
}

// curvePoints is about how many points a curve has.
const curvePoints = 40

func (r *Recorder) proposeForZone(zone *recordedZone) (proposals []report.Proposal) {
	for i, set := range zone.Sets {
		recorded := zone.sets[i]
		if recorded == nil && set.Name != "" { // nobody has this plan, or too many others have one
			continue
		}
		for _, l := range set.Limits {
			proposals = append(proposals, r.proposeForLimit(zone, set, l, recorded))
		}
		if set.Open {
			proposals = append(proposals, r.proposeFromNothing(zone, recorded)...)
		}
	}
	if n := len(zone.unproposedSets); n > 0 {
		proposals = append(proposals, report.Proposal{
			Set:    fmt.Sprintf("%d other plans and overrides", n),
			Reason: fmt.Sprintf("limits are proposed for the first %d plans and overrides in the log", maxSets),
		})
	}
	return proposals
}

// proposeForLimit returns the proposal that replaces a limit of a set.
func (r *Recorder) proposeForLimit(zone *recordedZone, set simulate.LimitSet, l *algorithms.Limit, recorded *stream) report.Proposal {
	p := report.Proposal{Set: set.Name, Current: caddyfileLine(l), Reason: recorded.whyNone()}
	if p.Reason == "" && zone.VariesBurst && l.Scalable() {
		p.Reason = "the option factor gives each request a different burst"
	}
	switch name := l.Algorithm().Name; {
	case p.Reason != "":
	case l.Algorithm().Calendar:
		p.Reason = "a calendar limits what was sold, which no log shows"
	case !slices.Contains(provenAlgorithms, name):
		p.Reason = "simulate proposes no limits of the algorithm " + name
	}
	if p.Reason != "" {
		return p
	}
	q := r.question(recorded, candidatesLike(l, zone.MaxDelay, workLeft(set, l), recorded.maxCharge()))
	q.current = l.Events
	q.fill(&p)
	if p.Line == "" {
		p.Reason = whyTooMuch(&p, &l.Quota)
	}
	return p
}

// whyNone says why no limit can be found for requests. It is empty if one can.
func (s *stream) whyNone() string {
	switch {
	case s == nil:
		return "the log has no request with this limit"
	case !s.limiting:
		return "mode force denies nobody, with any limit"
	}
	return ""
}

func (r *Recorder) question(recorded *stream, c *candidates) *question {
	q := &question{stream: recorded, candidates: c, target: r.target, points: curvePoints, workers: r.workers, least: 1}
	if recorded.minCost > 1 && recorded.usual != algorithms.Nary {
		q.least = c.eventsFor(recorded.minCost) / 2
	}
	return q
}

// workLeft returns the most work of a decision by a limit beside the other limits of its set.
func workLeft(set simulate.LimitSet, l *algorithms.Limit) int64 {
	left := int64(algorithms.MaxWork)
	for _, other := range set.Limits {
		if other != l {
			left -= other.WorstWork(maxCost)
		}
	}
	return max(left, l.WorstWork(1))
}

// maxCost is the largest cost of a request.
const maxCost = 1<<31 - 1

// maxCharge returns the largest cost for which a limit must be prepared.
func (s *stream) maxCharge() int64 {
	if s.maxCost > s.minCost { // it depends on the request or on the response
		return maxCost
	}
	return s.maxCost
}

func caddyfileLine(l *algorithms.Limit) string { return l.Algorithm().CaddyfileText(l.String()) }

// whyTooMuch says why no limit denies at most the share.
func whyTooMuch(p *report.Proposal, q *algorithms.Quota) string {
	if len(p.Curve) == 0 {
		return "no limit with these options can be counted exactly"
	}
	largest := p.Curve[len(p.Curve)-1]
	denied := fmt.Sprintf("denies %d of %d requests, and %d of %d keys", largest.DeniedRequests, p.Requests, largest.DeniedKeys, p.Keys)
	switch {
	case q.MinInterval > 0:
		return fmt.Sprintf("with any number of events, min_interval %s", denied)
	case q.Initial != nil && *q.Initial == 0:
		return fmt.Sprintf("even with %d events initial 0 %s", largest.Events, denied)
	}
	return fmt.Sprintf("the largest limit that can be proposed, with %d events, still %s", largest.Events, denied)
}
