package limiter

import (
	"cmp"
	"context"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/lines"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/telemetry"
)

// ProcessSlotLines are the lines of the limiters whose store is in memory. A backend has its own.
var ProcessSlotLines = lines.NewSlotLines(lines.LocalPause, nil)

var processStart = time.Now()

// instantOf returns an instant of the monotonic clock in the form of the package lines. It is never 0.
func instantOf(t time.Time) algorithms.Micros { return t.Sub(processStart).Microseconds() + 1 }

// take lets the store decide the request. A request that lacks nothing but slots, reserved events or the end of holds waits for
// it with waitCtx, and then the store decides again. took is how long the last decision took, and 0 if there was none.
func (state *State) take(waitCtx, storeCtx context.Context) (allowed bool, took time.Duration, err error) {
	l, w := state.Limiter, &state.Wait
	var woken chan struct{} // receives a value when it may be the turn of a request that waits
	asked := time.Now()
	w.Came = cmp.Or(w.Came, instantOf(asked)) // it is set if the store knew another override
	next, need := l.SlotLines.Begin(w, instantOf(asked))
	for {
		switch next {
		case lines.Ask:
			allowed, err = l.Store.Take(storeCtx, state.Requests)
			took = max(time.Since(asked), 1) // a nanosecond more adds no microsecond below
			if err != nil {
				l.SlotLines.Leave(w, instantOf(time.Now()))
				return allowed, took, err
			}
			next, need = l.SlotLines.Answered(w, allowed, instantOf(asked)+took.Microseconds())
		case lines.Wait:
			if woken == nil {
				woken = make(chan struct{}, 1)
				w.Wake = wakeBy(woken)
				defer state.trace.Wait(waitCtx, WaitsFor(need))() // once
			}
			if next, err = state.awaitTurn(waitCtx, need, woken); err != nil {
				return false, took, err
			}
			switch {
			case next == lines.Ask:
				if charged := w.PrepareShadows(); len(charged) > 0 {
					l.Store.Correct(charged, l.ReportCorrectionFailure)
				}
				asked = time.Now()
			case took > 0: // there is a decision
				state.ageDecisions(time.Since(asked).Microseconds())
			}
		case lines.Decided:
			return allowed, took, nil
		}
	}
}

// wakeBy returns a function that sends a value without waiting.
func wakeBy(woken chan<- struct{}) func(algorithms.Micros) {
	return func(algorithms.Micros) {
		select {
		case woken <- struct{}{}:
		default:
		}
	}
}

// WaitsFor returns the name of what a request waits for.
func WaitsFor(need lines.Need) string {
	switch {
	case need.Ban:
		return telemetry.ForBan
	case need.Reserved:
		return telemetry.ForReserved
	}
	return telemetry.ForSlot
}

// awaitTurn puts the request into a line, and waits until it is the first there, and what it needs may be free, or until a ban
// ends. It returns [lines.Decided] if that did not become free in time.
func (state *State) awaitTurn(ctx context.Context, need lines.Need, woken <-chan struct{}) (next lines.Step, err error) {
	slots, w := state.Limiter.SlotLines, &state.Wait
	slots.Join(w, need, instantOf(time.Now()))
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer func() { state.Entries[w.Line()].waited = true }()
	for {
		next, wait := slots.Look(w, instantOf(time.Now()))
		if next != lines.Wait {
			return next, nil
		}
		timer.Reset(time.Duration(wait) * time.Microsecond)
		select {
		case <-woken:
		case <-timer.C:
		case <-ctx.Done():
			slots.Leave(w, instantOf(time.Now()))
			return lines.Decided, errClientGone
		}
	}
}
