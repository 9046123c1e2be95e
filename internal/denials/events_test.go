package denials

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
)

// At most 1000 events wait for a slow handler, and the log says that others are lost.
func TestEventsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		provisioned, err := caddy.ProvisionContext(&caddy.Config{Admin: &caddy.AdminConfig{Disabled: true}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := caddy.NewContext(provisioned)
		defer cancel()
		app, err := ctx.App("events")
		if err != nil {
			t.Fatal(err)
		}
		events := app.(*caddyevents.App)
		q, err := NewEvents(ctx, events, nil)
		if err != nil {
			t.Fatal(err)
		}
		var got []int
		if err := events.On(eventExceeded, handleFunc(func(e caddy.Event) {
			got = append(got, e.Data["n"].(int))
		})); err != nil {
			t.Fatal(err)
		}
		for n := range 2 * maxQueuedEvents {
			q.Add(eventExceeded, map[string]any{"n": n})
		}
		q.start()
		synctest.Wait()
		if len(got) != maxQueuedEvents || !slices.IsSorted(got) || got[maxQueuedEvents-1] != maxQueuedEvents-1 {
			t.Errorf("the events are %v, want the first 1000 in order", got)
		}
	})
}

// handleFunc is a handler of events.
type handleFunc func(caddy.Event)

// Handle implements [caddyevents.Handler].
func (f handleFunc) Handle(_ context.Context, e caddy.Event) error {
	f(e)
	return nil
}
