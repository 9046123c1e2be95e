package denials

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
)

// newTestEvents returns events that are not started, and the app that emits them.
func newTestEvents(t *testing.T) (*Events, *caddyevents.App) {
	t.Helper()
	provisioned, err := caddy.ProvisionContext(&caddy.Config{Admin: &caddy.AdminConfig{Disabled: true}})
	errtest.None(t, err)
	ctx, cancel := caddy.NewContext(provisioned)
	t.Cleanup(cancel)
	app, err := ctx.App("events")
	errtest.None(t, err)
	q, err := NewEvents(ctx, app.(*caddyevents.App), nil)
	errtest.None(t, err)
	return q, app.(*caddyevents.App)
}

// handle subscribes to events of a name. An event has its number in n.
func handle(t *testing.T, app *caddyevents.App, name string, handler func(n int)) {
	t.Helper()
	errtest.None(t, app.On(name, handleFunc(func(e caddy.Event) { handler(e.Data["n"].(int)) })))
}

func add(q *Events, name string, n int) { q.Add(name, map[string]any{"n": n}) }

// At most 1000 events wait for a slow handler, and the log says that others are lost.
func TestEventsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, app := newTestEvents(t)
		var got []int
		handle(t, app, eventExceeded, func(n int) { got = append(got, n) })
		for n := range 2 * maxQueuedEvents {
			add(q, eventExceeded, n)
		}
		q.start()
		synctest.Wait()
		if len(got) != maxQueuedEvents || !slices.IsSorted(got) || got[maxQueuedEvents-1] != maxQueuedEvents-1 {
			t.Errorf("the events are %v, want the first 1000 in order", got)
		}
	})
}

// A flood of denials pushes out no other event, whether denials have a slow handler, or none. A report waits for a few
// events, not for all denials. Events about stores keep their order.
func TestEventsTakeTurns(t *testing.T) {
	for name, subscribed := range map[string]bool{"denials have a handler": true, "denials have no handler": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const reports, slow = 200, time.Minute
				q, app := newTestEvents(t)
				began, got, lastAt := time.Now(), make(map[string][]int), make(map[string]time.Duration)
				names := []string{eventThreshold, eventBanned, "rate_limit_store_down", "rate_limit_store_up"}
				if subscribed {
					names = append(names, eventExceeded)
				}
				for _, name := range names {
					handle(t, app, name, func(n int) {
						time.Sleep(slow)
						kind := name
						if kindOf[name] == 0 {
							kind = "store"
						}
						got[kind], lastAt[kind] = append(got[kind], n), time.Since(began)
					})
				}
				q.start()
				for n := range reports {
					for range 20 {
						add(q, eventExceeded, n)
						add(q, eventShadowExceeded, n)
					}
					add(q, eventThreshold, n)
					add(q, eventBanned, n)
					add(q, []string{"rate_limit_store_down", "rate_limit_store_up"}[n%2], n)
				}
				time.Sleep(2 * maxQueuedEvents * slow)
				synctest.Wait()
				for _, kind := range []string{eventThreshold, eventBanned, "store"} {
					if len(got[kind]) != reports || !slices.IsSorted(got[kind]) {
						t.Errorf("%d of %d events of %s: %v", len(got[kind]), reports, kind, got[kind])
					}
					if most := (reports + 1) * kindCount * slow; lastAt[kind] > most {
						t.Errorf("the last event of %s came after %v, want at most %v", kind, lastAt[kind], most)
					}
				}
			})
		})
	}
}

// A handler that panics ends neither the process nor later events.
func TestEventHandlersPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, app := newTestEvents(t)
		var got []int
		handle(t, app, eventThreshold, func(n int) {
			if n%2 == 0 {
				panic(fmt.Sprint("of event ", n))
			}
			got = append(got, n)
		})
		for n := range 6 {
			add(q, eventThreshold, n)
		}
		q.start()
		synctest.Wait()
		add(q, eventThreshold, 7)
		synctest.Wait()
		if want := []int{1, 3, 5, 7}; !slices.Equal(got, want) {
			t.Errorf("the events are %v, want %v", got, want)
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

// Events of a configuration that has ended go to its successor once. If it is its own successor, because none has begun,
// they are dropped.
func TestEventsOfEnded(t *testing.T) {
	for _, own := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			q, ownApp := newTestEvents(t)
			next, app := newTestEvents(t)
			var got []int
			handle(t, app, eventExceeded, func(n int) { got = append(got, n) })
			next.start()
			asked := 0
			ctx, end := caddy.NewContext(q.ctx)
			q, _ = NewEvents(ctx, ownApp, func() *Events {
				if asked++; own && asked < 10 { // without this bound, a fault would continue for ever
					return q
				}
				return next
			})
			add(q, eventExceeded, 7)
			end() // before it has started
			synctest.Wait()
			want := []int{7}
			if own {
				want = nil
			}
			if asked != 1 || !slices.Equal(got, want) {
				t.Errorf("its own successor %t: the events are %v, want %v; it asked %d times", own, got, want, asked)
			}
		})
	}
}

// An event that nothing handles is not even built. Before the start it is, because handlers can still come. After the end
// it is, because it is for the successor. An older Caddy can't say whether anything handles an event.
func TestEventsWithoutAudience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, app := newTestEvents(t)
		handled := 0
		handle(t, app, eventBanned, func(int) { handled++ })
		built := 0
		addBuilt := func(name string) bool {
			before := built
			q.addFields(name, []zap.Field{zap.Reflect("n", 1), zap.Inline(zapcore.ObjectMarshalerFunc(func(zapcore.ObjectEncoder) error {
				built++
				return nil
			}))})
			return built > before
		}
		ctx, end := caddy.NewContext(q.ctx)
		q.ctx, q.successor = ctx, func() *Events { return nil }
		_, knows := any(app).(audience)
		if !addBuilt(eventExceeded) {
			t.Error("an event before the start is not built")
		}
		q.start()
		if got := addBuilt(eventExceeded); got == knows {
			t.Errorf("an event that nothing handles is built: %t; Caddy knows that: %t", got, knows)
		}
		if !addBuilt(eventBanned) {
			t.Error("an event with a handler is not built")
		}
		synctest.Wait()
		if handled != 1 {
			t.Errorf("%d events were handled, want 1", handled)
		}
		q.audience = nil
		if !addBuilt(eventExceeded) {
			t.Error("with an older Caddy, an event is not built")
		}
		q.audience, _ = any(app).(audience)
		end()
		if !addBuilt(eventExceeded) {
			t.Error("an event after the end is not built, though it is for the successor")
		}
	})
}
