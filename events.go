package ratelimit

import (
	"context"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"go.uber.org/zap"
)

// The events of this module.
const (
	eventExceeded       = "rate_limit_exceeded"
	eventShadowExceeded = "rate_limit_shadow_exceeded"
	eventBanned         = "rate_limit_banned"
	eventStoreDown      = "rate_limit_store_down"
	eventStoreUp        = "rate_limit_store_up"
)

// eventName returns the name of the event of a denial or a ban. A ban in shadow mode has none,
// because nobody is banned.
func (d *denial) eventName() string {
	switch {
	case d.ban && d.shadow:
		return ""
	case d.ban:
		return eventBanned
	case d.shadow:
		return eventShadowExceeded
	default:
		return eventExceeded
	}
}

// eventData returns the data of the event. It has the fields of the log, but never a key.
func (d *denial) eventData() map[string]any {
	data := map[string]any{
		"zone":   d.zone,
		"count":  d.count,
		"reason": d.reason,
		"limit":  d.limitDescription(),
		"method": d.method,
	}
	if d.ban {
		data["until"], data["duration"] = d.until(), d.waitTime()
	} else {
		data["wait"] = d.waitTime()
	}
	if d.id != "" {
		data["id"] = d.id
	}
	if !d.handler.hashesKeys() {
		data["remote_ip"], data["client_ip"] = d.remoteIP, d.clientIP
		data["host"], data["path"] = d.host, d.path
	}
	return data
}

// eventQueue emits the events of a configuration in a goroutine, one after the other. So no request
// waits for the handlers of events, and a handler can reload the configuration.
type eventQueue struct {
	ctx    caddy.Context // of the app that emits
	events *caddyevents.App
	logger *zap.Logger
	lost   throttle

	mu       sync.Mutex
	started  bool // the configuration has started; before, the events app is not ready
	emitting bool // the goroutine runs
	waiting  []queuedEvent
}

type queuedEvent struct {
	name string
	data map[string]any
}

// maxQueuedEvents is how many events wait for slow handlers. Further ones are lost.
const maxQueuedEvents = 1000

// newEventQueue returns the queue of the configuration of ctx. The queue begins to emit when the
// configuration has started.
func newEventQueue(ctx caddy.Context, events *caddyevents.App) (*eventQueue, error) {
	q := &eventQueue{ctx: ctx, events: events, logger: ctx.Logger()}
	return q, events.On("started", whenStarted(q.start))
}

// whenStarted is a handler of Caddy's event "started".
type whenStarted func()

// Handle implements [caddyevents.Handler].
func (f whenStarted) Handle(context.Context, caddy.Event) error {
	f()
	return nil
}

// start begins to emit events.
func (q *eventQueue) start() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.started = true
	q.emitLocked()
}

// add adds an event to the queue, and never waits.
func (q *eventQueue) add(name string, data map[string]any) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) >= maxQueuedEvents {
		if n := q.lost.due(10 * time.Second); n > 0 && q.started {
			q.logger.Warn("events are lost, because the handlers of earlier ones take too long", zap.Int64("events", n))
		}
		return
	}
	q.waiting = append(q.waiting, queuedEvent{name, data})
	q.emitLocked()
}

// emitLocked starts the goroutine if it is needed.
func (q *eventQueue) emitLocked() {
	if q.started && !q.emitting && len(q.waiting) > 0 {
		q.emitting = true
		go q.emit()
	}
}

// emit emits all events that wait. Events of a configuration that has ended go to the one in force.
func (q *eventQueue) emit() {
	for {
		q.mu.Lock()
		if len(q.waiting) == 0 {
			q.emitting, q.waiting = false, nil
			q.mu.Unlock()
			return
		}
		e := q.waiting[0]
		q.waiting = q.waiting[1:]
		q.mu.Unlock()
		if q.ctx.Err() == nil {
			q.events.Emit(q.ctx, e.name, e.data)
		} else if active, err := activeApp(); err == nil && active.events != q {
			active.events.add(e.name, e.data)
		}
	}
}

// Interface guard
var _ caddyevents.Handler = whenStarted(nil)
