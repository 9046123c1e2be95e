package ratelimit

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// ServeHTTP takes from the budgets of all zones the request belongs to, in one
// call of the store, and passes the request on or refuses it.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	a := h.newAnswer(repl)
	defer a.end(r.Context())
	var allowed bool
	var err error
	for try := range mostTries {
		if err = a.ask(r, repl, try); err != nil {
			if errors.Is(err, errTooEarly) {
				return h.respond(w, r, http.StatusTooEarly)
			}
			return err
		}
		if len(a.requests) == 0 {
			break
		}
		if allowed, err = h.decide(r.Context(), a); !a.learn(err) {
			break
		}
	}
	if len(a.requests) == 0 {
		return a.watch(next, repl).ServeHTTP(w, r)
	}
	if err != nil {
		return h.undecided(w, r, next, a, err)
	}
	a.noteDenials(r)
	if h.forms.draft && a.enforced() {
		a.setDraft(w.Header())
	}
	if !allowed {
		return h.refuse(w, r, a)
	}
	return a.pass(w, r, repl, a.watch(next, repl))
}

// pass passes a request on, and does what is to be done when its response is known.
func (a *answer) pass(w http.ResponseWriter, r *http.Request, repl *caddy.Replacer, next caddyhttp.Handler) (err error) {
	families, settling := a.handler.forms.families, a.settling(repl)
	if !a.enforced() {
		families = nil
	}
	if len(families) == 0 && settling == nil {
		return next.ServeHTTP(w, r)
	}
	head := &headWriter{ResponseWriterWrapper: &caddyhttp.ResponseWriterWrapper{ResponseWriter: w}, before: func(status int) {
		if settling != nil {
			settling.note(status, w.Header())
		}
		a.setFamilies(w.Header(), families)
	}}
	if settling != nil {
		returned := false
		defer func() { settling.settle(r.Context(), w, returned, err) }() // also after a panic
		err = next.ServeHTTP(head, r)
		returned = true
	} else {
		err = next.ServeHTTP(head, r)
	}
	if !head.done { // nothing may be written yet, or an error be rendered past head
		a.setFamilies(w.Header(), families)
	}
	return err
}

// decide takes from the budgets of all zones, and holds the request if it has to wait.
func (h *Handler) decide(ctx context.Context, a *answer) (allowed bool, err error) {
	began := time.Now()
	took := a.takePlaces()
	held := false
	if took {
		defer func() {
			if !held { // a held request has turns in place of its places
				a.leavePlaces()
			}
		}()
	}
	if took || a.asksSlots() || a.asksToSettle() {
		// If the client leaves, what was charged must be known, to be given back.
		a.useBackend()
		allowed, err = h.store.Take(context.WithoutCancel(ctx), a.requests)
	} else {
		allowed, err = h.store.Take(ctx, a.requests)
	}
	if err != nil {
		return false, err
	}
	a.holdSlots()
	if h.backend != nil && a.isLocal() {
		h.backend.outages.local.Add(1)
	}
	a.decided(allowed, time.Since(began))
	if wait := a.wait(); allowed && wait > 0 {
		held = true
		err = h.hold(ctx, a, wait)
	}
	return allowed, err
}

// refuse answers a request that some zone has no room for.
func (h *Handler) refuse(w http.ResponseWriter, r *http.Request, a *answer) error {
	a.setFamilies(w.Header(), h.forms.families)
	i, wait := a.refusing()
	z := a.zones[i]
	setRetryAfter(w.Header(), wait, h.Jitter)
	a.exceeded = z.name
	a.countRefusals()
	a.note(r, i, refusal{wait: wait})
	why := quotaExceeded
	if a.banned(i) {
		why = abnormalUsage
	}
	return h.respondProblem(w, r, why(z.status, a.violated()))
}

// undecided deals with a request the store could not decide on.
func (h *Handler) undecided(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler, a *answer, err error) error {
	if r.Context().Err() != nil { // the client has left; nobody is to blame
		return h.respond(w, r, statusClientGone)
	}
	for i, z := range a.zones {
		if a.isFirst(i) {
			z.metrics.count(outcomeError)
		}
	}
	h.failed(err)
	allow := h.outage.mode == "allow" || !a.enforced()
	if b := h.backend; b != nil && allow {
		b.outages.allowed.Add(1)
	} else if b != nil {
		b.outages.denied.Add(1)
	}
	if allow {
		return next.ServeHTTP(w, r)
	}
	w.Header()[retryAfterHeader] = []string{"1"}
	return h.respondProblem(w, r, reducedCapacity(http.StatusServiceUnavailable))
}

// failed counts a failure of the store, and reports it unless the store wasn't asked.
func (h *Handler) failed(err error) {
	if !h.DisableMetrics {
		countFailure(err)
	}
	if !errors.Is(err, store.ErrOpen) {
		h.app.reportFailure("a call to Redis failed", err)
	}
}

// statusClientGone is what Caddy writes to its access log for requests that nobody
// waits for any more.
const statusClientGone = 499

// respond ends the request with a status. If there are error routes to render
// it, they get an error, one without the random ID and the stack trace that
// caddyhttp.Error takes the time for; otherwise the status is written.
func (h *Handler) respond(w http.ResponseWriter, r *http.Request, status int) error {
	if h.hasErrorRoutes(r) {
		return caddyhttp.HandlerError{StatusCode: status}
	}
	w.WriteHeader(status)
	return nil
}

func (h *Handler) hasErrorRoutes(r *http.Request) bool {
	if h.ReturnErrors {
		return true
	}
	if r.Context().Value(caddyhttp.ErrorCtxKey) != nil {
		return false // we are in them
	}
	server, ok := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	return ok && server != nil && server.Errors != nil && len(server.Errors.Routes) > 0
}

// answer is what one handler asked about one request and what came of it. It
// lives as long as the request, for its placeholders do.
type answer struct {
	handler  *Handler
	zones    []*zone  // those the request belongs to; twice in a row if limits and slots are asked of it
	terms    []*terms // by which it does
	requests []store.Request
	slots    []*slot // that the request holds
	known    bool    // the requests are decided
	allowed  bool
	using    bool // the request uses the handler's backend, which stays open until end
	exceeded string
	watched  uint64 // bit i: the handler's zone i has placeholders that later handlers may set

	// A request can come to several handlers. The outermost one's answer is
	// what its replacer knows, and leads to all others.
	outer     *answer // of the handler around this one
	innermost *answer // of the last handler so far; set in the outermost answer

	// Room for the usual case, so that all this is one allocation.
	zoneRoom     [1]*zone
	termsRoom    [1]*terms
	requestRoom  [1]store.Request
	decisionRoom [2]algorithms.Decision
	fieldRoom    [2]string
}

func (h *Handler) newAnswer(repl *caddy.Replacer) *answer {
	a := &answer{handler: h}
	a.zones, a.terms, a.requests = a.zoneRoom[:0], a.termsRoom[:0], a.requestRoom[:0] // what ask fills
	v, _ := repl.Get(placeholderPrefix)
	outermost, ok := v.(*answer)
	if !ok {
		outermost = a
		repl.Map(a.placeholder)
	}
	a.outer, outermost.innermost = outermost.innermost, a
	return a
}

// ask finds the zones the request belongs to, and what to ask about each, perhaps again:
// try is how often that was done before.
func (a *answer) ask(r *http.Request, repl *caddy.Replacer, try int) error {
	a.zones, a.terms, a.requests, a.watched = a.zones[:0], a.terms[:0], a.requests[:0], 0
	for i, z := range a.handler.zones {
		matches, err := z.matches(r)
		if err != nil {
			return err
		}
		if !matches {
			continue
		}
		a.suspect(i, r)
		factor := z.factorOf(repl)
		if factor == 0 {
			continue // unlimited
		}
		if z.tooEarly(r, repl) {
			if z.enforce == 0 {
				continue
			}
			return errTooEarly
		}
		key := z.keyOf(repl)
		if try == 0 {
			z.noteKey(key)
		}
		t, override := z.termsOf(key, repl)
		looksUp := z.looksUp(key)
		overridable := looksUp && try < mostTries-1
		if t.unlimited {
			if looksUp { // an override at run time may end this
				a.add(z, t, store.Request{Zone: z.name, Key: key.text, Shadow: true, Overridable: overridable, Override: override})
			} else if try == 0 {
				z.metrics.count(outcomeOverridden)
			}
			continue
		}
		shadow, limited := !z.enforces(key.text), false
		if limits := t.limits[key.alternative]; len(limits) > 0 {
			limited = true
			a.add(z, t, store.Request{
				Zone: z.name, Key: key.text, Limits: scaled(limits, factor), Mode: z.mode, Cost: z.costOf(repl), Shadow: shadow,
				Overridable: overridable, Override: override,
			})
		}
		if s := t.slots; s != nil {
			a.add(z, s, store.Request{
				Zone: z.name, Key: key.text, Limits: s.limits[key.alternative], Cost: 1, Shadow: shadow, Fleeting: true,
				Overridable: overridable && !limited, Override: override,
			})
		}
	}
	return nil
}

func (a *answer) add(z *zone, t *terms, request store.Request) {
	if len(a.requests) == 0 {
		request.Decisions = a.decisionRoom[:0]
	}
	a.zones = append(a.zones, z)
	a.terms = append(a.terms, t)
	a.requests = append(a.requests, request)
}

// useBackend keeps the handler's backend open until end, also after a reload, so that the
// charges of the request can be renewed and given back.
func (a *answer) useBackend() {
	if b := a.handler.backend; b != nil && !a.using {
		a.using = true
		b.use()
	}
}

// end gives back the slots of the request, and leaves the handler's backend.
func (a *answer) end(ctx context.Context) {
	a.leaveSlots(ctx)
	if !a.using {
		return
	}
	if err := a.handler.backend.leave(); err != nil {
		a.handler.failed(err)
	}
}

// isLocal reports whether local budgets decided, because Redis failed.
func (a *answer) isLocal() bool {
	for _, r := range a.requests {
		if len(r.Decisions) > 0 {
			return r.Decisions[0].Receipt.Local
		}
	}
	return false
}

// isFirst tells whether a request is the first of its zone.
func (a *answer) isFirst(i int) bool { return i == 0 || a.zones[i-1] != a.zones[i] }

// endOfZone is where the requests of the zone end that i is the first of.
func (a *answer) endOfZone(i int) int {
	for i++; i < len(a.zones) && !a.isFirst(i); i++ {
	}
	return i
}

// ofZone are the requests of the zone that i is the first of.
func (a *answer) ofZone(i int) []store.Request { return a.requests[i:a.endOfZone(i)] }

// decided notes the outcome.
func (a *answer) decided(allowed bool, took time.Duration) {
	a.known, a.allowed = true, allowed
	for i, z := range a.zones {
		if !a.isFirst(i) {
			continue
		}
		if a.terms[i].unlimited {
			z.metrics.decided(outcomeOverridden, took)
			continue
		}
		remembered := a.requests[i].Decisions[0].Remembered
		said := outcomeAllowed
		if !a.allowedBy(i) && a.requests[i].Shadow {
			said = outcomeShadowDenied
		} else if !a.allowedBy(i) {
			if said = outcomeDenied; !a.ban(i).Allowed {
				said = outcomeBanned
			}
			if remembered {
				z.metrics.remembered()
			}
		} else if remembered {
			continue // it was not asked
		} else if allowed && a.waitOf(i) > 0 {
			said = outcomeDelayed
		}
		z.metrics.decided(said, took)
	}
}

// allowedBy tells whether a zone had room.
func (a *answer) allowedBy(i int) bool {
	for _, r := range a.ofZone(i) {
		for _, d := range r.Decisions {
			if !d.Allowed {
				return false
			}
		}
	}
	return true
}

// The reasons of denials.
const (
	reasonLimit       = "limit"
	reasonConcurrency = "concurrency"
	reasonBan         = "ban"
)

// denier returns the reason why a zone denies a request, and the limit that denies it. Of
// several limits it returns the one with the longest wait, and nil for a ban.
func (a *answer) denier(i int) (reason string, limit *algorithms.Limit) {
	if !a.ban(i).Allowed {
		return reasonBan, nil
	}
	longest := algorithms.Micros(-1)
	for j := i; j < a.endOfZone(i); j++ {
		for n, d := range a.limits(j) {
			if d.Allowed || d.RetryAfter <= longest {
				continue
			}
			longest, reason, limit = d.RetryAfter, reasonLimit, a.terms[j].ready[n]
			if a.terms[j].ofSlots {
				reason = reasonConcurrency
			}
		}
	}
	return reason, limit
}

// retryAfter is how long until a zone has room: the longest of its limits.
func (a *answer) retryAfter(i int) (wait algorithms.Micros) {
	for _, r := range a.ofZone(i) {
		for _, d := range r.Decisions {
			wait = max(wait, d.RetryAfter)
		}
	}
	return wait
}

// refusing returns which zone refuses with the longest wait, and the longest wait
// of all zones: a uniform zone that had room may have none any more. Shadows don't count.
func (a *answer) refusing() (which int, wait algorithms.Micros) {
	longest := algorithms.Micros(-1)
	for i := range a.zones {
		if a.requests[i].Shadow || !a.isFirst(i) {
			continue
		}
		w := a.retryAfter(i)
		wait = max(wait, w)
		if !a.allowedBy(i) && w > longest {
			which, longest = i, w
		}
	}
	return which, wait
}

// nearest returns the decision of the limit nearest to exhaustion, of all zones,
// and how much that limit grants at once: of those that refuse, or else of all,
// the one with the least remaining, or else the longest reset. Shadows don't count.
func (a *answer) nearest() (nearest algorithms.Decision, quota int64) {
	first := true
	for i := range a.zones {
		if a.requests[i].Shadow || !a.isFirst(i) {
			continue
		}
		d, q := a.nearestOf(i, a.endOfZone(i))
		if first || nearer(d, nearest) {
			nearest, quota, first = d, q, false
		}
	}
	return nearest, quota
}

// nearestOf is nearest for the requests from first to before end.
func (a *answer) nearestOf(first, end int) (nearest algorithms.Decision, quota int64) {
	for i := first; i < end; i++ {
		for n, d := range a.limits(i) {
			if i == first && n == 0 || nearer(d, nearest) {
				nearest, quota = d, a.requests[i].Limits[n].Burst
			}
		}
	}
	nearest.Remaining = min(nearest.Remaining, quota) // smooth grants one more
	return nearest, quota
}

func nearer(d, than algorithms.Decision) bool {
	switch {
	case d.Unknown() != than.Unknown():
		return than.Unknown()
	case d.Allowed != than.Allowed:
		return !d.Allowed
	case d.Remaining != than.Remaining:
		return d.Remaining < than.Remaining
	}
	return d.ResetAfter > than.ResetAfter
}
