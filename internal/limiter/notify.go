package limiter

import (
	"slices"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/denials"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// notify reports the shares of calendars that the request has reached. The store keeps the highest count of each period, so
// of all requests of all instances, one reaches a share. Local budgets know only what this instance was asked.
func (state *State) notify() {
	for i := range state.Entries {
		if e := &state.Entries[i]; len(e.Zone.Notify) > 0 && !e.Outcome.Local {
			state.Limiter.notify(e.Zone, e.Key, e.Limits, e.Outcome.Decisions)
		}
	}
}

// notifyOfCharge returns the function that reports the shares that a correction of the request reaches, or nil if the zone
// reports none.
func (state *State) notifyOfCharge(e *Entry) func([]algorithms.Decision) {
	if len(e.Zone.Notify) == 0 || e.Outcome.Local {
		return nil
	}
	l, z, key, limits := state.Limiter, e.Zone, e.Key, slices.Clone(e.Limits)
	return func(decisions []algorithms.Decision) { l.notify(z, key, limits, decisions) }
}

func (l *Limiter) notify(z *Zone, key string, limits []store.Limit, decisions []algorithms.Decision) {
	for i, d := range decisions {
		for _, percent := range z.Notify {
			events := (limits[i].Events*percent + 99) / 100
			if limits[i].Crossed(d, events) {
				l.Denials.Record(denials.Denial{
					Source: l.DenialSource, Zone: z.Name, Key: key, Percent: percent,
					Reason: store.DeniedByLimit, Limit: limits[i].Limit, Wait: d.ResetAfter,
				}, nil)
			}
		}
	}
}
