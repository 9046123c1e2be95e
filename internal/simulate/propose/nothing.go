package propose

import (
	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
)

const minute = algorithms.Micros(60_000_000)

// bursts are the bursts of the token buckets that are proposed from nothing, in requests of the least
// cost. Each is proposed with the least rate per minute. A rate at which the burst comes back in less
// than a second isn't proposed, because then the burst hardly matters.
var bursts = []int64{10, 30, 100, 300, 1000}

// pointsFromNothing is about how many points the curve of a limit from nothing has.
const pointsFromNothing = 16

// proposeFromNothing returns the proposals for a zone without limits: one for each of [simulate.Windows], and
// token buckets with usual bursts.
func (r *Recorder) proposeFromNothing(zone *recordedZone, recorded *stream) []report.Proposal {
	if why := recorded.whyNone(); why != "" {
		return []report.Proposal{{Reason: why}}
	}
	var proposals []report.Proposal
	// ask proposes one of the limits with these numbers of events.
	ask := func(quota func(events int64) algorithms.Quota, highest int64) (p report.Proposal) {
		q := r.question(recorded, &candidates{
			quota: quota, maxWait: zone.MaxDelay, work: algorithms.MaxWork, maxCost: recorded.maxCharge(),
		})
		q.points = pointsFromNothing
		if highest > 0 {
			q.least, q.highest = 1, highest
		}
		if q.fill(&p); p.Line != "" {
			proposals = append(proposals, p)
		}
		return p
	}
	algorithm := "sliding_window"
	if zone.MaxDelay > 0 { // which a sliding_window can't
		algorithm = "fixed_window"
	}
	for _, window := range simulate.Windows {
		ask(func(events int64) algorithms.Quota {
			return algorithms.Quota{Algorithm: algorithm, Events: events, Window: window}
		}, 0)
	}
	for _, count := range bursts {
		burst := count * max(recorded.minCost, 1)
		p := ask(func(events int64) algorithms.Quota {
			return algorithms.Quota{Algorithm: "token_bucket", Events: events, Window: minute, Burst: burst}
		}, 60*burst)
		if p.Line != "" && p.Next == nil { // larger bursts don't help
			break
		}
	}
	if len(proposals) == 0 {
		return []report.Proposal{{Reason: "no limit denies so few"}}
	}
	return proposals
}
