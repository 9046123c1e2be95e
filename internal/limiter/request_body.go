package limiter

import (
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/bodies"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/httpfields"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/telemetry"
)

// A zone reads the body of a request when one of its texts needs a value from there, and only then.

// bodyLogInterval is how often a zone logs each reason why it can't read a body.
const bodyLogInterval = 10 * time.Second

// ProcessBodyMemory is the memory that the bodies of all requests of the process share.
var ProcessBodyMemory = bodies.NewMemory()

// BodyNeeds are the kinds of bodies that each text of a zone needs.
type BodyNeeds struct {
	Factor, Plan, Cost, Share bodies.Kinds
	Keys                      []bodies.Kinds // one per alternative
}

// BodyKindsOf returns the kinds of bodies that a text needs for its placeholders.
func BodyKindsOf(text string) (kinds bodies.Kinds) {
	names, _ := keys.Placeholders(text) // checked elsewhere
	for _, name := range names {
		kinds |= bodies.KindOf(name)
	}
	return kinds
}

// lookUpBody returns the value of a placeholder of the body, and whether there is one of this name. It reads nothing:
// the value is known if a zone has read it before, and it was kept. It is called on the outermost state.
func (state *State) lookUpBody(placeholder string) (value any, ok bool) {
	if bodies.KindOf(placeholder) == 0 {
		return nil, false
	}
	for s := state.innermost; s != nil; s = s.outer {
		if value, known := s.Body.Value(placeholder); known {
			return value, true
		}
	}
	return "", true
}

// bodyReader reads the body of a request for one zone, before the texts are expanded that need its values. A nil
// bodyReader reads nothing, so that only known values are used.
type bodyReader struct {
	state *State
	zone  *Zone
	r     *http.Request
	err   *bodies.Error // why the zone must deny the request
}

// read reads the body for a text, unless the text needs none.
func (b *bodyReader) read(kinds bodies.Kinds) {
	if b == nil || kinds == 0 {
		return
	}
	if b.state.Body == nil {
		l := b.state.Limiter
		b.state.Body = bodies.NewRequestBody(b.r, http.NewResponseController(b.state.response), &l.BodyFields, l.BodyMemory)
	}
	if err := b.state.Body.Read(kinds, b.zone.BodyPolicy); b.err == nil {
		b.err = err
	}
}

// check returns an error if the zone needed the body for this key, but could not read it. A zone
// in shadow mode denies nothing, so it logs the error instead.
func (b *bodyReader) check(key Key) error {
	err, z := b.err, b.zone
	if err == nil {
		return nil
	}
	if !z.Enforces(key.Text) {
		if b.state.Explained {
			return nil
		}
		if count := z.bodyLogs[err].Due(bodyLogInterval); count > 0 {
			z.Logger.Warn("a zone in shadow mode could not read the body of a request, so its values are empty",
				zap.String("zone", z.Name), zap.String("reason", err.Reason), zap.Int64("count", count))
		}
		return nil
	}
	return &DeniedBody{err, z}
}

// DeniedBody is the error of a request that a zone denies because of its body.
type DeniedBody struct {
	Err  *bodies.Error
	Zone *Zone
}

func (d *DeniedBody) Error() string { return d.Err.Error() }

// denyBody responds to a request whose body a zone can't read.
func (l *Limiter) denyBody(w http.ResponseWriter, r *http.Request, state *State, denied *DeniedBody) error {
	z, err := denied.Zone, denied.Err
	if err == bodies.ErrGone {
		return l.respondWithStatus(w, r, err.Status)
	}
	state.countOutcome(z, telemetry.OutcomeBadBody)
	state.trace.SetDenial(z.Name, err.Reason)
	if count := z.bodyLogs[err].Due(bodyLogInterval); count > 0 {
		z.Logger.Warn("a zone denied a request because it could not read the body",
			zap.String("zone", z.Name), zap.String("reason", err.Reason), zap.Int64("count", count))
	}
	state.Body.CloseAfterDenial(w.Header())
	if err == bodies.ErrMemory {
		httpfields.SetRetryAfter(w.Header(), 1_000_000)
		return l.respondWithProblem(w, r, httpfields.ReducedCapacity(err.Status))
	}
	return l.respondWithProblem(w, r, httpfields.Plain(err.Status))
}
