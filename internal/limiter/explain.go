package limiter

import (
	"context"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/lines"
)

// Peek decides the request as take does at once, but changes nothing. If the request would wait in a line, Peek returns the
// slot or the reserved events that it needs. If Redis fails, the local budgets decide, as for any request.
func (state *State) Peek(ctx context.Context) (waitsFor *lines.Need, err error) {
	for i := range state.Requests {
		state.Requests[i].Peek = true
	}
	state.reservePlaces()
	slots, w := state.Limiter.SlotLines, &state.Wait
	w.Came = instantOf(time.Now())
	next, need := slots.Begin(w, w.Came)
	waits := next == lines.Wait
	if next != lines.Decided {
		if state.Allowed, _, err = state.Limiter.Peek(ctx, state.Requests); err != nil {
			return nil, err
		}
		if !state.Allowed {
			next, need = slots.Answered(w, state.Allowed, instantOf(time.Now()))
			waits = next == lines.Wait
		}
	}
	state.Decided = true
	if waits {
		waitsFor = &need
	}
	return waitsFor, nil
}
