package simulate

import (
	"context"
	"fmt"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// Propose returns proposals for the limits of each zone, by the name of the zone. First come the
// proposals for the sets of limits in their order, and then the one for concurrency.
//
// Each limit is proposed on its own, as if the zone had no other. A proposal has the algorithm, the
// window and the options of the present limit. Its burst and its initial change in proportion to its
// events. Propose replays the recorded demand through the algorithm, with the zone's mode, costs, settle
// and delay. It simulates no bans, and no bound on the number of delayed requests. A zone in shadow mode
// is judged as if it denied and delayed.
//
// A proposed limit denies at most the share of the target, and the next smaller limit denies more. For most
// demands it is the least such limit. For a few demands a larger limit denies more than a smaller one: with
// costs that differ, with mode nary, and with limits that have steps (leaky_bucket), initial or warm_up. Then
// there can be a smaller limit that denies less than the share. Very large limits can't all be counted
// exactly. Among these, Propose tries only round numbers of events.
//
// The results don't depend on the number of goroutines, nor on where the demand is kept.
func (r *Recorder) Propose(ctx context.Context, target Target) (map[string][]Proposal, error) {
	if r.spool.err != nil {
		return nil, r.spool.err
	}
	all := make(map[string][]Proposal, len(r.zones))
	for i := range r.zones {
		proposals, err := r.proposeForZone(ctx, &r.zones[i], target)
		if err != nil {
			return nil, err
		}
		all[r.zones[i].Name] = proposals
	}
	return all, nil
}

// curvePoints is about how many points a curve has.
const curvePoints = 40

func (r *Recorder) proposeForZone(ctx context.Context, zone *zoneDemand, target Target) (proposals []Proposal, err error) {
	for i, set := range zone.Sets {
		demand := zone.sets[i]
		if demand == nil && set.Name != "" { // nobody has this plan, or too many others have one
			continue
		}
		for _, l := range set.Limits {
			p, err := r.proposeForLimit(ctx, zone, set, l, demand, target)
			if err != nil {
				return nil, err
			}
			proposals = append(proposals, p)
		}
		if set.Open {
			found, err := r.proposeFromNothing(ctx, zone, demand, target)
			if err != nil {
				return nil, err
			}
			proposals = append(proposals, found...)
		}
	}
	if n := len(zone.unproposedSets); n > 0 {
		proposals = append(proposals, Proposal{
			Set:    fmt.Sprintf("%d other plans and overrides", n),
			Reason: fmt.Sprintf("limits are proposed for the first %d plans and overrides in the log", maxSets),
		})
	}
	if zone.Concurrency > 0 {
		p, err := r.proposeSlots(ctx, zone, target)
		if err != nil {
			return nil, err
		}
		proposals = append(proposals, p)
	}
	return proposals, nil
}

// proposeForLimit returns the proposal that replaces a limit of a set.
func (r *Recorder) proposeForLimit(
	ctx context.Context, zone *zoneDemand, set LimitSet, l *algorithms.Limit, demand *stream, target Target,
) (Proposal, error) {
	p := Proposal{Set: set.Name, Current: caddyfileLine(l), Reason: demand.whyNone()}
	if p.Reason == "" && zone.VariesBurst && l.Scalable() {
		p.Reason = "the option factor gives each request another burst"
	}
	if p.Reason != "" {
		return p, nil
	}
	q := r.question(zone, demand, ladderOf(l, zone.MaxDelay, workLeft(set, l), demand.maxCharge()), target)
	q.current = l.Events
	a, err := q.find(ctx)
	if err != nil {
		return p, err
	}
	a.fill(&p)
	if a.chosen == nil {
		p.Reason = a.whyNone(&l.Quota)
	}
	return p, nil
}

// whyNone says why no limit can be found for a demand. It is empty if one can.
func (s *stream) whyNone() string {
	switch {
	case s == nil:
		return "the log has no request with this limit"
	case !s.limiting:
		return "mode force denies nobody, with any limit"
	}
	return ""
}

// proposeSlots returns the proposal for the number of requests in flight.
func (r *Recorder) proposeSlots(ctx context.Context, zone *zoneDemand, target Target) (Proposal, error) {
	p := Proposal{Current: fmt.Sprintf("concurrency %d", zone.Concurrency)}
	if zone.all == nil {
		p.Reason = "the log has no request of this zone"
		return p, nil
	}
	q := r.question(zone, zone.all, slotsLadder{zone.MaxDelay}, target)
	q.current = zone.Concurrency
	a, err := q.find(ctx)
	if err == nil {
		a.fill(&p)
	}
	return p, err
}

func (r *Recorder) question(zone *zoneDemand, demand *stream, l ladder, target Target) *question {
	q := &question{stream: demand, ladder: l, target: target, points: curvePoints, keys: zone.keys.len(), workers: r.workers, least: 1}
	if _, ok := l.(*limitLadder); ok && demand.minCost > 1 && demand.usual != algorithms.Nary {
		q.least = l.admitting(demand.minCost) / 2
	}
	return q
}

// workLeft returns the most work of a decision by a limit beside the other limits of its set.
func workLeft(set LimitSet, l *algorithms.Limit) int64 {
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

// fill fills in a proposal.
func (a *answer) fill(p *Proposal) {
	p.Requests, p.Keys = a.total.requests, a.total.keys
	for i := range a.curve {
		p.Curve = append(p.Curve, a.point(&a.curve[i]))
	}
	if a.chosen == nil {
		return
	}
	p.Line = a.chosen.line
	p.DeniedRequests, p.DeniedKeys = a.chosen.denied.requests, a.chosen.denied.keys
	if a.below != nil {
		below := a.point(a.below)
		p.Next = &below
	}
}

func (a *answer) point(j *judged) CurvePoint {
	return CurvePoint{
		Events: j.events, Line: j.line, DeniedRequests: j.denied.requests, DeniedKeys: j.denied.keys,
		RequestShare: float64(j.denied.requests) / float64(max(a.total.requests, 1)),
		KeyShare:     float64(j.denied.keys) / float64(max(a.total.keys, 1)),
	}
}

// whyNone says why no limit denies at most the share.
func (a *answer) whyNone(q *algorithms.Quota) string {
	if len(a.curve) == 0 {
		return "no limit with these options can be counted exactly"
	}
	largest := a.curve[len(a.curve)-1]
	denied := fmt.Sprintf("denies %d of %d requests, and %d of %d keys",
		largest.denied.requests, a.total.requests, largest.denied.keys, a.total.keys)
	switch {
	case q.MinInterval > 0:
		return fmt.Sprintf("with any number of events, min_interval %s", denied)
	case q.Initial != nil && *q.Initial == 0:
		return fmt.Sprintf("even with %d events initial 0 %s", largest.events, denied)
	}
	return fmt.Sprintf("the largest limit that can be proposed, with %d events, still %s", largest.events, denied)
}
