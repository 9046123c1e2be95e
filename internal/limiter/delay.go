package limiter

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/lines"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/telemetry"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// delayPlaces has the places of this process for delayed requests: name of the zone → *lines.Places.
var delayPlaces sync.Map

// DelayPlacesOf returns the places of all zones of this name in this process.
func DelayPlacesOf(zone string) *lines.Places {
	places, _ := delayPlaces.LoadOrStore(zone, NewDelayPlaces())
	return places.(*lines.Places)
}

// NewDelayPlaces returns the places of a zone. A delayed request belongs to its limiter.
func NewDelayPlaces() *lines.Places {
	return lines.NewPlaces(func(owner any, corrections []store.Correction) {
		l := owner.(*Limiter)
		l.Store.Correct(corrections, l.ReportCorrectionFailure)
	})
}

// reservePlaces takes a place in each zone that can delay the request, and reports whether it took one.
// Without memory for the body, the request passes only at once.
func (state *State) reservePlaces() (reserved bool) {
	state.Wait = lines.Request{Came: state.Wait.Came}
	if !slices.ContainsFunc(state.Entries, func(e Entry) bool { return e.Zone.Delay != nil }) {
		return false
	}
	state.Wait.Requests, state.Wait.Zones = state.Requests, slices.Grow(state.waitRoom[:0], len(state.Entries))
	for i := range state.Entries {
		state.Wait.Zones = append(state.Wait.Zones, lines.ZoneWait{Delay: state.Entries[i].Zone.Delay})
	}
	return state.Wait.Reserve(func() bool { return state.Explained || state.Body.MoveToDelayed() })
}

// RequiredDelay returns the delay of the request: the longest wait of its limits.
func (state *State) RequiredDelay() (delay algorithms.Micros) {
	for i := range state.Entries {
		delay = max(delay, state.Entries[i].RequiredDelay())
	}
	return delay
}

// DelayingLimit returns the index of the limit that delays the request longest.
func (e *Entry) DelayingLimit() (limit int) {
	for i, d := range e.Outcome.Decisions {
		if d.Wait > e.Outcome.Decisions[limit].Wait {
			limit = i
		}
	}
	return limit
}

var errClientGone = errors.New("the client disconnected while its request was delayed")

// hold delays the request, which is allowed and charged, until its time has come. If the client
// disconnects before, hold gives back the charges.
func (state *State) hold(ctx context.Context, delay algorithms.Micros) error {
	state.Wait.Hold(state.Limiter)
	if err := state.sleep(ctx, delay); err != nil {
		state.Wait.Abandon()
		for i := range state.Entries {
			if e := &state.Entries[i]; !state.Wait.IsHeld(i) { // the charges are given back when the request ends
				e.TrueCost, e.Settled = 0, true
			}
		}
		return err
	}
	state.Wait.Pass()
	state.ageDecisions(delay)
	return nil
}

// sleep waits for the delay, or until the client disconnects.
func (state *State) sleep(ctx context.Context, delay algorithms.Micros) error {
	defer state.trace.Wait(ctx, telemetry.ForLimit)()
	state.countWaiting(1)
	defer state.countWaiting(-1)
	timer := time.NewTimer(time.Duration(delay) * time.Microsecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return errClientGone
	}
}

// countWaiting counts n more waiting requests in each zone that delays the request.
func (state *State) countWaiting(n int64) {
	for i := range state.Entries {
		if e := &state.Entries[i]; e.RequiredDelay() > 0 {
			e.Zone.Metrics.CountWaiting(n)
		}
	}
}

// ageDecisions updates the decisions after time has passed without further charges.
func (state *State) ageDecisions(passed algorithms.Micros) {
	for i := range state.Requests {
		for j := range state.Requests[i].Outcome.Decisions {
			state.Requests[i].Outcome.Decisions[j].Age(passed)
		}
	}
}
