package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// Delay delays requests until there is room for them, instead of denying them. Requests that a limit
// delays are charged in advance, and pass in the order of their charges. Requests that wait for a
// slot of concurrency are charged when they get one. In an instance, they get slots in the order in
// which they came.
type Delay struct {
	// The longest delay of a request, for a slot and for limits together; at least 1µs. A request
	// that would have to wait longer is denied.
	Max caddy.Duration `json:"max,omitempty"`

	// The number of places for requests of the zone that this instance delays, or decides on, at
	// the same time. Without a free place a request passes only if there is room for it at once.
	// A key gets another place only while more places are free than it has, so a single key gets
	// half of them. A key without placeholders can have all (default 1000).
	Held int64 `json:"held,omitempty" zero:"1000"`
}

const defaultHeld = 1000

// maxWait returns the option max.
func (d *Delay) maxWait() algorithms.Micros { return time.Duration(d.Max).Microseconds() }

// check checks the options together with the zone's mode and limits.
func (d *Delay) check(mode algorithms.Mode, limits []*algorithms.Limit) error {
	maxWait := time.Duration(d.Max)
	switch {
	case maxWait <= 0:
		return fmt.Errorf("delay must be above 0, not %v: write the longest delay of a request, such as delay 2s", maxWait)
	case maxWait%time.Microsecond != 0:
		return fmt.Errorf("delay must be a whole number of microseconds, not %v: write for example %v", maxWait, microsExample(maxWait))
	case d.Held < 0:
		return fmt.Errorf("delay must have places for at least 1 request, not %d: write for example delay 2s 100", d.Held)
	case mode != algorithms.Binary:
		return fmt.Errorf("delay and mode %v don't go together: a delayed request gets all of its cost, as in mode binary; leave out mode", mode)
	}
	for _, l := range limits {
		if err := l.CheckDelay(maxWait.Microseconds()); err != nil {
			return fmt.Errorf("delay: %w", err)
		}
	}
	return nil
}

// delayPolicy is the compiled option delay of a zone.
type delayPolicy struct {
	zone      string
	maxWait   algorithms.Micros
	maxHeld   int64
	singleKey bool // all requests of the zone have the same key
}

// longestDelay returns the longest delay of a request, for a slot and for limits together.
func (p *delayPolicy) longestDelay() time.Duration {
	return time.Duration(p.maxWait) * time.Microsecond
}

// reservePlaces takes a place in the queue of each zone that can delay the request, and reports
// whether it took one. In a zone without a free place, or without memory for the body of the request, the request
// passes only at once.
func (state *requestState) reservePlaces() (reserved bool) {
	reserve := (*delayPolicy).reservePlace
	if state.explained {
		reserve = (*delayPolicy).hasPlace
	}
	for i := range state.entries {
		e := &state.entries[i]
		if e.zone.delay == nil || len(e.Limits) == 0 && e.Slots == nil {
			continue
		}
		maxWait := e.longestLimitDelay(0)
		switch {
		case maxWait <= 0 && e.Slots == nil:
		case e.Shadow: // is charged in advance, but not delayed
			e.MaxWait = maxWait
		case !state.moveDelayedBody():
		case reserve(e.zone.delay, e.Key):
			e.MaxWait, e.hasPlace, reserved = maxWait, true, true
		}
	}
	return reserved
}

// moveDelayedBody moves the body of a request that may be delayed to delayedMemory. It reports false if there is no
// room.
func (state *requestState) moveDelayedBody() bool {
	return !state.holdsBody() || state.explained || state.body.ahead.Move(delayedMemory)
}

// longestLimitDelay returns how long the limits of the zone can delay a request that has waited for a
// slot before.
func (e *zoneEntry) longestLimitDelay(waited algorithms.Micros) algorithms.Micros {
	longest := e.zone.delay.maxWait - waited
	for _, l := range e.Limits { // a factor below 1 makes bursts larger, which leaves less room for debt
		longest = min(longest, l.MaxDelay())
	}
	return max(longest, 0)
}

// releasePlaces gives back the places of the request, except those that its heldRequest gives back.
func (state *requestState) releasePlaces() {
	for i := range state.entries {
		if e := &state.entries[i]; e.hasPlace && e.held == nil {
			e.zone.delay.queue().releasePlace(e.Key)
		}
	}
}

// requiredDelay returns the delay of the request: the longest wait of its limits.
func (state *requestState) requiredDelay() (delay algorithms.Micros) {
	for i := range state.entries {
		delay = max(delay, state.entries[i].requiredDelay())
	}
	return delay
}

// requiredDelay returns the delay that the zone requires.
func (e *zoneEntry) requiredDelay() (delay algorithms.Micros) {
	if e.Shadow {
		return 0
	}
	for _, d := range e.Outcome.Decisions {
		delay = max(delay, d.Wait)
	}
	return delay
}

var errClientGone = errors.New("the client left while its request was delayed")

// hold delays the request, which is allowed and charged, until its time has come. If the client
// leaves before, hold gives back the charges.
func (state *requestState) hold(ctx context.Context, delay algorithms.Micros) error {
	for i := range state.entries {
		if e := &state.entries[i]; e.hasPlace && len(e.Limits) > 0 {
			e.held = e.zone.delay.queue().hold(state.handler, *e.Request)
		}
	}
	if err := state.sleep(ctx, delay); err != nil {
		for i := range state.entries {
			e := &state.entries[i]
			if e.held != nil {
				e.held.abandon()
			} else { // the charges are given back when the request ends
				e.trueCost, e.settled = 0, true
			}
		}
		return err
	}
	for i := range state.entries {
		if h := state.entries[i].held; h != nil {
			h.pass()
		}
	}
	state.ageDecisions(delay)
	return nil
}

// sleep waits for the delay, or until the client leaves.
func (state *requestState) sleep(ctx context.Context, delay algorithms.Micros) error {
	defer state.trace.waitForLimit(ctx)()
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
func (state *requestState) countWaiting(n int64) {
	for i := range state.entries {
		if e := &state.entries[i]; e.requiredDelay() > 0 {
			e.zone.metrics.countWaiting(n)
		}
	}
}

// ageDecisions updates the decisions after time has passed without further charges.
func (state *requestState) ageDecisions(passed algorithms.Micros) {
	for i := range state.requests {
		for j := range state.requests[i].Outcome.Decisions {
			state.requests[i].Outcome.Decisions[j].Age(passed)
		}
	}
}

// unmarshalDelay reads delay <max> [<requests>].
func unmarshalDelay(d *caddyfile.Dispenser) (*Delay, error) {
	args := d.RemainingArgs()
	if len(args) < 1 || len(args) > 2 {
		return nil, fmt.Errorf("delay takes a duration and optionally a number of requests, but has %d values: write for example delay 2s 100",
			len(args))
	}
	if len(args) == 2 && isInteger(args[0]) && !isInteger(args[1]) {
		return nil, fmt.Errorf("delay takes the duration first, not %q: write delay %s %s", strings.Join(args, " "), args[1], args[0])
	}
	maxWait, err := parseDuration("delay", args[0], "2s")
	if err != nil || len(args) == 1 {
		return &Delay{Max: maxWait}, err
	}
	held, err := parseInteger("requests", args[1], "100")
	if err == nil && held <= 0 {
		err = fmt.Errorf("requests must be above 0, not %d: write how many can be delayed at the same time, or leave it out for %d",
			held, defaultHeld)
	}
	if err != nil {
		return nil, fmt.Errorf("delay: %w", err)
	}
	return &Delay{Max: maxWait, Held: held}, nil
}
