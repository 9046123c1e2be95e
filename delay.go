package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// Delay holds requests back instead of refusing them.
type Delay struct {
	// How long a request is held at most; at least 1µs. One that would have to
	// wait longer is refused.
	Max caddy.Duration `json:"max,omitempty"`

	// How many requests of the zone this instance holds, or decides on, at a time;
	// further ones pass only if they fit at once. No key gets more of these places than
	// it leaves free: half of them if it is the only one. A key without a placeholder
	// gets all (default 1000).
	Held int64 `json:"held,omitempty"`
}

const defaultHeld = 1000

func (d *Delay) longest() algorithms.Micros { return time.Duration(d.Max).Microseconds() }

// check judges the settings together with the zone's limits and mode.
func (d *Delay) check(mode algorithms.Mode, limits []*algorithms.Limit) error {
	longest := time.Duration(d.Max)
	switch {
	case longest <= 0:
		return fmt.Errorf("delay must be above 0, not %v: write how long a request is held at most, such as delay 2s", longest)
	case longest%time.Microsecond != 0:
		return fmt.Errorf("delay must be a whole number of microseconds, not %v: write for example %v", longest, wholeMicros(longest))
	case d.Held < 0:
		return fmt.Errorf("delay holds at least 1 request, not %d: write for example delay 2s 100", d.Held)
	case mode != algorithms.Binary:
		return fmt.Errorf("delay and mode %v don't go together: a request is held until all of its cost is there, which is mode binary", mode)
	}
	for _, l := range limits {
		if err := l.CheckDelay(longest.Microseconds()); err != nil {
			return fmt.Errorf("delay: %w", err)
		}
	}
	return nil
}

// delayPolicy describes the places in which a zone holds requests.
type delayPolicy struct {
	zone    string
	maxWait algorithms.Micros
	maxHeld int64
	oneKey  bool // all requests of the zone have the same key
}

// reserve takes a place for a request of a key, and reports whether there was one. A key gets
// another place only while more are free than it has, so that it leaves some for others.
// One key alone gets half of the places, two keys get a third each.
func (p *delayPolicy) reserve(key string) bool {
	w := p.queue()
	w.mu.Lock()
	defer w.mu.Unlock()
	free := p.maxHeld - w.taken
	if free <= 0 || w.takenBy[key] >= free && !p.oneKey {
		return false
	}
	w.taken++
	w.takenBy[key]++
	return true
}

// reservePlaces takes a place in each zone that may hold the request, if there is one.
func (state *requestState) reservePlaces() (took bool) {
	for i := range state.entries {
		e := &state.entries[i]
		if e.zone.delay == nil || len(e.Limits) == 0 {
			continue
		}
		longest := e.zone.delay.maxWait
		for _, l := range e.Limits { // bursts are larger with a small factor, and leave less room for debt
			longest = min(longest, l.LongestDelay())
		}
		switch {
		case longest <= 0:
		case e.Shadow: // charged in advance as it would be, but not held
			e.MaxWait = longest
		case e.zone.delay.reserve(e.Key):
			e.MaxWait, took = longest, true
		}
	}
	return took
}

// hasPlace reports whether the request took a place in the zone.
func (e *entry) hasPlace() bool { return e.MaxWait > 0 && !e.Shadow }

// releasePlaces gives back the places of a request that isn't held.
func (state *requestState) releasePlaces() {
	for i := range state.entries {
		if e := &state.entries[i]; e.hasPlace() {
			e.zone.delay.queue().release(e.Key)
		}
	}
}

// longestWait is how long the request has to be held: the longest of all its limits.
func (state *requestState) longestWait() (wait algorithms.Micros) {
	for i := range state.entries {
		wait = max(wait, state.entries[i].wait())
	}
	return wait
}

// wait is wait for one zone.
func (e *entry) wait() (wait algorithms.Micros) {
	if e.Shadow {
		return 0
	}
	for _, d := range e.Outcome.Decisions {
		wait = max(wait, d.Wait)
	}
	return wait
}

var errClientGone = errors.New("the client left while its request was held")

// hold holds the request, which is allowed and charged, until its time has come. If
// the client leaves before, what was charged is given back.
func (h *Handler) hold(ctx context.Context, state *requestState, wait algorithms.Micros) error {
	timer := time.NewTimer(time.Duration(wait) * time.Microsecond)
	defer timer.Stop()
	var turns []*turn
	for i := range state.entries {
		if e := &state.entries[i]; e.hasPlace() {
			turns = append(turns, e.zone.delay.queue().join(h, *e.Request))
		}
	}
	select {
	case <-timer.C:
		for _, t := range turns {
			t.proceed()
		}
		state.ageDecisions(wait)
		return nil
	case <-ctx.Done():
		for i := range state.entries { // zones without delay give back at the end of the request
			e := &state.entries[i]
			e.trueCost, e.settled = 0, !e.hasPlace()
		}
		for _, t := range turns {
			t.abandon()
		}
		return errClientGone
	}
}

// ageDecisions makes the decisions those of a moment later, when nothing has changed but the
// time.
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
		return nil, fmt.Errorf("delay takes a duration and perhaps a number of requests, but has %d value(s): write for example delay 2s 100", len(args))
	}
	longest, err := parseDuration("delay", args[0], "2s")
	if err != nil || len(args) == 1 {
		return &Delay{Max: longest}, err
	}
	held, err := parseInteger("requests", args[1], "100")
	if err == nil && held <= 0 {
		err = fmt.Errorf("requests must be above 0, not %d: write how many are held at a time, or leave it out for %d", held, defaultHeld)
	}
	if err != nil {
		return nil, fmt.Errorf("delay: %w", err)
	}
	return &Delay{Max: longest, Held: held}, nil
}
