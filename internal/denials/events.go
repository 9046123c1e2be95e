package denials

import (
	"context"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/throttle"
)

// The events of denials and bans.
const (
	eventExceeded       = "rate_limit_exceeded"
	eventShadowExceeded = "rate_limit_shadow_exceeded"
	eventBanned         = "rate_limit_banned"
	eventThreshold      = "rate_limit_threshold"
)

// eventName returns the name of the event of a denial or a ban. A ban in shadow mode has none,
// because nobody is banned.
func (d *Denial) eventName() string {
	switch {
	case d.Ban && d.Shadow:
		return ""
	case d.Ban:
		return eventBanned
	case d.Shadow:
		return eventShadowExceeded
	default:
		return eventExceeded
	}
}

// Events emits the events of a configuration in a goroutine, one after the other. So no request
// waits for the handlers of events, and a handler can reload the configuration. It is safe for concurrent use.
type Events struct {
	ctx       caddy.Context // of the app that emits
	app       *caddyevents.App
	audience  audience // nil if this Caddy can't say who handles an event
	successor func() *Events
	logger    *zap.Logger
	lost      throttle.Throttle

	mu       sync.Mutex
	started  bool // the configuration has started; before, the events app is not ready
	emitting bool // the goroutine runs
	waiting  [kindCount][]queuedEvent
	kind     int // whose turn it is
}

// Each kind of events has its own queue, and the kinds take turns. So a flood of denials pushes out no report. Events of
// stores are kind 0, because their order matters.
const kindCount = 5

var kindOf = map[string]int{eventThreshold: 1, eventBanned: 2, eventExceeded: 3, eventShadowExceeded: 4}

// audience is the part of a newer [caddyevents.App] that the lowest Caddy lacks. Caddy 2.11.9 has it.
type audience interface {
	// ShouldEmit reports whether anything handles or logs events of a name. It is right once all apps have started.
	ShouldEmit(name string) bool
}

type queuedEvent struct {
	name string
	data map[string]any
}

// maxQueuedEvents is how many events of a kind wait for slow handlers. Any more are lost.
const maxQueuedEvents = 1000

// NewEvents returns the events of the configuration of ctx. They are emitted when the configuration has started. After
// the configuration has ended, they go to the Events that successor returns, or are dropped if it returns nil.
func NewEvents(ctx caddy.Context, app *caddyevents.App, successor func() *Events) (*Events, error) {
	q := &Events{ctx: ctx, app: app, successor: successor, logger: ctx.Logger()}
	q.audience, _ = any(app).(audience)
	context.AfterFunc(ctx, q.start) // events of a configuration that never started go to the successor, too
	return q, app.On("started", whenStarted(q.start))
}

// whenStarted is a handler of Caddy's event "started".
type whenStarted func()

// Handle implements [caddyevents.Handler].
func (f whenStarted) Handle(context.Context, caddy.Event) error {
	f()
	return nil
}

// start begins to emit events.
func (q *Events) start() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.started = true
	q.emitLocked()
}

// Add adds an event to the queue, and never waits.
func (q *Events) Add(name string, data map[string]any) {
	q.mu.Lock()
	defer q.mu.Unlock()
	queue := &q.waiting[kindOf[name]]
	if len(*queue) >= maxQueuedEvents {
		if n := q.lost.Due(10 * time.Second); n > 0 && q.started {
			q.logger.Warn("events are lost, because the handlers of earlier ones take too long", zap.Int64("events", n))
		}
		return
	}
	*queue = append(*queue, queuedEvent{name, data})
	q.emitLocked()
}

// hasAudience reports whether anything may handle an event. Before the start, and for the successor, nobody can know.
func (q *Events) hasAudience(name string) bool {
	q.mu.Lock()
	started := q.started
	q.mu.Unlock()
	return q.audience == nil || !started || q.ctx.Err() != nil || q.audience.ShouldEmit(name)
}

// addFields adds an event with the fields of a log message, if anything may handle it.
func (q *Events) addFields(name string, fields []zap.Field) {
	if !q.hasAudience(name) {
		return
	}
	data := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(data)
	}
	q.Add(name, data.Fields)
}

// emitLocked starts the goroutine if it is needed.
func (q *Events) emitLocked() {
	if q.started && !q.emitting {
		q.emitting = true
		go q.emit()
	}
}

// emit emits all events that wait. Events of a configuration that has ended go to its successor.
func (q *Events) emit() {
	for {
		e, ok := q.next()
		if !ok {
			return
		}
		if q.ctx.Err() == nil {
			q.emitOne(e)
		} else if next := q.successor(); next != nil && next != q {
			next.Add(e.name, e.data)
		}
	}
}

// next takes the next event out of its queue. If none waits, the goroutine ends.
func (q *Events) next() (e queuedEvent, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for range kindCount {
		q.kind = (q.kind + 1) % kindCount
		if queue := &q.waiting[q.kind]; len(*queue) > 0 {
			e, *queue = (*queue)[0], (*queue)[1:]
			return e, true
		}
		q.waiting[q.kind] = nil
	}
	q.emitting = false
	return e, false
}

// emitOne emits an event. A handler that panics fails only this event.
func (q *Events) emitOne(e queuedEvent) {
	defer func() {
		if reason := recover(); reason != nil {
			q.logger.Error("an event handler panicked", zap.String("event", e.name), zap.Any("panic", reason), zap.Stack("stack"))
		}
	}()
	q.app.Emit(q.ctx, e.name, e.data)
}

// Interface guard
var _ caddyevents.Handler = whenStarted(nil)
