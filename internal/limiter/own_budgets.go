package limiter

import (
	"net/http"
	"slices"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// PassedLimiters returns the limiters that a request has passed, in this order.
func PassedLimiters(repl *caddy.Replacer) (all []*Limiter) {
	v, _ := repl.Get(PlaceholderPrefix)
	if outermost, ok := v.(*State); ok {
		for s := outermost.innermost; s != nil; s = s.outer {
			all = append(all, s.Limiter)
		}
	}
	slices.Reverse(all)
	return all
}

// PeekOwn looks at the budgets that the client of a request has in zones of the limiter, also in those that don't match the
// request, or exempt it. It charges nothing. A zone has no entry if the request lacks a value for its key, or if it needs
// the body of a request. It has none either in shadow mode. The error is that of the store.
func (l *Limiter) PeekOwn(r *http.Request, repl *caddy.Replacer, zones []*Zone) (entries []Entry, err error) {
	state := &State{Limiter: l, Explained: true}
	_, err = state.WithOverrides(
		func(a Attempt) error {
			state.Entries, state.Requests = nil, nil
			for _, z := range zones {
				state.collectOwn(z, repl, a)
			}
			state.endCollecting()
			return nil
		},
		func() error {
			for i := range state.Requests { // no memory of denials keeps a shadow from the store
				state.Requests[i].Peek, state.Requests[i].Shadow = true, true
			}
			_, _, err := l.Peek(r.Context(), state.Requests)
			return err
		})
	return state.Entries, err
}

// collectOwn adds an entry for the budgets of the client in a zone, if it has any.
func (state *State) collectOwn(z *Zone, repl *caddy.Replacer, a Attempt) {
	readsBody := z.BodyNeeds.Factor|z.BodyNeeds.Plan|slices.Max(z.BodyNeeds.Keys) != 0
	factor, key := state.factorOf(z, repl), z.KeyOf(repl, nil)
	if readsBody || factor == 0 || !key.Complete || !z.Enforces(key.Text) {
		return
	}
	limits, override := z.limitSetFor(key, func() string {
		value, _ := z.PlanBy.Expand(repl)
		return value
	})
	state.addKey(Entry{Zone: z, LimitSet: limits, Factor: factor}, key, override, 0, store.Tenant{}, a)
}
