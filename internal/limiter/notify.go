package limiter

import (
	"slices"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/denials"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// notify reports the shares of calendars that are used. A decision shows a share that is used and not claimed. Then the
// store lets one request of all instances claim it, and this request reports it. So nothing is lost or reported twice if
// decisions are lost, undone or made again. Reserved events aren't used, so the correction that makes them final claims, too.
// Local budgets know only what this instance was asked.
func (state *State) notify() {
	for i := range state.Entries {
		e := &state.Entries[i]
		if len(e.Zone.Notify) == 0 || e.Outcome.Local {
			continue
		}
		var claimed []store.Limit
		for j, d := range e.Outcome.Decisions {
			if slices.ContainsFunc(e.Zone.Notify, func(percent int64) bool { return crossed(&e.Limits[j], d, percent) }) {
				claimed = append(claimed, e.Limits[j])
			}
		}
		if len(claimed) > 0 {
			claim := store.Correction{
				Request: &store.ZoneRequest{Zone: e.ZoneRequest.Zone, Key: e.Key, Limits: claimed, ReservedID: e.ReservedID},
				Charged: state.reporter(e, claimed),
			}
			state.Limiter.Store.Correct([]store.Correction{claim}, state.Limiter.ReportCorrectionFailure)
		}
	}
}

// crossed reports whether a key has used a share of its limit, and was not claimed before the decision.
func crossed(l *store.Limit, d algorithms.Decision, percent int64) bool {
	return l.Crossed(d, (l.Events*percent+99)/100)
}

// reporter returns the function that reports the shares that a correction of limits has claimed. It is nil if the zone
// reports none.
func (state *State) reporter(e *Entry, limits []store.Limit) func([]algorithms.Decision) {
	if len(e.Zone.Notify) == 0 || e.Outcome.Local {
		return nil
	}
	l, z, key := state.Limiter, e.Zone, e.Key
	return func(decisions []algorithms.Decision) {
		for i, d := range decisions {
			for _, percent := range z.Notify {
				if crossed(&limits[i], d, percent) {
					l.Denials.Record(denials.Denial{
						Source: l.DenialSource, Zone: z.Name, Key: key, Percent: percent,
						Cause: denials.Cause{Reason: store.DeniedByLimit, Limit: limits[i].Limit}, Wait: d.ResetAfter,
					})
				}
			}
		}
	}
}
