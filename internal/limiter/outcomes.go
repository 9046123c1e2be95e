package limiter

import (
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/telemetry"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// countOutcomes counts the outcomes of a decided request, and how long the decision took. It also counts
// the slots that the request has taken, and the bans that it has begun.
func (state *State) countOutcomes(took time.Duration) {
	for i := range state.Entries {
		e := &state.Entries[i]
		if e.Outcome.Cached && !e.Shadow {
			e.Zone.Metrics.CountDenyCacheHit()
		}
		if outcome, ok := e.requestOutcome(state.Allowed); ok {
			e.Zone.Metrics.CountDecision(outcome, took)
			state.traceOutcome(e, outcome)
		}
		if e.Outcome.Slots.Taken {
			e.Zone.Metrics.CountInFlight(1)
		}
		if e.Outcome.Ban.Began && !e.Shadow {
			e.Zone.Metrics.CountBan()
		}
	}
}

// requestOutcome returns the outcome of a decided request in the zone. If the store didn't ask
// the zone, or the request doesn't belong to the zone and isn't banned, ok is false.
func (e *Entry) requestOutcome(allowed bool) (outcome telemetry.Outcome, ok bool) {
	switch verdict := e.Outcome.Verdict; {
	case e.Denies() && e.Shadow:
		return telemetry.OutcomeShadowDenied, true
	case verdict == store.Banned:
		return telemetry.OutcomeBanned, true
	case verdict == store.Denied:
		return telemetry.OutcomeDenied, true
	case e.LimitSet.Unlimited:
		return telemetry.OutcomeOverridden, true
	case verdict == store.NotAsked || e.IsBanLookup:
		return 0, false
	case !allowed:
		return telemetry.OutcomeDeniedElsewhere, true
	case e.waited || e.RequiredDelay() > 0:
		return telemetry.OutcomeDelayed, true
	default:
		return telemetry.OutcomeAllowed, true
	}
}

// countOutcome counts an outcome in a zone without a decision of the store.
func (state *State) countOutcome(z *Zone, outcome telemetry.Outcome) {
	z.Metrics.CountOutcome(outcome)
	state.trace.SetOutcome(z.Name, outcome)
}

// traceOutcome adds the outcome of a decided request in a zone to its trace, and how many events remain. There is no
// such number if the limits were not asked, for example because of a ban.
func (state *State) traceOutcome(e *Entry, outcome telemetry.Outcome) {
	if state.trace == nil {
		return
	}
	state.trace.SetOutcome(e.Zone.Name, outcome)
	if d, _ := e.tightestOf(len(e.Limits) + 1); !d.NotAsked {
		state.trace.SetRemaining(e.Zone.Name, d.Remaining)
	}
}
