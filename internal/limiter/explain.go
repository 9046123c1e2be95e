package limiter

import (
	"context"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/denials"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/lines"
)

// AddRecorded adds an entry for a key that a denied request had in a zone, with the limits that the key has now.
// It returns how the zone applies. The zone has the recorded alternative.
func (state *State) AddRecorded(z *Zone, met denials.RecordedZone, o CollectOptions) (key Key, applies string) {
	key = Key{Text: met.Key.Text, Alternative: met.Alternative, Complete: true}
	if z.Keys[met.Alternative].Address {
		key.Network, _ = keys.ParseNetwork(key.Text)
	}
	if met.Factor == 0 {
		if z.BanLookup != nil {
			state.addBanLookup(z, key)
		}
		return key, AppliesBan
	}
	limits, override := z.limitSetFor(key, func() string { return met.Plan })
	cost := met.Cost
	if limits.Unlimited {
		cost = 0
	}
	return key, state.addKey(Entry{Zone: z, LimitSet: limits, Factor: met.Factor}, key, override, cost, o)
}

// Peek decides the request as take does at once, but changes nothing. If the request would wait for a slot, Peek
// returns the entry of its zone. If Redis fails, the local budgets decide, as for any request.
func (state *State) Peek(ctx context.Context) (slotless *Entry, err error) {
	for i := range state.Requests {
		state.Requests[i].Peek = true
	}
	state.reservePlaces()
	slots, w := state.Limiter.SlotLines, &state.Wait
	w.Came = instantOf(time.Now())
	next, zone := slots.Begin(w, w.Came)
	waits := next == lines.Wait
	if next != lines.Decided {
		if state.Allowed, _, err = state.Limiter.Peek(ctx, state.Requests); err != nil {
			return nil, err
		}
		if !state.Allowed {
			next, zone = slots.Answered(w, state.Allowed, instantOf(time.Now()))
			waits = next == lines.Wait
		}
	}
	state.Decided = true
	if waits {
		slotless = &state.Entries[zone]
	}
	return slotless, nil
}
